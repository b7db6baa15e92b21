"""The process's clock: seconds since the epoch at start, monotonic from there on. The only place that reads it."""

from __future__ import annotations

import time


class Clock:
    """`now_s()` never goes backwards and never jumps with the wall clock."""

    __slots__ = ("_offset_s",)

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds, comparable within this process; close to wall time at its start."""
        return self._offset_s + time.monotonic()
