"""What outlives the control process, in one SQLite file: `state_dir/control.sqlite`.

    publication, weights   the last publication: versions and the weights by model, so that a restart moves nothing
    ticks                  what the page draws: one row a tick and model, for `RETENTION_S`
    slo_counts, boots      counts per SLO, and how far each router's counters are in them
    audit                  what operators did
    documents              JSON of other parts (alert states) by name

One writer: this process. Writing is cheap for the caller: rows wait in memory until `flush`, which a job calls in a
thread every few seconds. A flush that fails (disk full, locked, damaged) keeps its rows for the next one, within
bounds, and says so in `problem`; nothing here stops the control loop. A file that is damaged, newer than this program
or out of reach is left as it is: the store then works in memory, and says that too.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from router.policy import Publication, Weights
from slos.counts import Count
from slos.objective import Slo
from slos.revisions import revisions

log = logging.getLogger("trimtab.store")

FILE = "control.sqlite"
RETENTION_S = 24 * 3600.0
PRUNE_EVERY_S = 600.0
MAX_PENDING = 20_000
"""Tick rows that wait for a disk: a day of one model."""
MAX_AUDIT = 10_000
MAX_BOOTS = 256
BUSY_S = 1.0
READ_WAIT_S = 2.0

Row = TypeVar("Row")

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
)
"""What takes a file from version n to n + 1. Append only: `user_version` counts them."""


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
class AuditRow:
    """Something an operator did."""

    at_s: float
    actor: str
    action: str
    detail: str


class Newer(sqlite3.DatabaseError):
    """The file is from a later version of this program."""


class Store:
    """The file, or memory in its place. Safe to call from any thread."""

    def __init__(self, state_dir: Path | None) -> None:
        """Opens the file in `state_dir`, making both where they are missing; None: memory. Never raises."""
        self.problem = ""
        """Why the file is not, or not yet, up to date; empty if it is."""
        self.path = None if state_dir is None else state_dir / FILE
        self.on_disk = False
        self.errors = 0
        self.dropped_rows = 0
        self._lock = threading.Lock()
        """Guards what waits; never held while a disk works, so writing into memory never waits for one."""
        self._io = threading.Lock()
        """Guards the connection."""
        self._ticks: deque[TickRow] = deque()
        self._audit: deque[AuditRow] = deque(maxlen=MAX_AUDIT)
        self._publication: tuple[Publication, float] | None = None
        self._counts: _Counts | None = None
        self._documents: dict[str, tuple[float, str]] = {}
        self._pruned_s = 0.0
        self._memory_only = ""
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._db = _open(str(self.path))
                self.on_disk = True
                return
            except (sqlite3.Error, OSError) as error:
                self.errors += 1
                self._memory_only = f"{self.path} cannot be used, so nothing outlives this process: {_why(error)}"
                self.problem = self._memory_only
                log.error("%s. The file is left as it is; move it away and restart to begin a new one.", self.problem)
        self._db = _open(":memory:")

    # -- reading at the start ------------------------------------------------------------------------------------------

    def restore(self, slos: Sequence[Slo]) -> Restored:
        """What an earlier process left; counts only of SLOs that still mean the same. Never raises."""
        try:
            with self._io:
                return self._read(slos)
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            self._failed("could not be read at the start", error)
            return Restored()

    def _read(self, slos: Sequence[Slo]) -> Restored:
        row = self._db.execute("SELECT version, mode FROM publication").fetchone()
        publication = None
        if row is not None:
            weights = {
                str(model): Weights(float(w_ttft), float(w_tpot))
                for model, w_ttft, w_tpot in self._db.execute("SELECT model, w_ttft, w_tpot FROM weights")
            }
            publication = StoredPublication(int(row[0]), str(row[1]), weights)
        meant = revisions(slos)
        rows = self._db.execute("SELECT name, definition, valid, bad, excluded FROM slo_counts").fetchall()
        counts = {name: Count(*numbers) for name, text, *numbers in rows if meant.get(name) == text}
        boots = {
            (str(router), str(boot)): {
                name: Count(*numbers) for name, numbers in json.loads(text).items() if name in counts
            }
            for router, boot, text in self._db.execute("SELECT router, boot, counts FROM boots ORDER BY at_s")
        }
        return Restored(publication, counts, boots)

    # -- writing: into memory ------------------------------------------------------------------------------------------

    def put_publication(self, publication: Publication, at_s: float) -> None:
        """The publication that is in force now."""
        with self._lock:
            self._publication = (publication, at_s)

    def put_ticks(self, rows: Sequence[TickRow]) -> None:
        """Rows of one tick."""
        with self._lock:
            self._ticks.extend(rows)
            while len(self._ticks) > MAX_PENDING:
                self._ticks.popleft()
                self.dropped_rows += 1

    def put_counts(
        self,
        slos: Sequence[Slo],
        counts: Mapping[str, Count],
        boots: Mapping[tuple[str, str], Mapping[str, Count]],
        at_s: float,
    ) -> None:
        """Counts per SLO and how far each boot is in them: both of one moment."""
        with self._lock:
            self._counts = _Counts(revisions(slos), dict(counts), dict(boots), at_s)

    def audit(self, row: AuditRow) -> None:
        """Something an operator did."""
        log.info("%s by %s: %s", row.action, row.actor or "unknown", row.detail)
        with self._lock:
            self._audit.append(row)

    def put_document(self, name: str, body: str, at_s: float) -> None:
        """JSON of another part, kept by name; the newest one counts."""
        with self._lock:
            self._documents[name] = (at_s, body)

    # -- reading -------------------------------------------------------------------------------------------------------

    def document(self, name: str) -> str | None:
        """The document of that name, None without one. Never raises."""
        with self._lock:
            if name in self._documents:
                return self._documents[name][1]
        rows = self._all("SELECT body FROM documents WHERE name = ?", [name])
        return str(rows[0][0]) if rows else None

    def series(self, since_s: float, model: str | None = None) -> list[TickRow]:
        """Ticks since then, oldest first, those not yet written included. Never raises."""
        with self._lock:  # before the file is read: what is written in between is then seen twice, not never
            waiting = [row for row in self._ticks if row.at_s >= since_s]
        columns = ", ".join(f.name for f in fields(TickRow))
        found = self._all(f"SELECT {columns} FROM ticks WHERE at_s >= ? ORDER BY at_s", [since_s])
        rows = {(row[0], row[1]): TickRow(*row) for row in found}
        rows.update({(row.at_s, row.model): row for row in waiting})
        return [row for row in rows.values() if model is None or row.model == model]

    def audits(self, limit: int = 100) -> list[AuditRow]:
        """What operators did, newest first. Never raises."""
        with self._lock:
            waiting = list(self._audit)[::-1]
        found = self._all("SELECT at_s, actor, action, detail FROM audit ORDER BY id DESC LIMIT ?", [limit])
        return [*waiting, *(AuditRow(*row) for row in found)][:limit]

    @property
    def pending(self) -> int:
        """Rows that wait to be written."""
        return len(self._ticks) + len(self._audit)

    def _all(self, query: str, values: Sequence[object]) -> list[tuple]:  # type: ignore[type-arg]
        if not self._io.acquire(timeout=READ_WAIT_S):
            return []  # a disk that hangs must not hold readers
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            self._failed("could not be read", error)
            return []
        finally:
            self._io.release()

    # -- writing: into the file ----------------------------------------------------------------------------------------

    def flush(self, now_s: float) -> bool:
        """Write what waits, in one transaction; False if it failed or another flush is still at it. `now_s` is wall
        time. Never raises."""
        if not self._io.acquire(timeout=READ_WAIT_S):
            return False  # a disk that hangs must not pile up threads
        try:
            return self._flush(now_s)
        finally:
            self._io.release()

    def _flush(self, now_s: float) -> bool:
        with self._lock:
            ticks, audit, counts = list(self._ticks), list(self._audit), self._counts
            publication, documents = self._publication, dict(self._documents)
        prune = now_s - self._pruned_s >= PRUNE_EVERY_S
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                _write(self._db, ticks, audit, publication, counts, documents)
                if prune:
                    _prune(self._db, now_s)
        except sqlite3.Error as error:
            self._failed("could not be written", error)
            return False
        with self._lock:
            _drop(self._ticks, ticks)
            _drop(self._audit, audit)
            if self._publication is publication:
                self._publication = None
            if self._counts is counts:
                self._counts = None
            for name, entry in documents.items():
                if self._documents.get(name) is entry:
                    del self._documents[name]
        if prune:
            self._pruned_s = now_s
        if self.problem and self.problem != self._memory_only:
            log.warning("%s can be written again", self.path)
        self.problem = self._memory_only
        return True

    def close(self, now_s: float) -> None:
        """Write what waits and close the file. Never raises."""
        self.flush(now_s)
        try:
            self._db.close()
        except sqlite3.Error as error:
            self._failed("could not be closed", error)

    def _failed(self, what: str, error: Exception) -> None:
        self.errors += 1
        problem = f"{self.path or 'the store'} {what}: {_why(error)}"
        if problem != self.problem:
            log.error("%s", problem)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class _Counts:
    definitions: dict[str, str]
    counts: dict[str, Count]
    boots: dict[tuple[str, str], Mapping[str, Count]]
    at_s: float


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _open(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise Newer(f"it is of version {version}, this program knows up to {len(MIGRATIONS)}")
        damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {damage}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        for at in range(version, len(MIGRATIONS)):
            db.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[at]}; PRAGMA user_version = {at + 1}; COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


def _write(
    db: sqlite3.Connection,
    ticks: Sequence[TickRow],
    audit: Sequence[AuditRow],
    publication: tuple[Publication, float] | None,
    counts: _Counts | None,
    documents: Mapping[str, tuple[float, str]],
) -> None:
    places = ", ".join("?" * len(fields(TickRow)))
    db.executemany(f"INSERT OR REPLACE INTO ticks VALUES ({places})", [astuple(row) for row in ticks])
    db.executemany(
        "INSERT INTO audit (at_s, actor, action, detail) VALUES (?, ?, ?, ?)", [astuple(row) for row in audit]
    )
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


def _prune(db: sqlite3.Connection, now_s: float) -> None:
    db.execute("DELETE FROM ticks WHERE at_s < ?", (now_s - RETENTION_S,))
    db.execute("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (MAX_AUDIT,))
    keep = "SELECT router, boot FROM boots ORDER BY at_s DESC LIMIT ?"
    db.execute(f"DELETE FROM boots WHERE (router, boot) NOT IN ({keep})", (MAX_BOOTS,))


def _drop(queue: deque[Row], written: Sequence[Row]) -> None:
    """Take what is written off the queue, whose oldest rows may have been dropped meanwhile."""
    done = {id(row) for row in written}
    while queue and id(queue[0]) in done:
        queue.popleft()
