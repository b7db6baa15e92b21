"""How often something happens, with exponential forgetting over two horizons.

For a horizon T the rate is sum over events of exp(-age / T) / T. Soon after the start the sum has not filled
yet, so it is divided by 1 - exp(-elapsed / T). The result is the geometric mean of a fast (10 s) and a slow
(60 s) horizon: it follows a step within seconds, and is calmer than the fast one alone.
"""

import math
from typing import Self

from .protocol import Estimate, State

HORIZONS_S = (10.0, 60.0)
MIN_ELAPSED_S = 1.0  # one event a millisecond after the start is no 1000 Hz


class EventRate:
    """Events per second (Hz). The state is one number a horizon."""

    __slots__ = ("_horizons_s", "_last_s", "_start_s", "_sums")

    def __init__(self, start_s: float, horizons_s: tuple[float, ...] = HORIZONS_S) -> None:
        """`start_s` is when counting began. Raises ValueError unless every horizon is positive."""
        if not horizons_s or not all(horizon_s > 0.0 for horizon_s in horizons_s):
            raise ValueError(f"horizons {horizons_s} are not all positive")
        self._horizons_s = horizons_s
        self._start_s = start_s
        self._last_s = start_s
        self._sums = [0.0] * len(horizons_s)

    def update(self, value: float, now_s: float) -> None:
        """Counts `value` events at `now_s`, 1 for one. Raises ValueError unless it is a number >= 0, at a time."""
        # A time of +inf or NaN would stop the clock of this estimator for good.
        if not (0.0 <= value < math.inf and now_s < math.inf):
            raise ValueError(f"{value} events at {now_s}")
        self._sums = [total + value for total in self._decayed(now_s)]
        self._last_s = max(self._last_s, now_s)

    def rate_hz(self, now_s: float) -> float:
        """The geometric mean over the horizons; 0 before the first event."""
        elapsed_s = max(MIN_ELAPSED_S, max(now_s, self._last_s) - self._start_s)
        product = 1.0
        for total, horizon_s in zip(self._decayed(now_s), self._horizons_s, strict=True):
            product *= total / (horizon_s * -math.expm1(-elapsed_s / horizon_s))
        return float(product ** (1.0 / len(self._horizons_s)))

    def estimate(self, now_s: float) -> Estimate:
        """`rate_hz` without bounds; `n` is the discounted number of events within the longest horizon."""
        longest = max(range(len(self._horizons_s)), key=self._horizons_s.__getitem__)
        return Estimate(self.rate_hz(now_s), None, None, self._decayed(now_s)[longest], now_s)

    def merged(self, other: Self) -> Self:
        """Both streams as one, counted since the earlier start. Raises ValueError for other horizons."""
        if self._horizons_s != other._horizons_s:
            raise ValueError(f"horizons {self._horizons_s} and {other._horizons_s} are not the same")
        both = type(self)(min(self._start_s, other._start_s), self._horizons_s)
        both._last_s = max(self._last_s, other._last_s)
        both._sums = [a + b for a, b in zip(self._decayed(both._last_s), other._decayed(both._last_s), strict=True)]
        return both

    def snapshot(self) -> State:
        """Times are the caller's clock: of use only where that goes on."""
        return {
            "horizons_s": list(self._horizons_s),
            "start_s": self._start_s,
            "last_s": self._last_s,
            "sums": list(self._sums),
        }

    @classmethod
    def restore(cls, state: State) -> Self:
        """Raises ValueError for what no `snapshot` gave."""
        try:
            rate = cls(float(state["start_s"]), tuple(map(float, state["horizons_s"])))
            rate._last_s = float(state["last_s"])
            sums = [float(total) for total in state["sums"]]
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"no state of an EventRate: {problem!r}") from problem
        times = (rate._start_s, rate._last_s)
        if len(sums) != len(rate._sums) or not all(0.0 <= total < math.inf for total in sums):
            raise ValueError(f"no state of an EventRate: sums {sums}")
        if not all(map(math.isfinite, times)) or rate._last_s < rate._start_s:
            raise ValueError(f"no state of an EventRate: times {times}")
        rate._sums = sums
        return rate

    def _decayed(self, now_s: float) -> list[float]:
        age_s = max(0.0, now_s - self._last_s)
        return [
            total * math.exp(-age_s / horizon_s) for total, horizon_s in zip(self._sums, self._horizons_s, strict=True)
        ]
