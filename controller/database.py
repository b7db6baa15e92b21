"""The SQLite file of the control process as a file: its tables by version, opening it, and what is done about a damaged
one. What is in the tables is told in store.py.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path

from . import audit as audit_trail

BUSY_S = 1.0

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE publication (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER, policy_version INTEGER,
        sha256 TEXT, mode TEXT, provenance TEXT, at_s REAL);
    CREATE TABLE weights (model TEXT PRIMARY KEY, w_ttft REAL, w_tpot REAL) WITHOUT ROWID;
    CREATE TABLE ticks (at_s REAL, model TEXT, ttft_s REAL, tpot_s REAL, ttft_slo_s REAL, tpot_slo_s REAL, price REAL,
        qps REAL, turns INTEGER, later_turns INTEGER, local_turns INTEGER, waiting INTEGER, action TEXT, state TEXT,
        relief TEXT, PRIMARY KEY (at_s, model)) WITHOUT ROWID;
    CREATE TABLE slo_counts (name TEXT PRIMARY KEY, definition TEXT, valid INTEGER, bad INTEGER, excluded INTEGER)
        WITHOUT ROWID;
    CREATE TABLE boots (router TEXT, boot TEXT, at_s REAL, counts TEXT, PRIMARY KEY (router, boot)) WITHOUT ROWID;
    CREATE TABLE audit (id INTEGER PRIMARY KEY, at_s REAL, actor TEXT, action TEXT, detail TEXT);
    CREATE TABLE documents (name TEXT PRIMARY KEY, at_s REAL, body TEXT) WITHOUT ROWID;
    """,
    """
    CREATE TABLE slo_revisions (id INTEGER PRIMARY KEY, slo TEXT, revision TEXT, slice_s REAL,
        UNIQUE (slo, revision, slice_s));
    CREATE TABLE slices (of INTEGER, at INTEGER, valid INTEGER, bad INTEGER, excluded INTEGER,
        PRIMARY KEY (of, at)) WITHOUT ROWID;
    CREATE TABLE outbox (place INTEGER PRIMARY KEY, id TEXT, sink TEXT, queued_s REAL, body TEXT);
    """,
    audit_trail.APPEND_ONLY,
)
"""What takes a file from version n to n + 1. Append only: `user_version` counts them."""


class Newer(sqlite3.DatabaseError):
    """The file is from a later version of this program."""


class Damaged(sqlite3.DatabaseError):
    """The file is no database any more."""


def why(error: Exception) -> str:
    """An error in words."""
    return str(error) or type(error).__name__


def open_database(path: str) -> sqlite3.Connection:
    """Brought to the latest version. Raises Newer, Damaged and other errors of sqlite3."""
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise Newer(f"it is of version {version}, this program knows up to {len(MIGRATIONS)}")
        damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise Damaged(f"it is damaged: {damage}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        for at in range(version, len(MIGRATIONS)):
            db.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[at]}; PRAGMA user_version = {at + 1}; COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken, and not only out of reach."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, Damaged) or (
        code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    )


def set_aside(path: Path, at: datetime) -> Path:
    """Move a file and what SQLite keeps beside it. Raises OSError."""
    aside = path.with_name(f"{path.name}.damaged-{at:%Y%m%dT%H%M%SZ}")
    for end in ("", "-wal", "-shm"):
        part = path.with_name(path.name + end)
        if part.exists():
            part.replace(aside.with_name(aside.name + end))
    return aside


def salvaged(aside: Path, db: sqlite3.Connection) -> int:
    """Copy what can be read: of each table from both ends up to the damage. Returns how many rows that were."""
    tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    rows = 0
    try:
        damaged = sqlite3.connect(f"{aside.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return 0
    try:
        for table in tables:
            columns = db.execute(f"PRAGMA table_info({table})").fetchall()
            names = ", ".join(column[1] for column in columns)
            keys = [column[1] for column in sorted(columns, key=lambda column: column[5]) if column[5]]
            places = ", ".join("?" * len(columns))
            with db:
                db.execute("BEGIN")
                for way in ("ASC", "DESC"):
                    order = ", ".join(f"{key} {way}" for key in keys)
                    try:
                        for row in damaged.execute(f"SELECT {names} FROM {table} ORDER BY {order}"):
                            rows += db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", row).rowcount
                    except sqlite3.Error:
                        continue
                    break
    finally:
        damaged.close()
    return rows


def copied(path: Path, db: sqlite3.Connection) -> bool:
    """Read a file that cannot be written into memory; whether that was possible."""
    for more in ("mode=ro", "mode=ro&immutable=1"):
        try:
            source = sqlite3.connect(f"{path.absolute().as_uri()}?{more}", uri=True)
            try:
                if source.execute("PRAGMA user_version").fetchone()[0] != len(MIGRATIONS):
                    return False
                source.backup(db)
                return True
            finally:
                source.close()
        except (sqlite3.Error, OSError):
            continue
    return False
