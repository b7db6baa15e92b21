"""The audit: what operators and the controller itself did, by whom, when, and from what to what. Append only.

The store writes it; this is its part of the file. Two triggers keep it append-only against this very program and
whatever else opens the file with SQL: a row is never changed or replaced, and none of the last `MAX_AUDIT` goes. Older
ones go when the store prunes, so that the file is bounded. Who may write the file may also drop the triggers: what has
to be proof against an operator is to be shipped elsewhere (every row is in the log too).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import astuple, dataclass

MAX_AUDIT = 10_000
CONTROLLER = "controller"
"""The actor of what nobody ordered."""

APPEND_ONLY = """
    CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
    CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
        WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
        BEGIN SELECT RAISE(IGNORE); END;
    CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit WHEN OLD.id > (SELECT max(id) FROM audit) - 10000
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
    """
"""A migration of the store. The number is `MAX_AUDIT`, spelled out, for a migration never changes."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Something that was done."""

    at_s: float
    """Wall time."""
    actor: str
    action: str
    detail: str
    """What, and from what to what."""


def append(db: sqlite3.Connection, rows: Iterable[AuditRow]) -> None:
    """Write more rows."""
    db.executemany(
        "INSERT INTO audit (at_s, actor, action, detail) VALUES (?, ?, ?, ?)", [astuple(row) for row in rows]
    )


def prune(db: sqlite3.Connection) -> None:
    """Away with what is above the bound, the oldest."""
    db.execute("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (MAX_AUDIT,))
