"""Which moment it is, for what is kept over days: seconds since the epoch that never run back by themselves.

A wall clock is set, corrected and wrong after a start; a monotonic one means nothing after a restart. So:

    it advances with the monotonic clock, from the wall clock at the start;
    what the wall clock is ahead or behind, up to an hour, is caught up at a tenth of a second a second, so no slice
    of time is skipped and none comes twice, it only lasts up to a tenth longer or shorter;
    a larger difference is believed, at once, after it has stood for ten minutes. Forward, the slices between were
    not measured; backward, what was counted meanwhile stays counted.

A restart goes on from the last moment that was stored where the wall clock is behind it by less than an hour.
"""

SLEW = 0.1
JUMP_S = 3600.0
STOOD_S = 600.0


class Epoch:
    """The one calendar of a process."""

    __slots__ = ("_jumped_s", "_mono_s", "_now_s", "jumps")

    def __init__(self, wall_s: float, mono_s: float, stored_s: float | None = None) -> None:
        """`stored_s`: the last moment that an earlier process stored."""
        behind = stored_s is not None and 0.0 < stored_s - wall_s <= JUMP_S
        self._now_s = stored_s if behind and stored_s is not None else wall_s
        self._mono_s = mono_s
        self._jumped_s: float | None = None
        self.jumps = 0
        """Differences of more than an hour that were believed."""

    def at(self, mono_s: float, wall_s: float) -> float:
        """The moment, given both clocks now."""
        step_s = max(0.0, mono_s - self._mono_s)
        self._mono_s = max(self._mono_s, mono_s)
        self._now_s += step_s
        ahead_s = wall_s - self._now_s
        if abs(ahead_s) <= JUMP_S:
            self._jumped_s = None
            self._now_s += max(-SLEW * step_s, min(SLEW * step_s, ahead_s))
        elif self._jumped_s is None:
            self._jumped_s = self._mono_s
        elif self._mono_s - self._jumped_s >= STOOD_S:
            self._now_s, self._jumped_s = wall_s, None
            self.jumps += 1
        return self._now_s
