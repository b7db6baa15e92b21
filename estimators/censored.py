"""Samples of which some are only lower bounds: turns that still wait, or whose client left.

A sample is (value, censored): censored means "at least this". A stalled fleet must not look fast, so a censored
sample is never taken for an ended one and never left out.

Bounds assume nothing about which turns are censored: they are those of the two extremes. For the share above a limit
a censored sample beyond the limit is a miss for sure, and one below it is kept for the lower bound and missed for the
upper; for a quantile it counts with its age for the lower bound and as infinite for the upper.

The value is Kaplan and Meier's (1958): S(t) = product over ended samples up to t of (1 - 1 / still at risk), flat
after the last (Gill's convention: what is not known to have ended goes on). It assumes that waiting says nothing of
how much longer it takes. With a third of the samples censored its P90 is right to 1 % on average, where leaving them
out reads 11 % low and taking ages for values 16 % low (tests/estimators/test_censored.py).

Needs scipy (`exceedance`). Left out: correlation within conversations, but for a design effect that the caller knows.
"""

import math
from collections.abc import Iterable, Sequence

from .exceedance import Exceedance
from .protocol import Estimate
from .quantile import CONFIDENCE, bound_ranks, rank

Sample = tuple[float, bool]


def share_above(
    samples: Iterable[Sample],
    limit: float,
    now_s: float,
    confidence: float = CONFIDENCE,
    design_effect: float = 1.0,
) -> Estimate:
    """The share of values > `limit`. The value is None until a turn has ended, or waited past the limit."""
    rows = _sorted(samples)
    bad = sum(value > limit for value, _ in rows)
    unknown = sum(censored and value <= limit for value, censored in rows)
    least = Exceedance(bad, len(rows), design_effect).estimate(now_s, confidence)
    most = Exceedance(bad + unknown, len(rows), design_effect).estimate(now_s, confidence)
    value = None
    if len(rows) > unknown:
        at_risk, left = len(rows), 1.0
        for each, censored in rows:
            if each > limit:
                break
            if not censored:
                left *= 1.0 - 1.0 / at_risk
            at_risk -= 1
        # By its definition between the shares of the two extremes; rounding must not take it out.
        value = min(max(left, bad / len(rows)), (bad + unknown) / len(rows))
    return Estimate(value, least.low, most.high, least.n, now_s)


def quantile(samples: Iterable[Sample], q: float, now_s: float, confidence: float = CONFIDENCE) -> Estimate:
    """The q-quantile. The value is None where too many are censored for it to be known; `high` then is, too."""
    rows = _sorted(samples)
    n = len(rows)
    if n == 0:
        return Estimate(None, None, None, 0, now_s)
    low_rank, high_rank = bound_ranks(n, q, confidence)
    low = None if low_rank is None else rows[low_rank - 1][0]
    at_most = [value for value, censored in rows if not censored]
    high = None if high_rank is None or high_rank > len(at_most) else at_most[high_rank - 1]
    # Without censoring this is the nearest rank: S <= 1 - q at the ceil(q n)-th sample.
    wanted = 1.0 - rank(n, q) / n + 1e-12
    value, left = None, 1.0
    for at, (each, censored) in enumerate(rows):
        if not censored:
            left *= 1.0 - 1.0 / (n - at)
            if left <= wanted:
                value = each
                break
    return Estimate(value, low, None if high == math.inf else high, n, now_s)


def _sorted(samples: Iterable[Sample]) -> Sequence[Sample]:
    """Upwards; at a tie the ended come first, for the others have lasted longer."""
    rows = sorted(samples)
    if any(not value > -math.inf for value, _ in rows):
        raise ValueError("a sample is NaN or -inf")
    return rows
