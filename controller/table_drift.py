"""Whether the table still describes the fleet, by model and realised route: an alarm for people, which moves no price.

Of every answered later turn the residual ln(measured TTFT / predicted TTFT), backlogs included (`prediction`), by the
table in force. Residuals come in bursts, so what an alarm is given (`estimators.drift`) is their mean: of all since the
last one, at a tick, once there are `LEAST_TURNS`. Latencies that leave what was learnt are a drift. It stands until the
tables change, or until a new level has been learnt that is within `ALIKE` of the old one.

A table that is off by a constant does not drift: that is learnt, and shown (`level`). What drifts while a reference is
learnt is taken for the reference. Turns that met a long backlog tell of queues: in an overload their residuals leave
the others' by 30 % either way, on the same hardware. Left out with them: turns that were planned more than once or
decoded elsewhere than they were decided for, and replicas. Nothing here sees what a local prompt costs the others
(TPOT), or says which of the table's constants is wrong. docs/decisions/0045 has what was measured.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from estimators.drift import DELTA, Drift, DriftAlarm, residual
from estimators.protocol import State
from router.latency import LatencyModel
from router.policy import ANY_MODEL, Policy, TableKey, Tables
from router.record import TurnRecord
from router.turn import Route

from .intake import MAX_MODELS
from .prediction import backlog_ms, nodes_ms

log = logging.getLogger("trimtab.control")

LEAST_TURNS = 10
"""Of a mean. A single turn says little: at a low rate a tick has one or two."""
MOST_BACKLOG = 0.5
"""Before a turn, over what the nodes take for it: with more its TTFT says more about queues than about the table."""
LEARN = 60
"""Means: five minutes where ticks have turns enough."""
LEAST_SD = 0.15
"""In ln, of a mean. Means of a fleet deviate by .03 to .08; a table that is a few percent off still decides well."""
ALIKE = DELTA * LEAST_SD
"""In ln: some 4 %. The alarm adds up what goes beyond it."""
RECENT = 12
"""Means that `level` remembers: a minute, where ticks have turns enough."""


@dataclass(frozen=True, slots=True)
class Drifted:
    """One route's latencies have left the table since `at_s`. `before` is the level that had been learnt, in ln."""

    model: str
    route: Route
    drift: Drift
    at_s: float
    before: float


@dataclass(frozen=True, slots=True)
class Fit:
    """How the table fits one route now. Levels in ln of measured over predicted TTFT."""

    model: str
    route: Route
    level: float | None
    """Of the last means; None before the first."""
    reference: float | None
    """What the alarm compares with; None while it is learnt."""
    drifted: Drifted | None
    raised: tuple[tuple[Drift, int], ...]
    """Alarms since this process began."""


class TableDrift:
    """All models and routes, at most `MAX_MODELS` models. `take` records as they come, `tick` when the loop does."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._tables: dict[TableKey, Tables] | None = None

    def take(self, records: Iterable[TurnRecord], policy: Policy) -> None:
        """Fold ended turns, under the policy in force. New tables of a model begin anew."""
        if policy.tables is not self._tables:
            self._tables = policy.tables
            for name, known in list(self._models.items()):
                if known.tables != _digests(policy, name):
                    del self._models[name]
        for record in records:
            if not _tells(record):
                continue
            features = record.features
            latency = policy.latency(features.model, features.topology)
            if latency is not None:
                self._fold(record, latency, policy)

    def tick(self, now_s: float) -> tuple[Drifted, ...]:
        """Close the means that have turns enough; the alarms that they raise. `now_s` is only noted."""
        raised = (
            route.tick(name, which, now_s) for name, model in self._models.items() for which, route in model.routes()
        )
        return tuple(drifted for drifted in raised if drifted is not None)

    def fits(self) -> tuple[Fit, ...]:
        """Every route that has been looked at, by model."""
        return tuple(route.fit(name, which) for name, model in self._models.items() for which, route in model.routes())

    def drifted(self) -> tuple[Drifted, ...]:
        """The drifts that stand."""
        return tuple(each.drifted for each in self.fits() if each.drifted is not None)

    def snapshot(self) -> State:
        """What a restart must not lose; turns of an open mean and the counts of alarms begin anew."""
        return {
            name: {
                "tables": sorted(model.tables),
                "routes": {which.value: route.snapshot() for which, route in model.routes()},
            }
            for name, model in self._models.items()
        }

    @classmethod
    def restore(cls, state: State) -> Self:
        """Raises ValueError for what no `snapshot` gave."""
        restored = cls()
        try:
            for name, kept in list(state.items())[:MAX_MODELS]:
                model = _Model(frozenset(map(str, kept["tables"])))
                model.local = _Route.restore(str(name), Route.APPEND_LOCAL, kept["routes"])
                model.transferred = _Route.restore(str(name), Route.PREFILL_TRANSFER, kept["routes"])
                restored._models[str(name)] = model
        except (KeyError, TypeError, AttributeError, ValueError) as problem:
            raise ValueError(f"no state of a TableDrift: {problem!r}") from problem
        return restored

    @classmethod
    def from_json(cls, text: str | None) -> Self:
        """As an earlier process left it; as new where that cannot be read. Never raises."""
        if not text:
            return cls()
        try:
            return cls.restore(json.loads(text))
        except ValueError as error:
            log.error("what was kept of the table's residuals cannot be read, so they are learnt anew: %s", error)
            return cls()

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(self.snapshot(), allow_nan=False)

    def _fold(self, record: TurnRecord, latency: LatencyModel, policy: Policy) -> None:
        name, local = record.features.model, record.went_local
        ahead_ms, own_ms = backlog_ms(record.features, local), nodes_ms(latency, record.features, local)
        if not 0.0 < own_ms < math.inf or not 0.0 <= ahead_ms <= MOST_BACKLOG * own_ms:
            return
        if record.ttft_s is None or not 0.0 < record.ttft_s < math.inf:
            return
        model = self._models.get(name)
        if model is None:
            if len(self._models) >= MAX_MODELS:
                return
            model = self._models[name] = _Model(_digests(policy, name))
        route = model.local if local else model.transferred
        route.take(residual(record.ttft_s, (ahead_ms + own_ms) / 1e3))


class _Route:
    """One route of one model."""

    __slots__ = ("_alarm", "_level", "_means", "_raised", "_sum", "_turns", "drifted")

    def __init__(self) -> None:
        self._alarm = DriftAlarm(LEARN, least_sd=LEAST_SD)
        self._sum, self._turns = 0.0, 0
        self._level, self._means = 0.0, 0
        self._raised = dict.fromkeys(Drift, 0)
        self.drifted: Drifted | None = None

    def take(self, value: float) -> None:
        self._sum += value
        self._turns += 1

    def tick(self, model: str, which: Route, now_s: float) -> Drifted | None:
        if self._turns < LEAST_TURNS:
            return None
        mean = self._sum / self._turns
        self._sum, self._turns = 0.0, 0
        self._means = min(self._means + 1, RECENT)
        self._level += (mean - self._level) / self._means
        alarm = self._alarm.update(mean, now_s)
        if alarm is not None:
            self._raised[alarm.drift] += 1
            raised = Drifted(model, which, alarm.drift, now_s, alarm.before)
            # What was so before the first of several drifts is what the table was good for.
            first = self.drifted or raised
            self.drifted = replace(first, drift=alarm.drift)
            return raised
        learnt = self._alarm.estimate(now_s).value
        if self.drifted is not None and learnt is not None and abs(learnt - self.drifted.before) <= ALIKE:
            self.drifted = None
        return None

    def fit(self, model: str, which: Route) -> Fit:
        level = self._level if self._means else None
        return Fit(model, which, level, self._alarm.estimate(0.0).value, self.drifted, tuple(self._raised.items()))

    def snapshot(self) -> State:
        drifted = self.drifted
        return {
            "alarm": self._alarm.snapshot(),
            "level": self._level,
            "means": self._means,
            "drifted": None if drifted is None else [drifted.drift.value, drifted.at_s, drifted.before],
        }

    @classmethod
    def restore(cls, model: str, which: Route, routes: Any) -> _Route:
        route, state = cls(), routes[which.value]
        alarm = DriftAlarm.restore(state["alarm"])
        if alarm.made == route._alarm.made:  # else it was learnt by another measure
            route._alarm = alarm
        route._level, route._means = float(state["level"]), min(max(0, int(state["means"])), RECENT)
        if not math.isfinite(route._level):
            raise ValueError(f"a level of {route._level}")
        if state["drifted"] is not None:
            drift, at_s, before = state["drifted"]
            route.drifted = Drifted(model, which, Drift(drift), float(at_s), float(before))
        return route


class _Model:
    """Both routes, and the digests of the tables that they are compared with."""

    __slots__ = ("local", "tables", "transferred")

    def __init__(self, tables: frozenset[str]) -> None:
        self.tables = tables
        self.local, self.transferred = _Route(), _Route()

    def routes(self) -> Iterator[tuple[Route, _Route]]:
        yield Route.APPEND_LOCAL, self.local
        yield Route.PREFILL_TRANSFER, self.transferred


def _tells(record: TurnRecord) -> bool:
    """A turn whose TTFT the table predicts as it was decided."""
    features = record.features
    return (
        record.turn > 1
        and record.streaming
        and record.ttft_s is not None
        and record.attempts == 1
        and not features.replica
        and record.placement.decode == features.decode
    )


def _digests(policy: Policy, model: str) -> frozenset[str]:
    """Of the tables that may decide its turns."""
    return frozenset(tables.digest for key, tables in policy.tables.items() if key.model in (model, ANY_MODEL))
