"""What the ticks so far say about one model's SLOs: turns and misses, old ones discounted.

Per SLO the counts are those of the last tick plus `keep` times those before. The memory is in turns as much as in time:
a tick with fewer than `FULL_TICK` turns discounts by so much less, down to a `SLOWEST`-th, so that low traffic gathers
evidence instead of forgetting it. A move of the price makes old turns say less about the new one: they are discounted
by exp(-|move| / REACH) of the coordinate σ, which also keeps a law from pushing on with the misses of an overload that
is over.

Turns that still wait past the SLO count as misses at each tick and are not kept: when they end they count once.

z = log-odds of the misses over what the SLO allows (`estimators.exceedance`), 0 without data, and `sd` its standard
deviation; misses come in bursts, so both go by a design effect (blocks of one second). `low` and `high` bound the share
of misses, over what is allowed: `low` > 1 is a miss for sure, `high` < 1 a promise kept for sure, each at 95 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, sqrt

from estimators.clusters import Clusters
from estimators.exceedance import Exceedance
from slos.objective import Slo
from slos.reduce import SloReading

KEEP = 0.894
"""Of a tick of 5 s: half is forgotten in half a minute."""
FULL_TICK = 60.0
"""Turns."""
SLOWEST = 6.0
REACH = 0.10
"""Of σ: the share of the price range over which a turn's evidence carries."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """The evidence on one SLO at a tick."""

    slo: Slo
    z: float
    sd: float
    low: float
    high: float
    turns: float
    """Discounted, and divided by the design effect."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Discounted counts by SLO."""

    counts: Mapping[Slo, Clusters] = field(default_factory=dict)

    def after(self, readings: Iterable[SloReading], keep: float = KEEP) -> Evidence:
        """With one more tick. SLOs that are declared no more are forgotten."""
        counts: dict[Slo, Clusters] = {}
        for reading in readings:
            if reading.ended is None:
                continue
            pace = min(1.0, max(1.0 / SLOWEST, reading.ended.valid / FULL_TICK))
            before = self.counts.get(reading.slo, Clusters())
            counts[reading.slo] = before.scaled(keep**pace) + reading.ended
        return Evidence(counts)

    def moved(self, step: float) -> Evidence:
        """After the price has moved by `step` of σ."""
        if step == 0:
            return self
        left = exp(-abs(step) / REACH)
        return Evidence({slo: counts.scaled(left) for slo, counts in self.counts.items()})

    def weigh(self, reading: SloReading) -> Weighed | None:
        """What it says about one SLO now; None where turns cannot be counted."""
        counts = self.counts.get(reading.slo)
        if counts is None:
            return None
        epsilon = reading.slo.epsilon
        seen = Exceedance(counts.bad + reading.late, counts.valid + reading.late, counts.design_effect)
        bounds = seen.estimate(0.0)
        return Weighed(
            reading.slo,
            seen.log_odds_over(epsilon),
            sqrt(seen.log_odds_variance(epsilon)),
            0.0 if bounds.low is None else bounds.low / epsilon,
            1.0 / epsilon if bounds.high is None else bounds.high / epsilon,
            bounds.n,
        )
