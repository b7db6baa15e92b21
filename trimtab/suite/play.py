"""One scenario of the suite, played: all runs of its cast, and what they say together.

Ticks are measured as runs come in and then dropped, but for the first seed's, which a picture may want.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ..runs import Job, Outcome, Run, played
from ..spread import Spread
from .catalogue import Entry
from .measures import Measures, measured
from .oracle import Oracle, gap_recovery, oracle
from .policies import CONTROLLER, STARTS, STATIC, Cast

CPU_S_PER_TURN = 0.00034
"""Of one core, about: 720 virtual seconds of agents at 0.95/s plan 9,600 turns and took three seconds."""


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario with all of its runs."""

    entry: Entry
    cast: Cast
    outcome: Outcome
    measures: Mapping[tuple[str, int], Measures]
    """Of the controller's runs, from all its starts, by policy and seed."""

    def seeds_of(self, *policies: str) -> tuple[int, ...]:
        """Those that all of them ran on."""
        return min((self.cast.seeds[policy] for policy in policies), key=len)

    def attainments(self, policy: str, seeds: Sequence[int]) -> list[float]:
        """By seed."""
        by_seed = {run.seed: run.score.attainment for run in self.outcome.runs[policy]}
        return [by_seed[seed] for seed in seeds]

    def margin(self, policy: str, other: str) -> Spread:
        """Paired difference in attainment, policy − other, over the seeds that both ran on."""
        seeds = self.seeds_of(policy, other)
        pairs = zip(self.attainments(policy, seeds), self.attainments(other, seeds), strict=True)
        margin = Spread.of(a - b for a, b in pairs)
        assert margin is not None  # attainments are finite, and there is a seed
        return margin

    def best_of(self, policies: Sequence[str]) -> str:
        """The one of them with the highest mean attainment over the seeds that all ran on."""
        seeds = self.seeds_of(*policies)
        return max(policies, key=lambda policy: fmean(self.attainments(policy, seeds)))

    @property
    def by_name(self) -> dict[str, str]:
        """The policies that ran, by all the names that a result has for them."""
        names = {policy: policy for policy in self.outcome.runs} | self.cast.aliases
        return names | {"threshold_hindsight": self.best_of(self.cast.hindsight)}

    @property
    def fixed(self) -> tuple[str, ...]:
        """Every fixed rule that ran: no price, and nothing that moves."""
        return tuple(dict.fromkeys([*self.cast.rules, *self.cast.hindsight]))

    @property
    def oracle(self) -> Oracle | None:
        """The clairvoyant constant, on the seeds that all constants ran on."""
        if not self.cast.constants:
            return None
        seeds = set(self.seeds_of(*self.cast.constants))
        return oracle(
            {
                policy: [run.score for run in self.outcome.runs[policy] if run.seed in seeds]
                for policy in self.cast.constants
            }
        )

    @property
    def gap_recovery(self) -> float | None:
        """The controller's, on the oracle's seeds; None without an oracle or a gap."""
        found = self.oracle
        if found is None:
            return None
        seeds = self.seeds_of(*self.cast.constants, CONTROLLER)
        j, static = (fmean(self.attainments(policy, seeds)) for policy in (CONTROLLER, STATIC))
        return gap_recovery(j, static, found.attainment)

    @property
    def binding(self) -> bool:
        """Whether the conflict binds: both ends are worse by half a point or more than something that ran."""
        ran = [*self.fixed, *self.cast.constants, CONTROLLER]
        seeds = self.seeds_of(*ran)
        means = {policy: fmean(self.attainments(policy, seeds)) for policy in ran}
        return max(means.values()) - max(means["x0"], means["x1"]) >= 0.005

    def held_by_any(self, seed: int, phase: int) -> bool:
        """Whether some policy held both objectives in that phase: then they could be held."""
        return any(
            run.score.phases[phase].hold for runs in self.outcome.runs.values() for run in runs if run.seed == seed
        )


def play_entry(
    entry: Entry,
    cast: Cast,
    workers: int,
    progress: Callable[[int], None],
    backend: str | None = None,
    run_job: Callable[[Job], Run] | None = None,
) -> Played:
    """Run all of it. `progress` is told of each run that is done."""
    scenario = entry.scenario
    moved = (CONTROLLER, *STARTS)
    first = cast.seeds[CONTROLLER][0]
    jobs = [
        Job(scenario, policy, seed, policy in moved or seed == first)
        for policy, seeds in cast.seeds.items()
        for seed in seeds
    ]
    measures: dict[tuple[str, int], Measures] = {}
    runs: dict[str, list[Run]] = {policy: [] for policy in cast.seeds}
    for run in played(jobs, workers, backend, run_job):
        if run.policy in moved:
            measures[run.policy, run.seed] = measured(scenario, run.ticks)
        runs[run.policy].append(run if run.seed == first else replace(run, ticks=()))
        progress(1)
    outcome = Outcome(scenario, cast.seeds[CONTROLLER], {policy: tuple(each) for policy, each in runs.items()})
    return Played(entry, cast, outcome, measures)


def runs_of(cast: Cast) -> int:
    """How many runs that is."""
    return sum(map(len, cast.seeds.values()))


def cpu_s_of(entry: Entry, cast: Cast) -> float:
    """What it costs, about: by the turns that its first seed plans."""
    seed = cast.seeds[CONTROLLER][0]
    turns = sum(len(plan.turns) for plan in entry.scenario.conversations(seed))
    return CPU_S_PER_TURN * turns * runs_of(cast)
