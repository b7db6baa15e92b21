"""A circuit breaker per node, passive health: what turns found says what health checks do not see.

    closed --5 failures in a row--> open --wait--> half-open --one turn through--> closed, or open for twice as long

A failure is a node's own: an answer of 5xx, a timeout, an answer that breaks off, a hand-over that cannot be used. What
an engine says of the client's request (4xx) is an answer, and an answer ends a row. 408, 425 and 429 say that the node
is busy and count as neither. As long as the client has got nothing a failure counts only once another node has answered
the turn (`RouterCore.suspect`): a request that makes every engine answer 500 opens nothing. A node without another of
its role is never opened: a bad node is better than none (`RouterCore.node_failed`). Half-open lets one turn through at
a time; a trial that ends without a verdict (its client left) makes room for the next. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FAILURES = 5
"""In a row."""
OPEN_S = 5.0
"""The first wait; it doubles with every trial that fails."""
MAX_OPEN_S = 60.0


class BreakerState(StrEnum):
    """What a breaker lets through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class Breaker:
    """One node's."""

    failures: int = 0
    """In a row."""
    opened: int = 0
    """Times, for the metric."""
    why: str = ""
    """The last failure's kind."""
    _opened_s: float | None = None
    _wait_s: float = OPEN_S
    _trial: str | None = None
    _trial_s: float = 0.0

    def state(self, now_s: float) -> BreakerState:
        """What it is at that time."""
        if self._opened_s is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now_s - self._opened_s >= self._wait_s else BreakerState.OPEN

    def admits(self, now_s: float) -> bool:
        """Whether a turn may go to the node. A trial that nobody ever ended does not block the next for long."""
        state = self.state(now_s)
        if state is not BreakerState.HALF_OPEN:
            return state is BreakerState.CLOSED
        return self._trial is None or now_s - self._trial_s >= MAX_OPEN_S

    def claim(self, request_id: str, now_s: float) -> None:
        """A turn was placed on the node; if it is half-open, this is the trial."""
        if self.state(now_s) is BreakerState.HALF_OPEN and self.admits(now_s):
            self._trial, self._trial_s = request_id, now_s

    def release(self, request_id: str) -> None:
        """The turn ended; as a trial it may have said nothing."""
        if self._trial == request_id:
            self._trial = None

    def failed(self, why: str, now_s: float, *, may_open: bool = True) -> bool:
        """A turn failed by the node's fault. True if that opened the breaker."""
        self.failures += 1
        self.why = why
        state = self.state(now_s)
        if state is BreakerState.OPEN:  # turns that were under way
            return False
        if state is BreakerState.HALF_OPEN:
            self._wait_s = min(MAX_OPEN_S, 2 * self._wait_s)
        elif self.failures < FAILURES or not may_open:
            return False
        self.opened += 1
        self._opened_s, self._trial = now_s, None
        return True

    def answered(self, now_s: float) -> bool:
        """The node answered a turn. True if that closed the breaker; turns under way when it opened change nothing."""
        state = self.state(now_s)
        if state is BreakerState.OPEN:
            return False
        self.failures, self._opened_s, self._trial, self._wait_s = 0, None, None, OPEN_S
        return state is BreakerState.HALF_OPEN
