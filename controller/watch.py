"""A change that an operator made, watched for a minute, so that one which goes very wrong can be taken back at once.

Very wrong: of one SLO that drives the model, `MIN_BAD` turns or more missed since the change, and the lower 95 % bound
of the share of misses is above `FAR` times what the SLO allows. A change is not blamed for what was so before it, nor
for turns that ended in its first tick: they were decided before. Counts of an SLO that covers several models are of
all of them. No design effect: the factor 5 is far above what bursts do to a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from estimators.exceedance import Exceedance
from router.policy import Weights
from slos.counts import Count
from slos.objective import Slo
from slos.reduce import driving

from .laws.protocol import PriceRange

WATCH_TICKS = 12
FAR = 5.0
MIN_BAD = 5
KEPT = 0.8
"""What a tick leaves of the counts before it."""


@dataclass(frozen=True, slots=True)
class Misses:
    """Turns judged by one SLO that allows a share `epsilon` of misses."""

    epsilon: float
    valid: float = 0.0
    bad: float = 0.0

    def plus(self, other: Misses, kept: float = 1.0) -> Misses:
        """With what came since; `kept` of the own counts."""
        return Misses(other.epsilon, kept * self.valid + other.valid, kept * self.bad + other.bad)

    @property
    def far_over(self) -> bool:
        """More misses than chance explains, and far more than allowed."""
        if self.bad < MIN_BAD:
            return False
        low = Exceedance(min(self.bad, self.valid), self.valid).estimate(0.0).low
        return low is not None and low > FAR * self.epsilon


BySlo = Mapping[str, Misses]


def added(before: BySlo, now: BySlo, kept: float = 1.0) -> BySlo:
    """Counts by SLO, summed; of the SLOs of `now`."""
    return {name: before.get(name, Misses(each.epsilon)).plus(each, kept) for name, each in now.items()}


def misses(slos: Iterable[Slo], model: str, before: Mapping[str, Count], now: Mapping[str, Count]) -> dict[str, Misses]:
    """What was judged between two counts, by the SLOs that drive a model."""
    drives = driving(slos, model)
    since = {
        slo: now.get(slo.name, Count()).since(before.get(slo.name, Count())) for slo in (*drives.ttft, *drives.tpot)
    }
    return {slo.name: Misses(1 - slo.objective, count.valid, count.bad) for slo, count in since.items()}


@dataclass(frozen=True, slots=True)
class Watch:
    """One change: what was before it, and what was missed since."""

    weights: Weights | None
    """Before; None: the default ones decided."""
    bounds: PriceRange
    held: bool
    what: str
    """In words."""
    age: int = 0
    misses: BySlo | None = None

    def after(self, misses: BySlo) -> Watch | None:
        """One tick later; None once the minute is over."""
        if self.age >= WATCH_TICKS:
            return None
        seen = self.misses if not self.age else added(self.misses or {}, misses)
        return replace(self, age=self.age + 1, misses=seen)

    @property
    def failed(self) -> bool:
        """It has to be taken back."""
        return any(each.far_over for each in (self.misses or {}).values())
