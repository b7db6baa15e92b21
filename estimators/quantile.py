"""A quantile over the last few ticks, by nearest rank, with distribution-free bounds.

The q-quantile of n values is the ceil(q n)-th smallest. `nearest_rank` is the one definition of P99 in this
project, and it never makes up a value between two samples.

Bounds: of n independent samples, the number above the true quantile is Binomial(n, 1 - q), whatever the
distribution. So the largest s for which P(Bin <= n - s) <= .05 gives an upper bound X(s), and likewise a
lower one. For P99 the largest sample bounds it only if .99^n <= .05, that is from 299 samples on; below that
`high` is None.

Turns still waiting enter an estimate as lower bounds (their age so far). They count as samples of that age
for the value and the lower bound, and as infinite for the upper one.

Left out: correlation between samples (the bounds are too narrow under bursts; `exceedance` takes a design
effect).
"""

import math
from collections import deque
from collections.abc import Sequence

from .protocol import Estimate

CONFIDENCE = 0.95


def rank(n: int, q: float) -> int:
    """ceil(q n), from 1 to n. Raises ValueError unless n >= 1 and 0 < q < 1."""
    if n < 1 or not 0.0 < q < 1.0:
        raise ValueError(f"no rank for n={n}, q={q}")
    # 100 * .07 is 7.000000000000001 in binary, and its ceiling would be one too many.
    return min(n, max(1, math.ceil(q * n - 1e-9)))


def nearest_rank(sorted_values: Sequence[float], q: float) -> float:
    """The q-quantile of values sorted upwards. Raises ValueError for none, or for q outside (0, 1)."""
    return sorted_values[rank(len(sorted_values), q) - 1]


def bound_ranks(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """The ranks (1-based) of the samples that bound the true q-quantile from below and from above.

    Each bound holds with at least `confidence`; None where no sample of the n does.
    """
    above = 1.0 - q
    mean, sd = n * above, math.sqrt(n * above * q)
    k = max(0, int(mean - 12.0 * sd))  # what lies below is under 1e-20, and P(0) would underflow for large n
    log_choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    pmf = math.exp(log_choose + k * math.log(above) + (n - k) * math.log(q))
    cdf = pmf
    high: int | None = None
    while True:
        if cdf <= 1.0 - confidence:
            high = n - k
        if cdf >= confidence or k == n:
            break
        pmf *= (n - k) / (k + 1) * above / q
        k += 1
        cdf += pmf
    return (n - k if n > k else None), high


class WindowedQuantile:
    """The q-quantile of the samples of the last `slices` ticks, and of those since.

    Memory is at most (slices + 1) x cap_per_slice values; how a fuller slice is thinned is told at `_Slice`.
    """

    __slots__ = ("_cap_per_slice", "_closed", "_min_samples", "_open", "_q", "_rolled_s")

    def __init__(self, q: float, slices: int = 3, min_samples: int = 20, cap_per_slice: int = 4096) -> None:
        """Raises ValueError unless 0 < q < 1, slices >= 1 and cap_per_slice >= 2."""
        if not 0.0 < q < 1.0 or slices < 1 or cap_per_slice < 2:
            raise ValueError(f"no window for q={q}, slices={slices}, cap_per_slice={cap_per_slice}")
        self._q = q
        self._min_samples = max(1, min_samples)
        self._cap_per_slice = cap_per_slice
        self._open = _Slice(cap_per_slice)
        self._closed: deque[_Slice] = deque(maxlen=slices)
        self._rolled_s = -math.inf

    def update(self, value: float, now_s: float) -> None:
        """Adds a sample to the open slice; +inf stands for never. Raises ValueError for NaN and -inf."""
        if not value > -math.inf:
            raise ValueError(f"{value} is not a sample")
        self._open.add(value)

    def roll(self, now_s: float) -> None:
        """Closes the open slice. At a tick: first this, then `estimate`. A repeated call does nothing."""
        if now_s <= self._rolled_s:
            return
        self._rolled_s = now_s
        self._closed.append(self._open)
        self._open = _Slice(self._cap_per_slice)

    def estimate(self, now_s: float, extra: Sequence[float] = ()) -> Estimate:
        """The quantile and its bounds, all None below `min_samples`. `extra`: ages of turns still waiting."""
        known = [pair for part in (*self._closed, self._open) for pair in part.weighted()]
        n = sum(weight for _, weight in known) + len(extra)
        if n < self._min_samples:
            return Estimate(None, None, None, n, now_s)
        if any(math.isnan(age) for age in extra):
            raise ValueError("NaN is not an age")
        at_least = sorted(known + [(age, 1) for age in extra])
        at_most = sorted(known + [(math.inf, 1) for _ in extra])
        low_rank, high_rank = bound_ranks(n, self._q)
        low = None if low_rank is None else _at(at_least, n - low_rank)
        high = None if high_rank is None else _at(at_most, n - high_rank)
        value = _at(at_least, n - rank(n, self._q))
        return Estimate(value, low, None if high == math.inf else high, n, now_s)


class _Slice:
    """Samples between two ticks.

    Above `cap` values, the largest cap // 2 stay as they are and the others are merged two by two into the
    larger of each pair, with the weights added. A value outside the top half of the cap can never come back
    into it, so the top cap // 2 are those of all samples, however often this happens: a P99 is exact up to 50
    x cap samples (if they all fell into one slice). Below the top, the estimate errs upwards, towards the
    slower.
    """

    __slots__ = ("_cap", "_ones", "_thinned")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._ones: list[float] = []
        self._thinned: list[tuple[float, int]] = []

    def add(self, value: float) -> None:
        self._ones.append(value)
        if len(self._ones) + len(self._thinned) > self._cap:
            self._thin()

    def weighted(self) -> list[tuple[float, int]]:
        return [(value, 1) for value in self._ones] + self._thinned

    def _thin(self) -> None:
        # Of equal values the heavier sorts lower, so that none with a weight gets among the exact ones.
        pairs = sorted(self.weighted(), key=lambda pair: (pair[0], -pair[1]))
        split = len(pairs) - self._cap // 2
        self._ones = [value for value, _ in pairs[split:]]
        odd = split % 2
        self._thinned = pairs[:odd]
        for at in range(odd, split, 2):
            (_, weight), (larger, its_weight) = pairs[at], pairs[at + 1]
            self._thinned.append((larger, weight + its_weight))


def _at(pairs: Sequence[tuple[float, int]], above: int) -> float:
    """The value that exactly `above` samples follow, of pairs (value, weight) sorted upwards."""
    for value, weight in reversed(pairs):
        above -= weight
        if above < 0:
            return value
    raise ValueError("more samples above than there are")
