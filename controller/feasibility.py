"""Whether the declared SLOs can be held at all: a flag with the direction of relief.

Routing only trades one side for the other. When both SLOs are over at once, or one is over although the price
is at the end that protects it, for a minute on end, no price will do: the operator has to add capacity on the
side named, or loosen the SLO. The law goes on minimising the worse violation meanwhile. The flag clears after
a minute without.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slos.reduce import Binding, SloReading

TICKS = 12
"""One minute of 5-s ticks, to raise the flag and to clear it."""
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

    def after(self, sigma: float, binding: Binding) -> Feasibility:
        """The state after one more tick. No evidence on the side that was short changes nothing."""
        ttft_over, tpot_over = _over(binding.ttft), _over(binding.tpot)
        found: Relief | None = None
        if ttft_over and tpot_over:
            found = Relief.BOTH
        elif tpot_over and sigma <= NEAR_END:
            found = Relief.DECODE
        elif ttft_over and sigma >= 1 - NEAR_END:
            found = Relief.PREFILL
        if found is not None:
            impossible = self.impossible + 1
            relief = found if impossible >= TICKS or self.relief is not None else None
            return Feasibility(impossible, 0, relief, found)
        if not self._refuted(ttft_over, tpot_over):
            return self
        possible = self.possible + 1
        return Feasibility(0, possible, None if possible >= TICKS else self.relief, self.last)

    def _refuted(self, ttft_over: bool | None, tpot_over: bool | None) -> bool:
        """Whether a tick without an impossible demand says anything against the last one."""
        if self.last is Relief.PREFILL:
            return ttft_over is not None
        if self.last is Relief.DECODE:
            return tpot_over is not None
        if self.last is Relief.BOTH:
            return ttft_over is False or tpot_over is False
        return ttft_over is not None or tpot_over is not None


def _over(reading: SloReading | None) -> bool | None:
    """Whether the SLO is violated; None without evidence."""
    severity = None if reading is None else reading.severity
    return None if severity is None else severity > 1
