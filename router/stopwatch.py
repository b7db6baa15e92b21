"""The router's clock on one turn: TTFT, TPOT and end-to-end time from the moment the request was accepted.

TTFT ends with the first non-empty content, reasoning or tool delta. TPOT = (last − first)/(n − 1), n from
usage, for n ≥ 2.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnTiming:
    """Seconds; None where the turn did not get that far, or had a single token."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float


@dataclass(slots=True)
class Stopwatch:
    """Marks of one turn, in the caller's clock."""

    accepted_s: float
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    """Deltas with content so far."""

    def token(self, now_s: float, tokens: int = 1) -> None:
        """A delta with content went out, or several at once."""
        if self.first_s is None:
            self.first_s = now_s
        self.last_s = now_s
        self.tokens += tokens

    def read(self, now_s: float, output_tokens: int) -> TurnTiming:
        """The turn ended now with that many tokens."""
        ttft_s = None if self.first_s is None else self.first_s - self.accepted_s
        tpot_s = None
        if self.first_s is not None and self.last_s is not None and output_tokens >= 2:
            tpot_s = (self.last_s - self.first_s) / (output_tokens - 1)
        return TurnTiming(ttft_s, tpot_s, now_s - self.accepted_s)
