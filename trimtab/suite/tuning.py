"""What is found on the tuning scenarios and seeds, and nowhere else: numbers for the rivals' rules.

A rule's score is its mean attainment over the tuning scenarios, each over the tuning seeds. The best threshold and the
best pair for Dynamo's rule are then written into split.yaml by hand, with the command that this module runs under. The
pre-check of scenarios runs constants and fixed rules the same way; the controller has no part in either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..runs import Job, Run, played
from ..scenarios import Scenario
from .catalogue import Entry
from .policies import DYNAMO_GRID, PRICES, RULES, THRESHOLD_GRID

CHECK_SEEDS = (100, 101, 102)
CHECKED = (*PRICES, *RULES, "threshold_1024", "threshold_1536", "threshold_2048", "threshold_4096")
TUNED_GRID = tuple(dict.fromkeys([*THRESHOLD_GRID, *DYNAMO_GRID, *RULES]))


@dataclass(frozen=True, slots=True)
class Ranked:
    """A policy, its mean attainment over scenarios, and that of each."""

    policy: str
    attainment: float
    by_scenario: dict[str, float]


def measure(
    entries: Sequence[Entry],
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: int,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[str, dict[str, float]]]:
    """Mean attainment by policy, one scenario after the other, each as soon as it is done."""
    of_each = len(policies) * len(seeds)
    for at, entry in enumerate(entries):

        def so_far(done: int, _: int, at: int = at) -> None:
            progress(at * of_each + done, len(entries) * of_each)

        runs = run_all(entry.scenario, policies, seeds, workers, so_far)
        yield entry.name, {policy: fmean(run.score.attainment for run in each) for policy, each in runs.items()}


def ranked(found: Mapping[str, Mapping[str, float]]) -> list[Ranked]:
    """The best first, from what was measured by scenario and policy."""
    policies = next(iter(found.values()), {})
    by_policy = {policy: {name: by[policy] for name, by in found.items()} for policy in policies}
    every = [Ranked(policy, fmean(by.values()), by) for policy, by in by_policy.items()]
    return sorted(every, key=lambda each: -each.attainment)


def run_all(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: int,
    progress: Callable[[int, int], None],
) -> dict[str, list[Run]]:
    """Every policy on every seed."""
    jobs = [Job(scenario, policy, seed) for policy in policies for seed in seeds]
    found: dict[str, list[Run]] = {policy: [] for policy in policies}
    for done, run in enumerate(played(jobs, workers), start=1):
        found[run.policy].append(run)
        progress(done, len(jobs))
    return found
