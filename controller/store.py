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
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from router.policy import Publication, Weights
from slos.counts import Count
from slos.objective import Slo
from slos.revisions import revisions

from .audit import MAX_AUDIT, AuditRow
from .database import copied, is_damage, open_database, salvaged, set_aside, why
from .ledgers import LedgerKey, SliceRow
from .stored import (
    CountsRow,
    OutboxRow,
    Restored,
    RevisionRow,
    StoredPublication,
    TickRow,
    prune,
    write,
    write_outbox,
    write_slices,
)

log = logging.getLogger("trimtab.store")

FILE = "control.sqlite"
PRUNE_EVERY_S = 600.0
MAX_PENDING = 20_000
"""Tick rows that wait for a disk: a day of one model."""
MAX_SLICES = 1_000_000
"""Slices that wait for a disk: four weeks of 120 SLOs."""
MIN_KEPT_S = 28 * 86_400.0
"""Slices are kept for so long, or as long as a declared budget lasts, and a day."""
REOPEN_S = 60.0
READ_WAIT_S = 2.0

Row = TypeVar("Row")


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
        self._counts: CountsRow | None = None
        self._documents: dict[str, tuple[float, str]] = {}
        self._slices: dict[tuple[LedgerKey, int], SliceRow] = {}
        self._outbox: tuple[OutboxRow, ...] | None = None
        self._kept_s = MIN_KEPT_S
        self._pruned_s = 0.0
        self._tried_s = float("-inf")
        self._memory_only = ""
        self._may_replace = False
        """What lies at `path` is in memory too, or there is nothing."""
        self._db = open_database(":memory:")
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._may_replace = not self.path.exists()
            self._use(self._opened(self.path))
        except (sqlite3.Error, OSError) as error:
            self._may_replace = self._may_replace or copied(self.path, self._db)
            self._works_in_memory(error)

    def _opened(self, path: Path) -> sqlite3.Connection:
        """The file, or a new one with what could be saved of it."""
        try:
            return open_database(str(path))
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.errors += 1
            aside = set_aside(path, datetime.now(UTC))
            db = open_database(str(path))
            rows = salvaged(aside, db)
            self.damage = (
                f"{path} was damaged ({why(error)}): {rows} rows of it were saved, the rest is in {aside.name}"
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
        self._memory_only = f"{self.path} cannot be used, so nothing outlives this process: {why(error)}"
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
            self._counts = CountsRow(revisions(slos), dict(counts), dict(boots), at_s)
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
        due = now_s - self._pruned_s >= PRUNE_EVERY_S
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                write(self._db, ticks, audit, publication, counts, documents)
                write_slices(self._db, slices.values())
                if outbox is not None:
                    write_outbox(self._db, outbox)
                if due:
                    prune(self._db, now_s, self._kept_s)
        except sqlite3.Error as error:
            self._failed("could not be written", error)
            if self.on_disk and self.path is not None and is_damage(error):
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
        if due:
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
            db = open_database(str(self.path))
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
        self._db = open_database(":memory:")
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
        problem = f"{self.path or 'the store'} {what}: {why(error)}"
        if problem != self.problem:
            log.error("%s", problem)
        self.problem = problem


def _drop(queue: deque[Row], written: Sequence[Row]) -> None:
    """Take what is written off the queue, whose oldest rows may have been dropped meanwhile."""
    done = {id(row) for row in written}
    while queue and id(queue[0]) in done:
        queue.popleft()
