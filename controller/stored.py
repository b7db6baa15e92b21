"""What the control process keeps: rows of each kind, and how they get into its database and out of time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields

from router.policy import Publication, Weights
from slos.counts import Count

from . import audit as audit_trail
from .audit import AuditRow
from .ledgers import LedgerKey, SliceRow

RETENTION_S = 24 * 3600.0
MAX_BOOTS = 256


@dataclass(frozen=True, slots=True)
class TickRow:
    """One model's tick. Percentiles in seconds, None without evidence, infinite where too many turns got no answer;
    turns are those of this tick."""

    at_s: float
    """Wall time."""
    model: str
    ttft_s: float | None
    tpot_s: float | None
    ttft_slo_s: float | None
    tpot_slo_s: float | None
    price: float
    qps: float
    turns: int
    later_turns: int
    local_turns: int
    waiting: int
    action: str
    state: str
    relief: str | None


@dataclass(frozen=True, slots=True)
class StoredPublication:
    """What is kept of the last publication."""

    version: int
    mode: str
    weights: Mapping[str, Weights]
    """By model."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What an earlier process left."""

    publication: StoredPublication | None = None
    counts: Mapping[str, Count] = field(default_factory=dict)
    boots: Mapping[tuple[str, str], Mapping[str, Count]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A notice that its receiver has not taken yet."""

    id: str
    sink: str
    queued_s: float
    """Wall time."""
    body: str


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """What was counted of one SLO while it promised the same. Moments in seconds since the epoch."""

    slo: str
    revision: str
    slice_s: float
    from_s: float
    to_s: float
    count: Count


@dataclass(frozen=True, slots=True)
class CountsRow:
    """Counts by SLO with what each SLO meant, and how far each boot of a router is in them."""

    definitions: dict[str, str]
    counts: dict[str, Count]
    boots: dict[tuple[str, str], Mapping[str, Count]]
    at_s: float


def write(
    db: sqlite3.Connection,
    ticks: Sequence[TickRow],
    audit: Sequence[AuditRow],
    publication: tuple[Publication, float] | None,
    counts: CountsRow | None,
    documents: Mapping[str, tuple[float, str]],
) -> None:
    """All but slices and notices."""
    places = ", ".join("?" * len(fields(TickRow)))
    db.executemany(f"INSERT OR REPLACE INTO ticks VALUES ({places})", [astuple(row) for row in ticks])
    audit_trail.append(db, audit)
    if publication is not None:
        published, at_s = publication
        policy = published.arms["main"]
        db.execute(
            "INSERT OR REPLACE INTO publication VALUES (1, ?, ?, ?, ?, ?, ?)",
            (published.version, policy.version, policy.sha256, policy.mode, policy.provenance, at_s),
        )
        db.execute("DELETE FROM weights")
        rows = [(model, weights.w_ttft, weights.w_tpot) for model, weights in policy.model_weights.items()]
        db.executemany("INSERT INTO weights VALUES (?, ?, ?)", rows)
    if counts is not None:
        rows_of_counts = [
            (name, counts.definitions.get(name, ""), count.valid, count.bad, count.excluded)
            for name, count in counts.counts.items()
        ]
        db.execute("DELETE FROM slo_counts")
        db.executemany("INSERT INTO slo_counts VALUES (?, ?, ?, ?, ?)", rows_of_counts)
        rows_of_boots = [
            (router, boot, counts.at_s, json.dumps({name: astuple(count) for name, count in by_slo.items()}))
            for (router, boot), by_slo in counts.boots.items()
        ]
        db.executemany("INSERT OR REPLACE INTO boots VALUES (?, ?, ?, ?)", rows_of_boots)
    rows_of_documents = [(name, at_s, body) for name, (at_s, body) in documents.items()]
    db.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", rows_of_documents)


def write_slices(db: sqlite3.Connection, rows: Iterable[SliceRow]) -> None:
    """Each as what it has, whatever was there."""
    numbers: dict[LedgerKey, int] = {}
    for row in rows:
        key = row.key
        if key not in numbers:
            place = (key.slo, key.revision, key.slice_s)
            db.execute("INSERT OR IGNORE INTO slo_revisions (slo, revision, slice_s) VALUES (?, ?, ?)", place)
            query = "SELECT id FROM slo_revisions WHERE slo = ? AND revision = ? AND slice_s = ?"
            numbers[key] = int(db.execute(query, place).fetchone()[0])
        count = row.count
        db.execute(
            "INSERT OR REPLACE INTO slices VALUES (?, ?, ?, ?, ?)",
            (numbers[key], row.at, count.valid, count.bad, count.excluded),
        )


def write_outbox(db: sqlite3.Connection, rows: Iterable[OutboxRow]) -> None:
    """In the place of what waited before."""
    db.execute("DELETE FROM outbox")
    db.executemany("INSERT INTO outbox (id, sink, queued_s, body) VALUES (?, ?, ?, ?)", [astuple(row) for row in rows])


def prune(db: sqlite3.Connection, now_s: float, kept_s: float) -> None:
    """Drop what is older than it is kept for; slices by `kept_s`."""
    db.execute(
        "DELETE FROM slices WHERE at < ? / (SELECT slice_s FROM slo_revisions WHERE id = slices.of)", (now_s - kept_s,)
    )
    db.execute("DELETE FROM slo_revisions WHERE id NOT IN (SELECT DISTINCT of FROM slices)")
    db.execute("DELETE FROM ticks WHERE at_s < ?", (now_s - RETENTION_S,))
    audit_trail.prune(db)
    keep = "SELECT router, boot FROM boots ORDER BY at_s DESC LIMIT ?"
    db.execute(f"DELETE FROM boots WHERE (router, boot) NOT IN ({keep})", (MAX_BOOTS,))
