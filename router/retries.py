"""How often turns may be planned again: a share of all requests, so that a fleet in trouble is not asked twice for
everything.

A bucket of tokens. Each request puts `share` in, each new plan takes one out; `floor_hz` tokens a second come by
themselves, for a router with little traffic, and at most `most` are kept. A turn that finds none ends with what its
last engine said. Left out: a budget per node.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """`share` of requests, 0 or more. `allowed` and `denied` count."""

    share: float = 0.2
    floor_hz: float = 10.0
    most: float = 100.0
    allowed: int = 0
    denied: int = 0
    _tokens: float = -1.0
    _now_s: float = 0.0

    def __post_init__(self) -> None:
        if self.share < 0 or self.floor_hz < 0 or self.most < 1:
            raise ValueError(
                f"a retry budget is a share and a floor of 0 or more, and 1 token or more, "
                f"got {self.share:g}, {self.floor_hz:g} and {self.most:g}"
            )
        self._tokens = self.most

    @property
    def tokens(self) -> float:
        """What is in the bucket."""
        return self._tokens

    def request(self) -> None:
        """A request has come."""
        self._tokens = min(self.most, self._tokens + self.share)

    def take(self, now_s: float) -> bool:
        """Whether a turn may be planned again now."""
        passed_s = max(0.0, now_s - self._now_s)
        self._now_s = now_s
        self._tokens = min(self.most, self._tokens + passed_s * self.floor_hz)
        if self._tokens < 1.0 - 1e-9:  # five fifths are one
            self.denied += 1
            return False
        self._tokens -= 1.0
        self.allowed += 1
        return True
