"""What outlives the control process, in one SQLite file: `state_dir/control.sqlite`.

    publication, weights   the last publication: versions and the weights by model, so that a restart moves nothing
    ticks                  what the page draws: one row a tick and model, for `RETENTION_S`
    slo_counts, boots      counts per SLO, and how far each router's counters are in them
    slo_revisions, slices  the ledger: counts by slice of time, for what each SLO promised while they were counted
    audit                  what operators and the controller did (audit.py)
    documents, outbox      JSON of other parts (incidents, silences) by name; notices that nobody has taken yet

Counts, boots and slices are of one moment and land in one transaction, and a slice is written as what it has, not as
what was added: a process that is killed at any moment and a row that is written twice both change nothing.

One writer: this process. Writing is cheap for the caller: rows wait in memory until `flush`, which a job calls in a
thread every few seconds. A flush that fails (disk full, locked, damaged) keeps its rows for the next one, within
bounds, and says so in `problem`; nothing here stops the control loop.

A damaged file is set aside under a name with the time, what can be read of it goes into a new one, and `damage` says
so. A file that cannot be written, or not be reached, is read as far as that goes; the store works in memory, tries
again every minute, and writes all of it when the disk is back. One that is newer than this program is left as it is.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from router.policy import Publication, Weights
from slos.counts import Count
from slos.objective import Slo
from slos.revisions import revisions

from . import audit as audit_trail
from .audit import MAX_AUDIT, AuditRow
from .ledgers import LedgerKey, SliceRow

log = logging.getLogger("trimtab.store")

FILE = "control.sqlite"
RETENTION_S = 24 * 3600.0
PRUNE_EVERY_S = 600.0
MAX_PENDING = 20_000
"""Tick rows that wait for a disk: a day of one model."""
MAX_BOOTS = 256
MAX_SLICES = 1_000_000
"""Slices that wait for a disk: four weeks of 120 SLOs."""
MIN_KEPT_S = 28 * 86_400.0
"""Slices are kept for so long, or as long as a declared budget lasts, and a day."""
REOPEN_S = 60.0
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


class Newer(sqlite3.DatabaseError):
    """The file is from a later version of this program."""


class Damaged(sqlite3.DatabaseError):
    """The file is no database any more."""


class Store:
    """The file, or memory in its place. Safe to call from any thread."""

    def __init__(self, state_dir: Path | None) -> None:
        """Opens the file in `state_dir`, making both where they are missing; None: memory. Never raises."""
        self.problem = ""
        """Why the file is not, or not yet, up to date; empty if it is."""
        self.path = None if state_dir is None else state_dir / FILE
        self.on_disk = False
        self.damage = ""
        """What was done about a damaged file; empty if there was none."""
        self.errors = 0
        self.dropped_rows = 0
        self.lost = False
        """The file was replaced while this process ran: whoever has all of something should put it again."""
        self._lock = threading.Lock()
        """Guards what waits; never held while a disk works, so writing into memory never waits for one."""
        self._io = threading.Lock()
        """Guards the connection."""
        self._ticks: deque[TickRow] = deque()
        self._audit: deque[AuditRow] = deque(maxlen=MAX_AUDIT)
        self._publication: tuple[Publication, float] | None = None
        self._counts: _Counts | None = None
        self._documents: dict[str, tuple[float, str]] = {}
        self._slices: dict[tuple[LedgerKey, int], SliceRow] = {}
        self._outbox: tuple[OutboxRow, ...] | None = None
        self._kept_s = MIN_KEPT_S
        self._pruned_s = 0.0
        self._tried_s = float("-inf")
        self._memory_only = ""
        self._may_replace = False
        """What lies at `path` is in memory too, or there is nothing."""
        self._db = _open(":memory:")
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._may_replace = not self.path.exists()
            self._use(self._opened(self.path))
        except (sqlite3.Error, OSError) as error:
            self._may_replace = self._may_replace or _copied(self.path, self._db)
            self._works_in_memory(error)

    def _opened(self, path: Path) -> sqlite3.Connection:
        """The file, or a new one with what could be saved of it."""
        try:
            return _open(str(path))
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self.errors += 1
            aside = _set_aside(path, datetime.now(UTC))
            db = _open(str(path))
            rows = _salvaged(aside, db)
            self.damage = (
                f"{path} was damaged ({_why(error)}): {rows} rows of it were saved, the rest is in {aside.name}"
            )
            log.error("%s", self.damage)
            return db

    def _use(self, db: sqlite3.Connection) -> None:
        self._db.close()
        self._db = db
        self.on_disk = True
        self._memory_only = ""

    def _works_in_memory(self, error: Exception) -> None:
        self.errors += 1
        self._memory_only = f"{self.path} cannot be used, so nothing outlives this process: {_why(error)}"
        if self.problem != self._memory_only:
            log.error("%s. It is left as it is and tried again every minute.", self._memory_only)
        self.problem = self._memory_only

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

    def slices(self, keys: Iterable[LedgerKey]) -> list[SliceRow]:
        """What is stored of these histories or waits for the next flush, oldest first. Never raises."""
        wanted = list(keys)
        with self._lock:  # before the file is read: a flush in between is then seen twice, not never
            waiting = dict(self._slices)
        found: dict[tuple[LedgerKey, int], SliceRow] = {}
        for key in wanted:
            rows = self._all(
                "SELECT at, valid, bad, excluded FROM slices JOIN slo_revisions ON id = of "
                "WHERE slo = ? AND revision = ? AND slice_s = ?",
                [key.slo, key.revision, key.slice_s],
            )
            found |= {(key, int(at)): SliceRow(key, int(at), Count(*numbers)) for at, *numbers in rows}
        found |= {place: row for place, row in waiting.items() if row.key in wanted}
        return [found[place] for place in sorted(found)]

    def revisions(self) -> list[RevisionRow]:
        """What was counted, by SLO and by what it promised. Never raises."""
        rows = self._all(
            "SELECT slo, revision, slice_s, min(at), max(at), sum(valid), sum(bad), sum(excluded) "
            "FROM slices JOIN slo_revisions ON id = of GROUP BY of ORDER BY slo, max(at) DESC",
            [],
        )
        return [
            RevisionRow(slo, revision, slice_s, first * slice_s, (last + 1) * slice_s, Count(*numbers))
            for slo, revision, slice_s, first, last, *numbers in rows
        ]

    def last_slice_s(self) -> float | None:
        """When the newest slice began, seconds since the epoch; None without one. Never raises."""
        rows = self._all("SELECT max(at * slice_s) FROM slices JOIN slo_revisions ON id = of", [])
        return None if not rows or rows[0][0] is None else float(rows[0][0])

    def outbox(self) -> list[OutboxRow]:
        """Notices that wait, oldest first. Never raises."""
        with self._lock:
            if self._outbox is not None:
                return list(self._outbox)
        rows = self._all("SELECT id, sink, queued_s, body FROM outbox ORDER BY place", [])
        return [OutboxRow(*row) for row in rows]

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
        slices: Iterable[SliceRow] = (),
    ) -> None:
        """Counts per SLO, how far each boot is in them, and the slices that changed: all of one moment."""
        with self._lock:
            self._counts = _Counts(revisions(slos), dict(counts), dict(boots), at_s)
            self._kept_s = max([MIN_KEPT_S, *(slo.budget.over_s for slo in slos)]) + 86_400.0
            self._slices.update({(row.key, row.at): row for row in slices})
            while len(self._slices) > MAX_SLICES:
                del self._slices[next(iter(self._slices))]
                self.dropped_rows += 1

    def audit(self, row: AuditRow) -> None:
        """Something that an operator or the controller did."""
        log.info("%s by %s: %s", row.action, row.actor or "unknown", row.detail)
        with self._lock:
            self._audit.append(row)

    def put_document(self, name: str, body: str, at_s: float) -> None:
        """JSON of another part, kept by name; the newest one counts."""
        with self._lock:
            self._documents[name] = (at_s, body)

    def put_alerts(self, body: str, outbox: Iterable[OutboxRow], at_s: float) -> None:
        """Incidents as JSON and the notices that wait: both of one moment."""
        with self._lock:
            self._documents["alerts"] = (at_s, body)
            self._outbox = tuple(outbox)

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
        """What operators and the controller did, newest first. Never raises."""
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
        if self._memory_only:
            self._try_again(now_s)
        with self._lock:
            ticks, audit, counts = list(self._ticks), list(self._audit), self._counts
            publication, documents = self._publication, dict(self._documents)
            slices, outbox = dict(self._slices), self._outbox
        prune = now_s - self._pruned_s >= PRUNE_EVERY_S
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                _write(self._db, ticks, audit, publication, counts, documents)
                _write_slices(self._db, slices.values())
                if outbox is not None:
                    _write_outbox(self._db, outbox)
                if prune:
                    _prune(self._db, now_s, self._kept_s)
        except sqlite3.Error as error:
            self._failed("could not be written", error)
            if self.on_disk and self.path is not None and _is_damage(error):
                self._mend(self.path)
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
            for place, row in slices.items():
                if self._slices.get(place) is row:
                    del self._slices[place]
            if self._outbox is outbox:
                self._outbox = None
        if prune:
            self._pruned_s = now_s
        if self.problem and self.problem != self._memory_only:
            log.warning("%s can be written again", self.path)
        self.problem = self._memory_only
        return True

    def _try_again(self, now_s: float) -> None:
        """Move from memory to the file, if that can be had by now."""
        if self.path is None or 0.0 <= now_s - self._tried_s < REOPEN_S:
            return
        self._tried_s = now_s
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self._may_replace and self.path.exists():
                return  # it holds what this process has not read: a restart goes on with it
            db = _open(str(self.path))
            try:
                self._db.backup(db)
                db.execute("PRAGMA journal_mode = WAL")
            except BaseException:
                db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            self._works_in_memory(error)
            return
        self._use(db)
        log.warning("%s can be used again, and has all that was kept in memory", self.path)

    def _mend(self, path: Path) -> None:
        """Go on with a new file, with what could be saved of one that turned out to be damaged."""
        self._db.close()
        self._db = _open(":memory:")
        self.on_disk = False
        try:
            self._use(self._opened(path))
            self.lost = True
        except (sqlite3.Error, OSError) as error:
            self._may_replace = False
            self._works_in_memory(error)

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
            raise Damaged(f"it is damaged: {damage}")
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


def _write_slices(db: sqlite3.Connection, rows: Iterable[SliceRow]) -> None:
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


def _write_outbox(db: sqlite3.Connection, rows: Iterable[OutboxRow]) -> None:
    db.execute("DELETE FROM outbox")
    db.executemany("INSERT INTO outbox (id, sink, queued_s, body) VALUES (?, ?, ?, ?)", [astuple(row) for row in rows])


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, Damaged) or (
        code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    )


def _set_aside(path: Path, at: datetime) -> Path:
    """Move a file and what SQLite keeps beside it. Raises OSError."""
    aside = path.with_name(f"{path.name}.damaged-{at:%Y%m%dT%H%M%SZ}")
    for end in ("", "-wal", "-shm"):
        part = path.with_name(path.name + end)
        if part.exists():
            part.replace(aside.with_name(aside.name + end))
    return aside


def _salvaged(aside: Path, db: sqlite3.Connection) -> int:
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


def _copied(path: Path, db: sqlite3.Connection) -> bool:
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


def _prune(db: sqlite3.Connection, now_s: float, kept_s: float) -> None:
    db.execute(
        "DELETE FROM slices WHERE at < ? / (SELECT slice_s FROM slo_revisions WHERE id = slices.of)", (now_s - kept_s,)
    )
    db.execute("DELETE FROM slo_revisions WHERE id NOT IN (SELECT DISTINCT of FROM slices)")
    db.execute("DELETE FROM ticks WHERE at_s < ?", (now_s - RETENTION_S,))
    audit_trail.prune(db)
    keep = "SELECT router, boot FROM boots ORDER BY at_s DESC LIMIT ?"
    db.execute(f"DELETE FROM boots WHERE (router, boot) NOT IN ({keep})", (MAX_BOOTS,))


def _drop(queue: deque[Row], written: Sequence[Row]) -> None:
    """Take what is written off the queue, whose oldest rows may have been dropped meanwhile."""
    done = {id(row) for row in written}
    while queue and id(queue[0]) in done:
        queue.popleft()
