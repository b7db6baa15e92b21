"""Whether the declared SLOs can be held at all: a flag with the direction of relief.

Routing only trades one side for the other. When both SLOs are missed at once, or one is missed although the price is at
the end that protects it, no price will do: the operator has to add capacity on the side named, or loosen the SLO. The
law goes on minimising the worse violation meanwhile, with steps no larger than before.

A tick is impossible if both are missed for sure, each by itself, over the last minutes (`LONG_KEEP`: half is forgotten
in two), and are missed by what the law goes by too, which is younger: an overload that is over ends with its last
misses, not with the memory of them. `RAISE` impossible ticks in a row raise the flag, `CLEAR` without clear it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .laws.protocol import Side, Sides

LONG_KEEP = 0.975
SURE = 2.0
"""Deviations."""
RAISE = 6
"""Half a minute of 5-s ticks."""
CLEAR = 12
"""A minute."""
NEAR_END = 0.05


class Relief(StrEnum):
    """What would help."""

    PREFILL = "add prefill capacity or loosen the TTFT SLO"
    DECODE = "add decode capacity or loosen the TPOT SLO"
    BOTH = "lower the load, add prefill and decode capacity, or loosen both SLOs"


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Ticks in a row with and without an impossible demand, and the flag."""

    impossible: int = 0
    possible: int = 0
    relief: Relief | None = None
    last: Relief | None = None
    """What the last tick with an impossible demand was short of."""

    def after(self, sigma: float, long: Sides, now: Sides, ends: tuple[float, float] = (0.0, 1.0)) -> Feasibility:
        """The state after one more tick at `sigma`, within `ends`: what the last minutes say, and what the law went by.
        No evidence on the side that was short changes nothing."""
        ttft_over, tpot_over = _over(long.ttft, now.ttft), _over(long.tpot, now.tpot)
        found: Relief | None = None
        if _both(long, now):
            found = Relief.BOTH
        elif tpot_over and sigma <= ends[0] + NEAR_END:
            found = Relief.DECODE
        elif ttft_over and sigma >= ends[1] - NEAR_END:
            found = Relief.PREFILL
        if found is not None:
            impossible = self.impossible + 1
            relief = found if impossible >= RAISE or self.relief is not None else None
            return Feasibility(impossible, 0, relief, found)
        if not self._refuted(ttft_over, tpot_over):
            return self
        return self._without()

    def unasked(self) -> Feasibility:
        """The state after a tick in which nobody asked: the flag does not outlive what it was raised by."""
        return self if self.relief is None and not self.impossible else self._without()

    def _without(self) -> Feasibility:
        possible = self.possible + 1
        return Feasibility(0, possible, None if possible >= CLEAR else self.relief, self.last)

    def _refuted(self, ttft_over: bool | None, tpot_over: bool | None) -> bool:
        """Whether a tick without an impossible demand says anything against the last one."""
        if self.last is Relief.PREFILL:
            return ttft_over is not None
        if self.last is Relief.DECODE:
            return tpot_over is not None
        if self.last is Relief.BOTH:
            return ttft_over is False or tpot_over is False
        return ttft_over is not None or tpot_over is not None


def _over(long: Side, now: Side) -> bool | None:
    """Whether the SLO is missed; None without evidence."""
    return None if not now.turns else long.low > 1 and now.z > 0


def _both(long: Sides, now: Sides) -> bool:
    """Both SLOs are missed for sure, and still are."""
    if not (now.ttft.turns and now.tpot.turns):
        return False
    sure = min(long.ttft.z / long.ttft.sd, long.tpot.z / long.tpot.sd) > SURE
    return sure and min(now.ttft.z, now.tpot.z) > 0
