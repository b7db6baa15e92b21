"""The clairvoyant constant, and how much of the way to it a policy went.

Every constant of all families (prices, token thresholds, both ends, weights of the paper's table) runs the whole
scenario; per phase the best mean attainment over the seeds counts, and their mean over the phases is J_oracle. That is
the usual stand-in for an oracle that switches at phase changes: it never pays for what an earlier phase left behind
under another constant, and picking the best of many means on few seeds flatters it. It is no optimum.

    gap recovery = (J − J_static) / (J_oracle − J_static)      only where the denominator is ≥ MIN_GAP

J_static is the paper's table at w = (1, 1). All three are means over the same seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..score import RunScore

MIN_GAP = 0.005


@dataclass(frozen=True, slots=True)
class BestOfPhase:
    """A constant, and its mean attainment in one phase."""

    policy: str
    attainment: float


@dataclass(frozen=True, slots=True)
class Oracle:
    """The best constant of each phase that had later turns."""

    phases: tuple[BestOfPhase, ...]

    @property
    def attainment(self) -> float:
        """J_oracle."""
        return fmean(phase.attainment for phase in self.phases)


def oracle(scores: Mapping[str, Sequence[RunScore]]) -> Oracle | None:
    """From the scores of every constant on the same seeds; None without any."""
    if not scores:
        return None
    phases = []
    for at in range(len(next(iter(scores.values()))[0].phases)):
        means = {
            policy: fmean(found)
            for policy, runs in scores.items()
            if (found := [a for run in runs if (a := run.phases[at].attainment) is not None])
        }
        if means:
            best = max(means, key=lambda policy: means[policy])
            phases.append(BestOfPhase(best, means[best]))
    return Oracle(tuple(phases)) if phases else None


def gap_recovery(j: float, j_static: float, j_oracle: float) -> float | None:
    """Share of the gap that was closed; negative below the static table, None where there is no gap to speak of."""
    gap = j_oracle - j_static
    return (j - j_static) / gap if gap >= MIN_GAP else None
