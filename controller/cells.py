"""Tallies: what the ticks read. Records are folded in as they arrive and are not kept.

Per driving SLO a window of the last three ticks (P99 by nearest rank) and the turns and misses of the tick itself, and
per table cell and route the counts and mean TTFT that a later re-estimation needs. Failed and timed-out turns count as
infinitely slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from estimators.clusters import Clusters
from estimators.quantile import WindowedQuantile
from router.core import Waiting
from router.record import TurnRecord
from router.turn import Route
from slos.objective import Outcome, Signal, Slo
from slos.reduce import SloReading, driving

LAW_MIN_OUTPUT_TOKENS = 8
"""A TPOT over fewer tokens is mostly one step's luck."""
WINDOW_TICKS = 3
MIN_SAMPLES = 20
MAX_CELLS = 10_000


@dataclass(slots=True)
class CellCount:
    """Answered later turns of one cell on one route."""

    n: int = 0
    ttft_sum_s: float = 0.0


class _Followed:
    """What is kept of one SLO: its window, and (misses, turns) of this tick by second of acceptance."""

    __slots__ = ("_ended", "_read_s", "blocks", "slo", "window")

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self.window = WindowedQuantile(slo.objective, WINDOW_TICKS, MIN_SAMPLES)
        self.blocks: dict[int, tuple[int, int]] = {}
        self._ended, self._read_s = Clusters(), -inf

    def fold(self, value_s: float, record: TurnRecord) -> None:
        self.window.update(value_s, record.ended_s)
        limit_s = self.slo.threshold_s
        if limit_s is not None:
            second = int(record.accepted_s)
            bad, valid = self.blocks.get(second, (0, 0))
            self.blocks[second] = (bad + (value_s > limit_s), valid + 1)

    def reading(self, ages_s: list[float], now_s: float) -> SloReading:
        """Closes the tick, once; `ages_s` of turns that wait past the SLO."""
        self.window.roll(now_s)
        value_s = self.window.estimate(now_s, ages_s).value
        if now_s > self._read_s:
            self._ended, self._read_s = Clusters.of(self.blocks.values()), now_s
            self.blocks = {}
        return SloReading(self.slo, value_s, self._ended, len(ages_s))


class Tallies:
    """Everything that one model's ticks read."""

    def __init__(self, model: str, slos: Iterable[Slo]) -> None:
        self.model = model
        self._followed: list[_Followed] = []
        self.redeclare(slos)
        self.cells: dict[tuple[str, Route], CellCount] = {}
        self.cells_dropped = 0
        self.turns = 0
        self.later_turns = 0
        self.local_turns = 0

    def redeclare(self, slos: Iterable[Slo]) -> None:
        """Follow these from now on; the window of an SLO that was followed before goes on."""
        drives = driving(slos, self.model)
        before = {each.slo: each for each in self._followed}
        self._followed = [before.get(slo) or _Followed(slo) for slo in (*drives.ttft, *drives.tpot)]

    def fold(self, record: TurnRecord) -> None:
        """Take one ended turn of this model."""
        if record.model != self.model:
            return
        self.turns += 1
        if record.turn > 1:
            self.later_turns += 1
            self.local_turns += record.went_local
            self._count_cell(record)
        for followed in self._followed:
            if followed.slo.covers(record) and record.streaming:
                value = _value(followed.slo, record)
                if value is not None:
                    followed.fold(value, record)

    def readings(self, waiting: Iterable[Waiting], now_s: float) -> list[SloReading]:
        """Close the tick: per driving SLO its percentile over the window, turns that wait past a TTFT SLO
        included."""
        late = [w for w in waiting if w.model == self.model and w.streaming]
        readings = []
        for followed in self._followed:
            slo, ages_s = followed.slo, list[float]()
            if slo.signal is Signal.TTFT and slo.threshold_s is not None:
                ages_s = [w.age_s for w in late if w.age_s > slo.threshold_s and slo.covers(w)]
            readings.append(followed.reading(ages_s, now_s))
        return readings

    def _count_cell(self, record: TurnRecord) -> None:
        if record.ttft_s is None or not record.decision.cell:
            return
        key = (record.decision.cell, record.placement.realised)
        count = self.cells.get(key)
        if count is None:
            if len(self.cells) >= MAX_CELLS:
                self.cells_dropped += 1
                return
            count = self.cells[key] = CellCount()
        count.n += 1
        count.ttft_sum_s += record.ttft_s


def _value(slo: Slo, record: TurnRecord) -> float | None:
    """The sample that this turn gives to the SLO's window, or None."""
    if record.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        return inf
    if slo.signal is Signal.TTFT:
        if record.ttft_s is None and record.outcome is Outcome.CLIENT_GONE:
            # What a client that gave up has waited bounds its TTFT from below, as for a turn that still waits.
            return record.waited_s if slo.threshold_s is not None and record.waited_s > slo.threshold_s else None
        return record.ttft_s
    return record.tpot_s if record.output_tokens >= LAW_MIN_OUTPUT_TOKENS else None
