"""What the ticks of a run say of its controller: how fast it settles, how calm it is, and when it calls a promise
impossible.

    settle       from the first tick of a phase in which a side is over its SLO until both are inside again, in ticks
                 and in turns; where the phase ends before, until then, and it counts as unsettled
    sd_ln_p      of ln price, within phases, without their settling time: √ of the mean variance over the phases
    reversals    turning points of ln p after swings of a twentieth of its range, per hour; and in how many ticks
                 production's own guard (`controller/moves.py`) would call it a limit cycle: more than three of them
                 in two minutes
    needless     moves of the price in ticks in which both upper bounds of the exceedance were inside the budget; None
                 where the readings have no bounds
    flags        phases in which the flag of an impossible promise was raised, with the time since the phase began

Readings without evidence are neither over nor inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt
from statistics import fmean, pvariance

from controller.moves import Moves, reversals

from ..scenarios import Scenario
from ..simulate import TickView


@dataclass(frozen=True, slots=True)
class Settled:
    """How one phase's violation ended."""

    phase: int
    ticks: int
    turns: int
    entered: bool
    worst: float
    """The largest value / threshold before that."""


@dataclass(frozen=True, slots=True)
class Flag:
    """The flag of an impossible promise went up."""

    phase: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Measures:
    """Of one run."""

    settled: tuple[Settled, ...]
    sd_ln_p: float
    moves: int
    reversals_per_h: float
    cycling_ticks: int
    needless_moves: int | None
    flags: tuple[Flag, ...]


def measured(scenario: Scenario, ticks: Sequence[TickView]) -> Measures:
    """From all ticks of a run of the scenario."""
    spans = list(_spans(scenario, ticks))
    steps = [log(after.output.price / before.output.price) for before, after in pairwise(ticks)]
    moves = [step for step in steps if step != 0]
    levels = [log(view.output.price) for view in ticks]
    variances = [_variance(span, scenario.settle_of(at)) for at, span in enumerate(spans)]
    known = [variance for variance in variances if variance is not None]
    return Measures(
        tuple(found for at, span in enumerate(spans) if (found := _settled(at, span)) is not None),
        sqrt(fmean(known)) if known else 0.0,
        len(moves),
        reversals(levels) * 3600 / scenario.duration_s,
        _cycling(levels),
        _needless(ticks, steps),
        tuple(_flags(scenario, spans)),
    )


def _spans(scenario: Scenario, ticks: Sequence[TickView]) -> Iterator[list[TickView]]:
    """The ticks of each phase; the tick at its very end still sees only this phase."""
    for begin_s, phase in zip(scenario.begins_s(), scenario.phases, strict=True):
        yield [view for view in ticks if begin_s < view.at_s <= begin_s + phase.duration_s]


def _settled(at: int, span: Sequence[TickView]) -> Settled | None:
    first = next((view for view in span if _severity(view) > 1), None)
    if first is None:
        return None
    begin = span.index(first)
    end = next((i for i in range(begin, len(span)) if _inside(span[i])), None)
    last = len(span) - 1 if end is None else end
    return Settled(
        at,
        last - begin,
        span[last].later_turns - first.later_turns,
        end is not None,
        max(_severity(view) for view in span[begin : last + 1]),
    )


def _sides(view: TickView) -> tuple[float | None, float | None]:
    worst = view.output.binding
    return (None if worst.ttft is None else worst.ttft.severity, None if worst.tpot is None else worst.tpot.severity)


def _severity(view: TickView) -> float:
    """The worse side's value / threshold; 0 without evidence."""
    return max((side for side in _sides(view) if side is not None), default=0.0)


def _inside(view: TickView) -> bool:
    """Both sides have evidence, and are within their SLOs."""
    return all(side is not None and side <= 1 for side in _sides(view))


def _variance(span: Sequence[TickView], settle_s: float) -> float | None:
    if not span:
        return None
    after_s = span[0].at_s + settle_s
    prices = [log(view.output.price) for view in span if view.at_s >= after_s]
    return pvariance(prices) if len(prices) > 1 else None


def _cycling(levels: Sequence[float]) -> int:
    """Ticks at which the price went to and fro, by production's guard."""
    moves, found = Moves(), 0
    for level in levels:
        moves = moves.after(level, None)
        found += moves.cycling
    return found


def _needless(ticks: Sequence[TickView], steps: Sequence[float]) -> int | None:
    """Moves with both promises kept for sure; None where that was never known. A step belongs to the tick that decided
    it: the price of a view is that before its tick."""
    kept = [view.output.sides.ttft.kept and view.output.sides.tpot.kept for view in ticks]
    return sum(step != 0 and sure for step, sure in zip(steps, kept, strict=False)) if any(kept) else None


def _flags(scenario: Scenario, spans: Sequence[Sequence[TickView]]) -> Iterator[Flag]:
    up = False
    for at, (begin_s, span) in enumerate(zip(scenario.begins_s(), spans, strict=True)):
        for view in span:
            flagged = view.output.feasibility.relief is not None
            if flagged and not up:
                yield Flag(at, view.at_s - begin_s)
            up = flagged
