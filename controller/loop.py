"""The running control loop: reports in, ticks, publications out to whoever waits for one.

Everything here happens on one event loop, so there are no locks; the rules are in the pure modules (`intake`, `tick`,
`publish`). Control maths use the monotonic clock, the wall clock is for display and for the store.

The price is held, and the law not stepped, while a router reports a pin or the configuration pins, and for a window of
ticks after that or after a stall: what those ticks read was measured under another policy, or long ago.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isclose

from router.policy import Policy, Publication, Weights
from router.record import TurnRecord
from router.wire import Report
from slos.counts import Count
from slos.epoch import Epoch
from slos.objective import Slo
from slos.policy import Declaration
from slos.reduce import SloReading, driving

from .cells import WINDOW_TICKS, Tallies
from .config import ControlConfig
from .intake import Intake
from .laws import LAWS
from .ledgers import Ledgers, ledger_key
from .percentiles import Percentiles
from .publish import raised
from .scheduler import LATE_INTERVALS
from .store import Restored, Store, TickRow
from .tick import ControlState, ModelOutput, Outputs, tick

log = logging.getLogger("trimtab.control")

MAX_POLLERS = 256
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


class State(StrEnum):
    """What the loop is doing."""

    STARTING = "starting"
    """No tick yet."""
    ACTIVE = "active"
    """The law moves the price."""
    SETTLING = "settling"
    """The price is held until the window holds only turns of the present policy."""
    PINNED = "pinned"
    """An operator fixed the share of local turns: the price is held."""
    OBSERVING = "observing"
    """No law: readings only."""
    NO_ROUTERS = "no_routers"
    """No router reports, so there is nothing to go by. Routers go on with the last publication."""


@dataclass(frozen=True, slots=True)
class TickTurns:
    """One model's turns of the last tick."""

    turns: int = 0
    later_turns: int = 0
    local_turns: int = 0
    waiting: int = 0


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
        self.percentiles = Percentiles(config.slos)
        """Each SLO's percentile over the last minutes, to be shown."""
        self.law = LAWS[config.law]() if config.law is not None and config.moves else None
        self._control = ControlState(first_publication(config, restored), None)
        self.continued = restored.publication is not None
        """The prices are those of an earlier process."""
        self.started_s = self.ticked_s = monotonic()
        self.started_at_s = self.published_at_s = wall()
        self.published_s = self.started_s
        self.state = State.STARTING
        self.outputs: Mapping[str, ModelOutput] = {}
        """Of the last tick, by model."""
        self.tick_turns: dict[str, TickTurns] = {}
        self.publications = 1
        self.jumps = 0
        """Publications made because a router acted on a version that this process had not published."""
        self.stalls = 0
        self.observer_errors = 0
        self.pollers = 0
        self._settling = 0
        self._seen: dict[str, TickTurns] = {}
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
        if self.ticks and since_s > LATE_INTERVALS * self.config.tick_s:
            self.stalls += 1
            log.warning("no tick for %.1f s: the price is held for %d ticks", since_s, WINDOW_TICKS)
            self._settling = WINDOW_TICKS
        self.state = self._next_state(now_s)
        waiting = self.intake.waiting(now_s)
        law = self.law if self.state is State.ACTIVE else None
        before = replace(self._control, law=law)
        engine = None if self.engine is None else self.engine()
        self._control, outputs = tick(before, self.intake.tallies, waiting, now_s, engine)
        self.ticked_s = now_s
        self.outputs = outputs.models
        for model, tally in self.intake.tallies.items():
            late = sum(turn.model == model for turn in waiting)
            self.tick_turns[model] = self._turns(model, tally, late)
        if outputs.publication is not None:
            self._published()
        at_s = self.wall()
        self.store.put_ticks([self._row(model, output, at_s, now_s) for model, output in outputs.models.items()])
        self.ledgers.take(self.intake.measured(), now_s, at_s)
        counts = self.intake.counts()
        for observer in self.observers:
            try:
                observer(now_s, outputs, counts)
            except Exception:
                self.observer_errors += 1
                log.exception("an observer of ticks went wrong")
        return outputs

    def _next_state(self, now_s: float) -> State:
        if self.config.pin_x is not None or self.intake.pins(now_s):
            self._settling = WINDOW_TICKS
            return State.PINNED
        if self.law is None:
            return State.OBSERVING
        if not self.intake.speaking(now_s):
            return State.NO_ROUTERS
        if self._settling > 0:
            self._settling -= 1
            return State.SETTLING
        return State.ACTIVE

    def _turns(self, model: str, tally: Tallies, waiting: int) -> TickTurns:
        before = self._seen.get(model, TickTurns())
        now = TickTurns(tally.turns, tally.later_turns, tally.local_turns)
        self._seen[model] = now
        return TickTurns(
            now.turns - before.turns,
            now.later_turns - before.later_turns,
            now.local_turns - before.local_turns,
            waiting,
        )

    def _row(self, model: str, output: ModelOutput, at_s: float, now_s: float) -> TickRow:
        ttft, tpot = sides(self.config.slos, model, output)
        turns = self.tick_turns[model]
        relief = output.feasibility.relief
        return TickRow(
            at_s,
            model,
            None if ttft is None else ttft.value_s,
            None if tpot is None else tpot.value_s,
            None if ttft is None else ttft.slo.threshold_s,
            None if tpot is None else tpot.slo.threshold_s,
            self.policy.weights_for(model).price,
            self.intake.qps(model, now_s),
            turns.turns,
            turns.later_turns,
            turns.local_turns,
            turns.waiting,
            output.action.value,
            self.state.value,
            None if relief is None else relief.value,
        )

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


def first_publication(config: ControlConfig, restored: Restored) -> Publication:
    """What a process starts with: the configuration, and the prices that an earlier process left, a version higher."""
    stored = restored.publication
    version = 1 if stored is None else stored.version + 1
    kept: dict[str, Weights] = {}
    if stored is not None and stored.mode == config.mode:
        kept = {model: weights for model, weights in stored.weights.items() if 0 < weights.price < float("inf")}
    policy = Policy(
        version,
        dict(config.tables),
        Weights.from_price(config.start_price),
        model_weights=kept,
        mode=config.mode,
        pin_x=config.pin_x,
        provenance="start" if stored is None else f"start, with the prices of version {stored.version}",
    )
    return Publication(version, {"main": policy})


def sides(slos: tuple[Slo, ...], model: str, output: ModelOutput | None) -> tuple[SloReading | None, SloReading | None]:
    """The TTFT and the TPOT reading to show: those that bind, else those first declared, without a value."""
    drives = driving(slos, model)
    ttft = None if output is None else output.binding.ttft
    tpot = None if output is None else output.binding.tpot
    if ttft is None and drives.ttft:
        ttft = SloReading(drives.ttft[0], None)
    if tpot is None and drives.tpot:
        tpot = SloReading(drives.tpot[0], None)
    return ttft, tpot
