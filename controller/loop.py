"""The running control loop: reports in, ticks, publications out to whoever waits for one.

Everything here happens on one event loop, so there are no locks; the rules are in the pure modules (`intake`, `tick`,
`publish`). Control maths use the monotonic clock, the wall clock is for display and for the store.

Whether a law may move a price, and what happens to it otherwise, is `guard`'s and `safety`'s business: the loop says
what is so around a tick, and carries out what comes back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isclose

from router.policy import Policy, Publication
from router.record import TurnRecord
from router.wire import Report
from slos.counts import Count
from slos.epoch import Epoch
from slos.objective import Slo
from slos.policy import Declaration
from slos.reduce import SloReading

from .audit import CONTROLLER, AuditRow
from .commands import Command
from .config import ControlConfig
from .guard import Around, Guard, Guarded, Guards, guarded
from .intake import SILENT_S, Intake
from .kept import DOCUMENT, Kept, first_publication, from_json, to_json
from .laws import LAWS
from .laws.protocol import Law
from .ledgers import Ledgers, ledger_key
from .percentiles import Percentiles
from .publish import published, raised
from .rows import TickTurns, tick_row
from .safety import Safety, foremost
from .scheduler import LATE_INTERVALS
from .store import Store
from .stored import Restored
from .table_drift import TableDrift
from .table_words import raised_words
from .tick import ControlState, ModelOutput, Outputs, Steering
from .watch import misses

log = logging.getLogger("trimtab.control")

MAX_POLLERS = 256
TABLE_DRIFT = "table_drift"
"""The document that says what residuals of the tables were learnt."""
SAME_PRICE = 1e-6
"""Relative; a price has been through JSON and a division or two."""

Observer = Callable[[float, Outputs, Mapping[str, Count]], None]
"""Called after each tick with the monotonic time, what the tick saw, and the cumulative counts per SLO."""


Listener = Callable[[tuple[TurnRecord, ...], float], None]
"""Called with the records of a report, once each, and the monotonic time."""

EngineReadings = Callable[[], Mapping[str, Sequence[SloReading]]]
"""By model, what the engines' own metrics say (`control.signal: engine`)."""


class TooManyPollers(Exception):
    """More routers wait for a publication than are served at once."""


class ControlLoop:
    """The state of one control process."""

    def __init__(
        self,
        config: ControlConfig,
        store: Store,
        restored: Restored | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.store = store
        self.monotonic = monotonic
        self.wall = wall
        self.observers: list[Observer] = []
        self.listeners: list[Listener] = []
        """Told of every record that is folded."""
        self.engine: EngineReadings | None = None
        """Set, the law runs on these readings instead of the routers' own."""
        self.reload_failed = ""
        """Why the SLOs' file cannot be used, so that those read before stay; empty if it can."""
        self.redeclared: list[Callable[[Declaration], None]] = []
        """Called after a reload of the SLOs, with what is declared now."""
        self.slo_details: Callable[[Slo], dict[str, object]] | None = None
        """Set, what else is told of an SLO beside its counts."""
        self.sections: dict[str, Callable[[], object]] = {}
        """More of the status document, by key; each gives a JSON value."""
        restored = restored or Restored()
        self.intake = Intake(config.slos, {key.model for key in config.tables})
        self.intake.restore(restored.counts, restored.boots)
        epoch = Epoch(wall(), monotonic(), store.last_slice_s())
        rows = store.slices([ledger_key(slo) for slo in config.slos])
        self.ledgers = Ledgers(config.slos, epoch, rows, self.intake.measured())
        """What was counted, by slices of time, for the days that budgets last."""
        self.table_drift = TableDrift.from_json(store.document(TABLE_DRIFT))
        """Whether the tables still predict what is measured; nothing that moves a price reads it."""
        self.percentiles = Percentiles(config.slos)
        """Each SLO's percentile over the last minutes, to be shown."""
        kept = from_json(store.document(DOCUMENT))
        self.guards: Guards = kept.guards
        """By model: safety state, bounds, whether weights are held."""
        self.since_s: dict[str, float] = dict(kept.since_s)
        """Wall time of the last change of the safety state."""
        held = [model for model, guard in self.guards.items() if guard.held]
        law = LAWS[config.law](priority=config.priority) if config.law is not None and config.moves else None
        learnt = {} if law is None else {name: Steering(law.remembering(each)) for name, each in kept.laws.items()}
        self._control = ControlState(first_publication(config, restored, held), law, models=learnt)
        self.continued = restored.publication is not None
        """The prices are those of an earlier process."""
        self.started_s = self.ticked_s = monotonic()
        self.started_at_s = self.published_at_s = wall()
        self.published_s = self.started_s
        self.outputs: Mapping[str, ModelOutput] = {}
        """Of the last tick, by model."""
        self.tick_turns: dict[str, TickTurns] = {}
        self.publications = 1
        self.jumps = 0
        """Publications made because a router acted on a version that this process had not published."""
        self.stalls = 0
        self.observer_errors = 0
        self.pollers = 0
        self._seen: dict[str, TickTurns] = {}
        self._judged = self.intake.counts()
        self._reports = 0
        self._changed = asyncio.Event()
        self._closing = False
        store.put_publication(self.publication, self.published_at_s)

    @property
    def publication(self) -> Publication:
        """What is in force."""
        return self._control.publication

    @property
    def policy(self) -> Policy:
        """The main arm of what is in force."""
        return self.publication.arms["main"]

    @property
    def law(self) -> Law | None:
        """As it starts with a model; None where none may move the price."""
        return self._control.law

    @property
    def ticks(self) -> int:
        """Ticks so far."""
        return self._control.ticks

    def late(self, now_s: float) -> bool:
        """No tick for three intervals."""
        return now_s - self.ticked_s > LATE_INTERVALS * self.config.tick_s

    # -- reports -------------------------------------------------------------------------------------------------------

    def accept(self, report: Report, now_s: float) -> int:
        """Fold one report; returns the acknowledged sequence number. Raises IntakeFull."""
        first = self.intake.is_first(report)
        folded = self.intake.totals.reports
        accepted = self.intake.accept(report, now_s)
        if self.intake.totals.reports > folded:
            self.percentiles.fold(report.records, now_s)
            self.table_drift.take(report.records, self.policy)
            self._tell(report.records, now_s)
        version = self.publication.version
        # A router that this process has not met may act on a version that an earlier process published, not stored.
        if report.policy_version > version or (first and report.policy_version == version and self._differs(report)):
            self.jumps += 1
            why = f"{report.router} acts on version {report.policy_version}, which an earlier process published"
            log.warning("%s: going on above it", why)
            self._publish(raised(self.publication, report.policy_version + 1, report.prices, why))
        return accepted

    def _tell(self, records: tuple[TurnRecord, ...], now_s: float) -> None:
        for listener in self.listeners:
            try:
                listener(records, now_s)
            except Exception:
                self.observer_errors += 1
                log.exception("a listener to records went wrong")

    def _differs(self, report: Report) -> bool:
        """The router's prices are not those that were published under its version."""
        return any(
            not isclose(price, self.policy.weights_for(model).price, rel_tol=SAME_PRICE)
            for model, price in report.prices.items()
            if model
        )

    def redeclare(self, declaration: Declaration) -> None:
        """Swap what is promised, between two ticks: configuration, intake and readings, then whoever wants to know.

        Counts and windows of an SLO that still means the same go on; one that changed begins anew. An observer that
        goes wrong does not keep the others from the news.
        """
        self.save_counts()
        self.config = replace(self.config, slos=declaration.slos)
        self.intake.redeclare(declaration.slos)
        rows = self.store.slices([ledger_key(slo) for slo in declaration.slos])
        self.ledgers.redeclare(declaration.slos, rows, self.intake.measured())
        self.percentiles.redeclare(declaration.slos)
        for told in self.redeclared:
            try:
                told(declaration)
            except Exception:
                self.observer_errors += 1
                log.exception("an observer of the declaration went wrong")

    # -- ticks ---------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> Outputs | None:
        """Run one tick; None if the last one was less than half an interval ago (the watchdog and the scheduler may
        both come after a stall)."""
        since_s = now_s - self.ticked_s
        if self.ticks and since_s < self.config.tick_s / 2:
            return None
        stalled = bool(self.ticks) and since_s > LATE_INTERVALS * self.config.tick_s
        if stalled:
            self.stalls += 1
            log.warning("no tick for %.1f s: the price is held until the readings are fresh", since_s)
        waiting = self.intake.waiting(now_s)
        engine = None if self.engine is None else self.engine()
        around = self._around(now_s, stalled)
        result = guarded(self._control, self.guards, self.intake.tallies, waiting, now_s, around, engine)
        self._control, outputs = result.control, result.outputs
        self.ticked_s = now_s
        self.outputs = outputs.models
        for model, tally in self.intake.tallies.items():
            late = sum(turn.model == model for turn in waiting)
            self.tick_turns[model] = TickTurns.between(self._seen.get(model, TickTurns()), tally, late)
            self._seen[model] = TickTurns.of(tally)
        if outputs.publication is not None:
            self._published()
        at_s = self.wall()
        self._guard(result, at_s)
        self._drift(at_s)
        self.store.put_ticks(
            [
                tick_row(
                    at_s,
                    model,
                    output,
                    self.tick_turns[model],
                    slos=self.config.slos,
                    price=self.policy.weights_for(model).price,
                    qps=self.intake.qps(model, now_s),
                    state=self.guards[model].safety.state,
                )
                for model, output in outputs.models.items()
            ]
        )
        self.ledgers.take(self.intake.measured(), now_s, at_s)
        counts = self.intake.counts()
        for observer in self.observers:
            try:
                observer(now_s, outputs, counts)
            except Exception:
                self.observer_errors += 1
                log.exception("an observer of ticks went wrong")
        return outputs

    def _around(self, now_s: float, stalled: bool) -> Around:
        """What is so around this tick. A router has as long to be heard after a start as it may be silent later."""
        routers = bool(self.intake.speaking(now_s)) or now_s - self.started_s < SILENT_S
        before, self._judged = self._judged, self.intake.counts()
        reports, self._reports = self._reports, self.intake.totals.reports
        return Around(
            routers=routers,
            heard=self._reports > reports,
            pinned=self.config.pin_x is not None or bool(self.intake.pins(now_s)),
            observing=self.config.observe,
            stalled=stalled,
            busy=self.intake.busy(now_s),
            misses={model: misses(self.config.slos, model, before, self._judged) for model in self.intake.tallies},
        )

    def _guard(self, result: Guarded, at_s: float) -> None:
        """Take what a guarded tick made of the guards, put what happened on record, and have them stored."""
        for note in result.notes:
            self.store.audit(AuditRow(at_s, CONTROLLER, note.action, f"{note.model}: {note.detail}"))
        for model, guard in result.guards.items():
            if model not in self.since_s or guard.safety.since_tick != self.guard(model).safety.since_tick:
                self.since_s[model] = at_s
        self._keep(result.guards, at_s)

    def _drift(self, at_s: float) -> None:
        """Look whether measured latencies have left the tables, and put it on record."""
        for drifted in self.table_drift.tick(at_s):
            told = raised_words(drifted)
            log.warning("%s: %s", drifted.model, told)
            self.store.audit(AuditRow(at_s, CONTROLLER, "table_drift", f"{drifted.model}: {told}"))
        self.store.put_document(TABLE_DRIFT, self.table_drift.to_json(), at_s)

    # -- operators -----------------------------------------------------------------------------------------------------

    def guard(self, model: str) -> Guard:
        """What is kept of one model beside its price."""
        return self.guards.get(model, Guard())

    @property
    def safety(self) -> Safety:
        """The state of the model that is worst off."""
        return foremost([self.guard(model).safety for model in self.intake.tallies])

    def obey(self, command: Command, actor: str) -> None:
        """Carry out an operator's command, and put it on record."""
        if command.policy is not None:
            self._publish(published(self.publication, command.policy))
        at_s = self.wall()
        self.store.audit(AuditRow(at_s, actor, command.action, f"{command.model}: {command.detail}"))
        self._keep({**self.guards, command.model: command.guard}, at_s)

    def _keep(self, guards: Guards, at_s: float) -> None:
        self.guards = guards
        laws = {name: each.law.memory for name, each in self._control.models.items() if each.law is not None}
        self.store.put_document(DOCUMENT, to_json(Kept(guards, self.since_s, laws)), at_s)

    # -- publications --------------------------------------------------------------------------------------------------

    async def newer(self, after: int, timeout_s: float) -> Publication | None:
        """The publication, as soon as its version exceeds `after`; None if that does not happen in time. Raises
        TooManyPollers."""
        if self.publication.version > after:
            return self.publication
        if self.pollers >= MAX_POLLERS:
            raise TooManyPollers(f"{MAX_POLLERS} routers wait for a publication already")
        self.pollers += 1
        try:
            async with asyncio.timeout(timeout_s):
                while self.publication.version <= after and not self._closing:
                    await self._changed.wait()
        except TimeoutError:
            return None
        finally:
            self.pollers -= 1
        return self.publication if self.publication.version > after else None

    def close(self) -> None:
        """Let everyone go who waits for a publication."""
        self._closing = True
        self._wake()

    def save_counts(self) -> None:
        """Hand the counts and the slices that they went into to the store, for its next flush."""
        at_s = self.wall()
        self.ledgers.take(self.intake.measured(), self.monotonic(), at_s)
        changed = self.ledgers.changed()
        if self.store.lost:
            self.store.lost = False
            changed = self.ledgers.all()
            self.store.put_publication(self.publication, self.published_at_s)
        self.store.put_counts(self.config.slos, self.intake.counts(), self.intake.boots(), at_s, changed)

    def _publish(self, publication: Publication) -> None:
        self._control = replace(self._control, publication=publication)
        self._published()

    def _published(self) -> None:
        self.publications += 1
        self.published_s, self.published_at_s = self.monotonic(), self.wall()
        self.store.put_publication(self.publication, self.published_at_s)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
