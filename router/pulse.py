"""The times at which this process is known to have been awake, for what must not be counted from a late look.

A reply waits in its socket while the process stands still, stopped by a signal or its event loop overloaded. When it
is read, its age is unknown; but one that had come before an earlier beat would have been read by then. A beat may run
after the pause and before the read, though at most once in two passes of the loop; a reply is read in the first pass
and seen in the second. So the bound is a beat some beats back, and a pause of any length lies after it.

What it leaves out: how long the reply was on its way, and a pause in which the clock stands still too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf

BEAT_S = 0.1
KEPT = 4
"""Beats: one of the last pass, one of the pass before, and as many again to be safe. A bound is up to KEPT * BEAT_S too
early, which a lease of many seconds does not feel."""


class Pulse:
    """`run` beats for ever; without it nothing is known."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._beats: deque[float] = deque(maxlen=KEPT)

    @property
    def awake_s(self) -> float:
        """What came before this had been seen by now. -inf while nothing is known."""
        return self._beats[0] if len(self._beats) == KEPT else -inf

    def beat(self) -> None:
        """The loop turns."""
        self._beats.append(self._now_s())

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_S)
