"""The counts of the last few minutes, from counters that only ever grow.

What was added is kept in slices of a sixtieth of the span (5 s of 5 min), so the memory is fixed and the
window's far end is exact to one slice. Left out: longer windows and anything on disk.
"""

from collections import deque

from .counts import Count

SPAN_S = 300.0
_SLICES = 60


class CountWindow:
    """One SLO's counts over the last `span_s` seconds. Time that runs backwards stands still."""

    __slots__ = ("_before", "_now_s", "_slice_s", "_slices", "_total", "span_s")

    def __init__(self, span_s: float = SPAN_S) -> None:
        """Raises ValueError unless the span is positive."""
        if not span_s > 0.0:
            raise ValueError(f"a window of {span_s} s")
        self.span_s = span_s
        self._slice_s = span_s / _SLICES
        self._slices: deque[tuple[float, Count]] = deque()
        self._before: Count | None = None
        self._total = Count()
        self._now_s = float("-inf")

    def add(self, cumulative: Count, now_s: float) -> None:
        """Takes the counter's value. The first only says where counting starts."""
        self._now_s = max(self._now_s, now_s)
        added = Count() if self._before is None else cumulative.since(self._before)
        self._before = cumulative
        if self._slices and self._now_s - self._slices[-1][0] < self._slice_s:
            began_s, sum_so_far = self._slices.pop()
            self._slices.append((began_s, sum_so_far + added))
        else:
            self._slices.append((self._now_s, added))
        self._total += added
        while self._now_s - self._slices[0][0] >= self.span_s:
            _, gone = self._slices.popleft()
            self._total = self._total.since(gone)  # never less than a part of itself

    def restart(self) -> None:
        """Forgets all; the next value says again where counting starts."""
        self._slices.clear()
        self._total = Count()
        self._before = None

    def total(self) -> Count:
        """What was added within the window."""
        return self._total
