"""Whether the declared SLOs can be held at all: a flag with the direction of relief.

Routing only trades one side for the other. When both SLOs are over at once, or one is over although the price
is at the end that protects it, for a minute on end, no price will do: the operator has to add capacity on the
side named, or loosen the SLO. The law goes on minimising the worse violation meanwhile. The flag clears after
a minute without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from slos.reduce import Binding

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

    def after(self, sigma: float, binding: Binding) -> Feasibility:
        """The state after one more tick. No evidence changes nothing."""
        if binding.ttft is None and binding.tpot is None:
            return self
        ttft_over = binding.ttft is not None and (binding.ttft.severity or 0) > 1
        tpot_over = binding.tpot is not None and (binding.tpot.severity or 0) > 1
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
            return replace(self, impossible=impossible, possible=0, relief=relief)
        possible = self.possible + 1
        return Feasibility(0, possible, None if possible >= TICKS else self.relief)
