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

Where turns cannot be counted (`control.signal: engine`) z comes from the percentile, the lower bound is the severity
itself, and no promise is ever kept for sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log, sqrt

from estimators.clusters import Clusters
from estimators.exceedance import Exceedance
from slos.objective import Signal, Slo
from slos.reduce import SloReading

from .laws.protocol import Side, Sides

KEEP = 0.894
"""Of a tick of 5 s: half is forgotten in half a minute."""
FULL_TICK = 60.0
"""Turns."""
SLOWEST = 6.0
REACH = 0.10
"""Of σ: the share of the price range over which a turn's evidence carries."""
ALIKE = 0.4
"""For the upper bound: how alike the turns of a second are, as long as few misses tell. Where there were misses, their
correlation within seconds was .02 to .3 (medians of seven scenarios); an upper bound of 95 % then holds 99 to 93 % of
the time. With all alike, 200 seconds without a miss would count as 200 turns at any rate, and a P99 takes 299."""
STEEPNESS = 4.0
"""Log-odds by ln of the latency, at a P99."""
PERCENTILE_SD, PERCENTILE_TURNS = 0.5, 100.0
MOST_SEVERE = 1e3


@dataclass(frozen=True, slots=True)
class Evidence:
    """Discounted counts by SLO."""

    counts: Mapping[Slo, Clusters] = field(default_factory=dict)

    def after(self, readings: Iterable[SloReading], keep: float | None = None) -> Evidence:
        """With one more tick; `keep` of those before stays. SLOs that are declared no more are forgotten."""
        counts: dict[Slo, Clusters] = {}
        for reading in readings:
            if reading.ended is None:
                continue
            pace = min(1.0, max(1.0 / SLOWEST, reading.ended.valid / FULL_TICK))
            before = self.counts.get(reading.slo, Clusters())
            counts[reading.slo] = before.scaled((KEEP if keep is None else keep) ** pace) + reading.ended
        return Evidence(counts)

    def moved(self, step: float) -> Evidence:
        """After the price has moved by `step` of σ."""
        if step == 0:
            return self
        left = exp(-abs(step) / REACH)
        return Evidence({slo: counts.scaled(left) for slo, counts in self.counts.items()})

    def sides(self, readings: Iterable[SloReading]) -> Sides:
        """Both sides as a law sees them; of several SLOs the one with the largest z, and the largest severity."""
        weighed = [(reading, self._weigh(reading)) for reading in readings]
        ttft = [side for reading, side in weighed if reading.slo.signal is Signal.TTFT]
        tpot = [side for reading, side in weighed if reading.slo.signal is not Signal.TTFT]
        return Sides(_worst(ttft), _worst(tpot))

    def _weigh(self, reading: SloReading) -> Side:
        """What is known of one SLO."""
        counts, severity = self.counts.get(reading.slo), reading.severity
        if counts is None:
            return Side() if severity is None else _by_percentile(severity)
        epsilon = reading.slo.epsilon
        bad, valid = counts.bad + reading.late, counts.valid + reading.late
        seen = Exceedance(bad, valid, counts.design_effect)
        bounds = seen.estimate(0.0)
        high = Exceedance(bad, valid, counts.design_effect_if(ALIKE)).estimate(0.0).high
        return Side(
            severity,
            seen.log_odds_over(epsilon),
            sqrt(seen.log_odds_variance(epsilon)),
            bounds.n,
            0.0 if bounds.low is None else bounds.low / epsilon,
            inf if high is None else high / epsilon,
        )


def _by_percentile(severity: float) -> Side:
    """Without counts: what the percentile says, for a tail about that of a log-normal with sigma .6."""
    z = STEEPNESS * log(min(MOST_SEVERE, max(1 / MOST_SEVERE, severity)))
    return Side(severity, z, PERCENTILE_SD, low=severity, turns=PERCENTILE_TURNS)


def _worst(weighed: Sequence[Side]) -> Side:
    if not weighed:
        return Side()
    known = [side.severity for side in weighed if side.severity is not None]
    return replace(
        max(weighed, key=lambda side: side.z),
        severity=max(known, default=None),
        low=max(side.low for side in weighed),
        high=max(side.high for side in weighed),
    )
