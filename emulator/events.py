"""Virtual time: a heap of events. Ties run in the order in which they were scheduled."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Events:
    """The clock and agenda of one simulated fleet. `now_s` moves only inside `run`."""

    __slots__ = ("_count", "_heap", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0

    def at(self, when_s: float, action: Callable[..., None], *args: object) -> None:
        """Run `action(*args)` at `when_s`; a time in the past means now."""
        self._count += 1
        heappush(self._heap, (when_s if when_s > self.now_s else self.now_s, self._count, action, args))

    def after(self, delay_s: float, action: Callable[..., None], *args: object) -> None:
        """Run `action(*args)` `delay_s` from now."""
        self.at(self.now_s + delay_s, action, *args)

    def run(self, until_s: float) -> int:
        """Run everything due up to and including `until_s`; returns the number of events run."""
        heap = self._heap
        done = 0
        while heap and heap[0][0] <= until_s:
            self.now_s, _, action, args = heappop(heap)
            action(*args)
            done += 1
        self.now_s = max(self.now_s, until_s)
        return done

    @property
    def next_s(self) -> float | None:
        """When the next event is due; None if there is none."""
        return self._heap[0][0] if self._heap else None

    @property
    def pending(self) -> int:
        """Events still on the agenda."""
        return len(self._heap)
