"""The router's side of the line to the control process: records go up, publications come down.

The control process may be gone for any time. Reports wait (bounded, oldest records dropped and counted), the
last publication stays in force and lies on disk, and a pin file works without anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from .artefact import ArtefactError, load
from .core import RouterCore
from .membership.roster import Roster
from .membership.view import node_view, source_views
from .metrics import RouterMetrics, page
from .nodes import NodeWatch
from .pin import read_pin
from .policy import Publication, Tables
from .record import TurnRecord
from .wire import (
    MAX_RECORDS,
    Report,
    WaitingTurn,
    WireError,
    acting_prices,
    publication_from_wire,
    report_to_json,
)

log = logging.getLogger("trimtab.outbox")

REPORT_S = 1.0
FLUSH_S = 3.0
PIN_S = 0.5
MAX_WAITING_RECORDS = 20_000
LONG_POLL_S = 25.0
BACKOFF_S = (0.2, 0.5, 1.0, 2.0)
NEVER_TAKEN = frozenset({400, 413, 422})
"""A report that is answered so is let go; any other refusal (a token, a full store) may pass."""


class TableCache:
    """Parsed tables by digest, in memory and beside the publication on disk."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._tables: dict[str, Tables] = {}
        self.documents: dict[str, str] = {}

    @property
    def digests(self) -> tuple[str, ...]:
        """What is here."""
        return tuple(self._tables)

    def add(self, document: str, name: str) -> Tables:
        """Parse and keep a document. Raises ArtefactError."""
        artefact = load(document, name)
        self._tables[artefact.digest] = artefact.tables()
        self.documents[artefact.digest] = document
        return self._tables[artefact.digest]

    def get(self, digest: str, document: str | None) -> Tables:
        """Tables by digest, from the document that came along, from memory or from disk. Raises WireError."""
        if digest in self._tables:
            return self._tables[digest]
        if document is None and self._folder is not None and len(digest) == 64 and digest.isalnum():
            path = self._folder / f"table-{digest}.json"
            document = path.read_text(encoding="utf-8") if path.is_file() else None
        if document is None:
            raise WireError(f"no table with digest {digest[:12]}…")
        try:
            tables = self.add(document, f"table {digest[:12]}")
        except ArtefactError as error:
            raise WireError(str(error)) from None
        if digest not in self._tables:
            raise WireError(f"the table sent as {digest[:12]}… has another digest")
        return tables


class LastPublication:
    """The publication on disk, from which a router starts alone. Writing is atomic; a bad file is said and
    ignored."""

    def __init__(self, folder: Path, cache: TableCache) -> None:
        self._folder = folder
        self._cache = cache
        self._saved: set[str] = set()
        self.problem = ""
        """What the last try to write or read it met; empty if that went well."""
        self.path = folder / "publication.json"

    def save(self, wire: dict[str, object]) -> None:
        """Keep it; a full or read-only disk is logged, not fatal."""
        try:
            for digest, document in self._cache.documents.items():
                if digest not in self._saved:  # once a process: a damaged file of an earlier one is replaced
                    _write(self._folder / f"table-{digest}.json", document)
                    self._saved.add(digest)
            _write(self.path, json.dumps({**wire, "tables": {}}))
            self.problem = ""
        except OSError as error:
            self.problem = f"cannot be written: {error.strerror}"
            log.error("the publication could not be saved in %s: %s; serving on", self._folder, error.strerror)

    def load(self) -> Publication | None:
        """The last one, or None."""
        try:
            return publication_from_wire(json.loads(self.path.read_text(encoding="utf-8")), self._cache.get)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.problem = f"cannot be used: {error}"
            log.error("%s %s; starting from the settings", self.path, self.problem)
            return None


class Outbox:
    """Reports up, publications down, the pin file."""

    def __init__(
        self,
        core: RouterCore,
        watch: NodeWatch,
        metrics: RouterMetrics,
        cache: TableCache,
        last: LastPublication,
        *,
        name: str,
        boot: str,
        control_url: str | None,
        token: str | None,
        state_dir: Path,
        now_s: Callable[[], float],
        roster: Roster | None = None,
    ) -> None:
        self._core = core
        self._roster = roster
        self._watch = watch
        self._metrics = metrics
        self._cache = cache
        self._last = last
        self._name = name
        self._boot = boot
        self._control_url = control_url
        self._token = token
        self._state_dir = state_dir
        self._pin_problem = ""
        self.on_update: Callable[[], None] = lambda: None
        """For gauges of others, before each report."""
        self._now_s = now_s
        self._records: deque[TurnRecord] = deque()
        self._unacked: Report | None = None
        self._seq = 0
        self._dropped = 0
        self._full = asyncio.Event()
        self.control_seen_s: float | None = None
        """When the control process last answered."""

    def add(self, record: TurnRecord) -> None:
        """A turn ended."""
        if len(self._records) >= MAX_WAITING_RECORDS:
            self._records.popleft()
            self._dropped += 1
        self._records.append(record)
        if len(self._records) >= MAX_RECORDS:
            self._full.set()

    async def run(self) -> None:
        """All loops, for ever."""
        loops = [self._pin_loop]
        if self._control_url is not None:
            loops += [self._report_loop, self._policy_loop]
        await asyncio.gather(*map(self._keep_up, loops))

    async def _keep_up(self, loop: Callable[[], Awaitable[None]]) -> None:
        """A mistake in one loop ends neither it nor the others."""
        while True:
            try:
                await loop()
            except Exception:
                log.exception("failed inside the router")
            await asyncio.sleep(BACKOFF_S[-1])

    def check_pin(self) -> None:
        """Look at the pin file once."""
        try:
            pin = read_pin(self._state_dir)
            self._pin_problem = ""
        except ValueError as error:
            if str(error) != self._pin_problem:  # once, not twice a second
                self._pin_problem = str(error)
                log.error("%s; what was in force stays", error)
            return
        x = None if pin is None else pin.x
        if x != self._core.current.pin_x:
            log.warning("pinned to x=%g" if x is not None else "pin lifted", *([x] if x is not None else []))
            self._core.current.pin(x)

    def update_gauges(self) -> None:
        """Gauges that follow the core."""
        metrics, core = self._metrics, self._core
        metrics.in_flight.set(len(core.flights()))
        metrics.misses.set(core.residency_misses)
        metrics.bound(core, self._now_s())
        metrics.policy_version.set(core.current.publication.version)
        metrics.pinned.set(core.current.pin_x is not None)
        metrics.dropped.set(self._dropped)
        metrics.state_problem.labels("publication").set(bool(self._last.problem))
        metrics.state_problem.labels("pin").set(bool(self._pin_problem))
        metrics.believe(core)
        metrics.churn(core, self._now_s())
        self.on_update()
        metrics.members(core, self._roster, self._now_s())

    async def _pin_loop(self) -> None:
        while True:
            self.check_pin()
            await asyncio.sleep(PIN_S)

    async def _report_loop(self) -> None:
        failures = 0
        async with self._session() as session:
            while True:
                if failures == 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._full.wait(), REPORT_S)
                else:
                    await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
                self._full.clear()
                report = self._unacked or self._next_report()
                if await self._send(session, report):
                    self._unacked = None
                    failures = 0
                else:
                    self._unacked = report
                    failures += 1

    async def flush(self) -> None:
        """Send what is left, once; for the end of the process."""
        if self._control_url is None:
            return
        async with self._session(total_s=FLUSH_S) as session:
            while self._unacked is not None or self._records:
                if not await self._send(session, self._unacked or self._next_report()):
                    return
                self._unacked = None

    def _next_report(self) -> Report:
        self.update_gauges()
        now_s = self._now_s()
        taken = [self._records.popleft() for _ in range(min(MAX_RECORDS, len(self._records)))]
        if len(self._records) >= MAX_RECORDS:
            self._full.set()
        self._seq += 1
        core = self._core
        return Report(
            router=self._name,
            boot=self._boot,
            seq=self._seq,
            policy_version=core.current.publication.version,
            pin_x=core.current.pin_x,
            records=tuple(taken),
            waiting=tuple(WaitingTurn(w.model, w.turn, w.streaming, w.age_s, w.terms) for w in core.waiting(now_s)),
            counts=core.counts.snapshot(),
            revisions=core.counts.revisions,
            nodes=tuple(
                node_view(core, self._roster, node, self._watch.addresses[node.id].url, now_s)
                for node in core.nodes.values()
            ),
            sources=source_views(self._roster, now_s),
            dropped_records=self._dropped,
            metrics=page(self._metrics.registry),
            prices=acting_prices(core.current.publication),
        )

    async def _send(self, session: aiohttp.ClientSession, report: Report) -> bool:
        body = report_to_json(report)
        try:
            async with session.post(f"{self._control_url}/internal/v1/turns", data=body) as response:
                text = await response.text(errors="replace")
                if response.status == 200:
                    self.control_seen_s = self._now_s()
                    self._metrics.reports.labels("taken").inc()
                    return True
        except (aiohttp.ClientError, TimeoutError, OSError):
            self._metrics.reports.labels("unreachable").inc()
            return False
        self._metrics.reports.labels("refused").inc()
        log.error("the control process refused a report (%d): %.200s", response.status, text)
        if response.status not in NEVER_TAKEN:
            return False
        self._dropped += len(report.records)
        return True

    async def _policy_loop(self) -> None:
        failures = 0
        async with self._session(LONG_POLL_S + 10) as session:
            while True:
                try:
                    await self._poll(session)
                    failures = 0
                except (aiohttp.ClientError, TimeoutError, OSError):
                    failures += 1
                except (WireError, ValueError) as error:
                    log.error("a publication cannot be used: %s; the last good one stays", error)
                    failures += 1
                # Never at once, whatever the answer was: a control process that has nothing newer may answer at once.
                await asyncio.sleep(BACKOFF_S[min(max(1, failures), len(BACKOFF_S)) - 1])

    async def _poll(self, session: aiohttp.ClientSession) -> None:
        params = {"after": str(self._core.current.published_version), "have": ",".join(self._cache.digests)}
        async with session.get(f"{self._control_url}/internal/v1/policy", params=params) as response:
            if response.status == 204:
                return
            if response.status != 200:
                raise aiohttp.ClientError(f"status {response.status}")
            wire = json.loads(await response.read())
        publication = publication_from_wire(wire, self._cache.get)
        if self._core.current.swap(publication):
            self._last.save(wire)

    def _session(self, total_s: float = 10.0) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=total_s))


def _write(path: Path, text: str) -> None:
    """Atomic: a reader sees the old file or the new one."""
    partial = path.with_suffix(path.suffix + f".{os.getpid()}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
