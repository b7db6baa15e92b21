"""What the suite is held to, as data: each demand with its figure, its limit and whether it is met.

A margin is met by its mean; `sure` says that its whole 95 % interval is on the right side. Margins and gap recovery are
asked of held-out scenarios only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..spread import Spread
from .catalogue import Sided
from .measures import Flag
from .play import Played
from .policies import CONSTANT, CONTROLLER, OTHER_LAW, PRICES, STARTS
from .split import Split

NEAR = 0.005
"""Half a percentage point of attainment."""
START_NEAR = 0.01
MEAN_RECOVERY, WORST_RECOVERY = 0.90, 0.70
ENTRY_TICKS, ENTRY_TURNS = 10, 800
TWICE = 2.0
COLLAPSED, WELL = 0.7, 0.9
"""Attainment of a phase that has collapsed, and of one that has not."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One demand. `met` is None where the runs say nothing."""

    kind: str
    """must or target."""
    demand: str
    scenario: str | None
    figure: float | None
    limit: float
    met: bool | None
    sure: bool | None = None
    against: str | None = None


def verdicts(found: Sequence[Played], split: Split) -> list[Verdict]:
    """Of all demands, those on held-out scenarios first."""
    held = [played for played in found if split.use_of(played.entry.name) == "held_out"]
    listed = [verdict for played in held for verdict in _of_scenario(played)]
    recoveries = [played.gap_recovery for played in held if played.entry.sided is Sided.TWO]
    over = Spread.of(played.margin(CONTROLLER, OTHER_LAW).mean for played in held)
    if over is not None:
        listed.append(_margin("must", "above the other law, mean of the scenarios", None, over, 0.0, OTHER_LAW))
    known = [recovery for recovery in recoveries if recovery is not None]
    listed += [
        _at_least("target", "gap recovery, mean", None, fmean(known) if known else None, MEAN_RECOVERY),
        _at_least("target", "gap recovery, worst", None, min(known, default=None), WORST_RECOVERY),
    ]
    for played in found:
        listed += _calm(played)
        listed += _flags(played)
        listed += _collapses(played)
    feasible = [played for played in found if played.entry.feasible]
    if feasible:
        wrong = sum(played.held_by_any(seed, flag.phase) for played in feasible for seed, flag in _raised(played))
        demand = f"flags in {sum(map(_held_hours, feasible)):.1f} simulated hours of feasible traffic"
        listed.append(_at_most("must", demand, None, float(wrong), 0))
    doubtful = sum(_doubtful_flags(played) for played in found)
    demand = f"flags in phases that some policy held, in {_hours(found):.1f} simulated hours"
    listed.append(_at_most("target", demand, None, float(doubtful), 0))
    return listed


def _of_scenario(played: Played) -> Iterator[Verdict]:
    name = played.entry.name
    if played.entry.sided is Sided.TWO:
        for rival in dict.fromkeys([*played.cast.rules, *PRICES]):
            least = -NEAR if rival == CONSTANT else 0.0
            yield _margin("must", "above the frozen rule", name, played.margin(CONTROLLER, rival), least, rival)
    elif played.entry.sided is Sided.ONE:
        best = played.best_of(played.fixed)
        margin = played.margin(CONTROLLER, best)
        yield _margin("must", "not below the best fixed rule in hindsight", name, margin, -NEAR, best)
    if played.entry.sided is not Sided.NONE:
        for start in STARTS:
            margin = played.margin(start, CONTROLLER)
            yield _margin("must", "from another price, near its own default", name, margin, -START_NEAR, start)


def _calm(played: Played) -> Iterator[Verdict]:
    name = played.entry.name
    own = [measures for (policy, _), measures in played.measures.items() if policy == CONTROLLER]
    needless = [measures.needless_moves for measures in own if measures.needless_moves is not None]
    yield _at_most(
        "must", "moves while both upper bounds are inside", name, float(sum(needless)) if needless else None, 0
    )
    cycling = sum(m.cycling_ticks for m in own)
    yield _at_most("must", "ticks in a limit cycle", name, float(cycling), 0)
    twice = [s for m in own for s in m.settled if s.worst >= TWICE and s.phase != played.entry.impossible]
    if twice:
        late = sum(not s.entered or (s.ticks > ENTRY_TICKS and s.turns > ENTRY_TURNS) for s in twice)
        demand = f"late first entries of {len(twice)} after a violation of twice the limit"
        yield _at_most("target", demand, name, float(late), 0)


def _flags(played: Played) -> Iterator[Verdict]:
    within_s, phase = played.entry.flagged_within_s, played.entry.impossible
    if within_s is None:
        return
    latest = 0.0
    for (policy, _), measures in played.measures.items():
        if policy == CONTROLLER:
            latest = max(latest, min((f.after_s for f in measures.flags if f.phase == phase), default=float("inf")))
    yield _at_most(
        "target", "seconds until an impossible promise is flagged, latest", played.entry.name, latest, within_s
    )


def _collapses(played: Played) -> Iterator[Verdict]:
    """Phases that collapsed under the controller and not under something else that ran on the same seed."""
    best: dict[tuple[int, int], float] = {}
    own: list[tuple[int, int, float]] = []
    for policy, runs in played.outcome.runs.items():
        for run in runs:
            for at, phase in enumerate(run.score.phases):
                attained = phase.attainment if phase.attainment is not None else 1.0
                best[run.seed, at] = max(attained, best.get((run.seed, at), 0.0))
                if policy == CONTROLLER:
                    own.append((run.seed, at, attained))
    lost = sum(attained < COLLAPSED and best[seed, at] >= WELL for seed, at, attained in own)
    demand = "phases that collapsed, and did not under another policy"
    yield _at_most("target", demand, played.entry.name, float(lost), 0)


def _hours(found: Sequence[Played]) -> float:
    """That the controller ran, from all of its starts."""
    return sum(len(played.measures) * played.entry.scenario.duration_s for played in found) / 3600


def _held_hours(played: Played) -> float:
    """Of these, in phases that somebody held on that seed."""
    phases = list(enumerate(played.entry.scenario.phases))
    return (
        sum(phase.duration_s * played.held_by_any(seed, at) for _, seed in played.measures for at, phase in phases)
        / 3600
    )


def _raised(played: Played) -> Iterator[tuple[int, Flag]]:
    """(seed, flag), from all starts."""
    for (_, seed), measures in played.measures.items():
        for flag in measures.flags:
            yield seed, flag


def _doubtful_flags(played: Played) -> int:
    """Flags in phases in which some policy held both objectives on that seed. What goes up in the time that no policy
    is judged by, at the begin of a phase, speaks of the phase before."""
    settle_s = played.entry.scenario.settle_of
    return sum(
        flag.phase != played.entry.impossible
        and flag.after_s > settle_s(flag.phase)
        and played.held_by_any(seed, flag.phase)
        for seed, flag in _raised(played)
    )


def _margin(kind: str, demand: str, scenario: str | None, margin: Spread, least: float, against: str) -> Verdict:
    sure = None if margin.half_width != margin.half_width else margin.mean - margin.half_width >= least
    return Verdict(kind, demand, scenario, margin.mean, least, margin.mean >= least, sure, against)


def _at_most(kind: str, demand: str, scenario: str | None, figure: float | None, limit: float) -> Verdict:
    return Verdict(kind, demand, scenario, figure, limit, None if figure is None else figure <= limit)


def _at_least(kind: str, demand: str, scenario: str | None, figure: float | None, limit: float) -> Verdict:
    return Verdict(kind, demand, scenario, figure, limit, None if figure is None else figure >= limit)
