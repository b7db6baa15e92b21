"""How late this process writes: the wall seconds between when a chunk was due and when it went out.

One process emulates a whole fleet, so it can be too slow for the load or the speed that it is given. Then its
latencies say something about itself and not about the fleet. It says so: `behind` when, over the last seconds, P99
of the lag is above the bound, in the log and on /metrics.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque

log = logging.getLogger(__name__)

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WINDOW_S = 5
"""Seconds over which the P99 is taken."""
_LOG_EVERY_S = 10.0


class Lag:
    """Lags of the chunks of all nodes; `bound_s` is the P99 above which the process is behind."""

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Chunks by lag since the start, the last without an upper bound."""
        self.sum_s = 0.0
        self.max_s = 0.0
        self._over = 0
        self._total = 0
        self._second = int(time.monotonic())
        self._window: deque[tuple[int, int, int, list[int]]] = deque()
        self._before = list(self.counts)
        self._behind = False
        self._logged = -_LOG_EVERY_S

    def note(self, late_s: float) -> None:
        """A chunk went out that late."""
        self.counts[bisect_left(BOUNDS_S, late_s)] += 1
        self.sum_s += late_s
        self._total += 1
        if late_s > self.bound_s:
            self._over += 1
        if late_s > self.max_s:
            self.max_s = late_s

    def tick(self) -> None:
        """Look once a second whether the process keeps up; cheap to call more often."""
        second = int(time.monotonic())
        if second == self._second:
            return
        made = [now - then for now, then in zip(self.counts, self._before, strict=True)]
        self._window.append((self._second, self._total, self._over, made))
        self._second, self._total, self._over, self._before = second, 0, 0, list(self.counts)
        while self._window and self._window[0][0] < second - WINDOW_S:
            self._window.popleft()
        total = sum(entry[1] for entry in self._window)
        over = sum(entry[2] for entry in self._window)
        was, self._behind = self._behind, over > 0.01 * total
        if self._behind and (not was or time.monotonic() - self._logged > _LOG_EVERY_S):
            self._logged = time.monotonic()
            log.warning(
                "the emulator is behind: P99 of its lag is up to %.1f ms (bound %.1f ms, %d chunks/s); latencies "
                "are its own, not the fleet's: lower the load or the speed",
                self.p99_s * 1e3,
                self.bound_s * 1e3,
                total // max(1, len(self._window)),
            )
        elif was and not self._behind:
            log.warning("the emulator keeps up again")

    @property
    def behind(self) -> bool:
        """Whether P99 was above the bound over the last seconds."""
        self.tick()
        return self._behind

    @property
    def p99_s(self) -> float:
        """P99 over the last seconds, rounded up to a bucket's bound; 0 without chunks."""
        self.tick()
        counts = [sum(column) for column in zip(*(entry[3] for entry in self._window), strict=True)]
        left = sum(counts) * 0.01
        for bound, count in zip(reversed((*BOUNDS_S, self.max_s)), reversed(counts), strict=False):
            left -= count
            if left < 0:
                return bound
        return 0.0
