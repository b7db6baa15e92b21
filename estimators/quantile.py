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
from collections.abc import Iterable, Sequence
from typing import Self

from .protocol import Estimate, State, plain

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


def fewest_samples(q: float, confidence: float = CONFIDENCE) -> int:
    """The least n from which the largest sample bounds the q-quantile from above: q^n <= 1 - confidence.

    299 for a P99 at .95, 459 at .99. Raises ValueError unless 0 < q < 1 and 0 < confidence < 1.
    """
    if not 0.0 < q < 1.0 or not 0.0 < confidence < 1.0:
        raise ValueError(f"no number of samples for q={q}, confidence={confidence}")
    # As in `bound_ranks` the tail is compared, so that both agree to the last sample.
    n = max(1, math.floor(math.log1p(-confidence) / math.log(q)) - 1)
    while bound_ranks(n, q, confidence)[1] is None:
        n += 1
    return n


class WindowedQuantile:
    """The q-quantile of the samples of the last `slices` ticks, and of those since.

    Memory is at most (slices + 1) x cap_per_slice values; how a fuller slice is thinned is told at `_Slice`.
    """

    __slots__ = ("_cap_per_slice", "_closed", "_confidence", "_min_samples", "_open", "_q", "_rolled_s")

    def __init__(
        self,
        q: float,
        slices: int = 3,
        min_samples: int = 20,
        cap_per_slice: int = 4096,
        confidence: float = CONFIDENCE,
    ) -> None:
        """Raises ValueError unless 0 < q < 1, slices >= 1, cap_per_slice >= 2 and 0 < confidence < 1."""
        if not 0.0 < q < 1.0 or slices < 1 or cap_per_slice < 2 or not 0.0 < confidence < 1.0:
            given = f"q={q}, slices={slices}, cap_per_slice={cap_per_slice}, confidence={confidence}"
            raise ValueError(f"no window for {given}")
        self._q = q
        self._confidence = confidence
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
        """Closes the open slice. At a tick: first this, then `estimate`. A repeated call does nothing.

        Raises ValueError for a time that is none: it would keep the window from ever rolling again.
        """
        if not math.isfinite(now_s):
            raise ValueError(f"{now_s} is not a time")
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
        low_rank, high_rank = bound_ranks(n, self._q, self._confidence)
        low, merged = (None, 1) if low_rank is None else _at(at_least, n - low_rank)
        high = None if high_rank is None else _at(at_most, n - high_rank)[0]
        value = _at(at_least, n - rank(n, self._q))[0]
        if merged > 1:  # the larger of those it stands for: no lower bound
            low = None
        return Estimate(value, low, None if high == math.inf else high, n, now_s)

    def merged(self, other: Self) -> Self:
        """Both windows as one, tick by tick from the newest: exact as far as one that had taken everything is.

        Raises ValueError unless both were made alike.
        """
        if self._made() != other._made():
            raise ValueError(f"windows made with {self._made()} and {other._made()} are not of one quantity")
        both = type(self)(*self._made())
        both._rolled_s = max(self._rolled_s, other._rolled_s)
        both._open.take((*self._open.weighted(), *other._open.weighted()))
        for at in range(max(len(self._closed), len(other._closed)), 0, -1):
            part = _Slice(self._cap_per_slice)
            part.take(
                pair for each in (self, other) if len(each._closed) >= at for pair in each._closed[-at].weighted()
            )
            both._closed.append(part)
        return both

    def snapshot(self) -> State:
        """Every value that is kept, with its weight."""
        parts = (*self._closed, self._open)
        return {
            "made": list(self._made()),
            "rolled_s": None if self._rolled_s == -math.inf else self._rolled_s,
            "parts": [[[plain(value), weight] for value, weight in part.weighted()] for part in parts],
        }

    @classmethod
    def restore(cls, state: State) -> Self:
        """Raises ValueError for what no `snapshot` gave."""
        try:
            q, slices, min_samples, cap, confidence = state["made"]
            window = cls(float(q), int(slices), int(min_samples), int(cap), float(confidence))
            window._rolled_s = -math.inf if state["rolled_s"] is None else float(state["rolled_s"])
            *closed, last = state["parts"]
            for part in closed:
                new = _Slice(window._cap_per_slice)
                new.take((float(value), int(weight)) for value, weight in part)
                window._closed.append(new)
            window._open.take((float(value), int(weight)) for value, weight in last)
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"no state of a WindowedQuantile: {problem!r}") from problem
        return window

    def _made(self) -> tuple[float, int, int, int, float]:
        return self._q, self._closed.maxlen or 1, self._min_samples, self._cap_per_slice, self._confidence


class _Slice:
    """Samples between two ticks.

    Above `cap` values, the largest cap // 2 stay as they are and the others are merged two by two into the
    larger of each pair, with the weights added. A value outside the top half of the cap can never come back
    into it, so the top cap // 2 are those of all samples, however often this happens: a P99 is exact up to 50
    x cap samples (if they all fell into one slice). Below the top, the estimate errs upwards, towards the
    slower, and has no lower bound.
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

    def take(self, pairs: Iterable[tuple[float, int]]) -> None:
        for value, weight in pairs:
            if weight < 1 or math.isnan(value):
                raise ValueError(f"{value} with weight {weight} is not a sample")
            if weight == 1:
                self._ones.append(value)
            else:
                self._thinned.append((value, weight))
            if len(self._ones) + len(self._thinned) > 2 * self._cap:
                self._thin()
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


def _at(pairs: Sequence[tuple[float, int]], above: int) -> tuple[float, int]:
    """The value that exactly `above` samples follow, of pairs (value, weight) sorted upwards, and its weight."""
    for value, weight in reversed(pairs):
        above -= weight
        if above < 0:
            return value, weight
    raise ValueError("more samples above than there are")
