"""AIMD on the price, the default law.

TPOT over its SLO and relatively the worse: σ ← back_off · σ, the price rises and less goes local. Else TTFT
over: σ ← min(1, σ + gain). Else hold. σ is PriceRange's coordinate. Steps of .96 and .02 a 5-s tick were
chosen on the fleet simulation of docs/explanation/scenarios.md; faster ones oscillate. The state is the
actuator, so clipping is anti-windup.
"""

from __future__ import annotations

from dataclasses import dataclass

from slos.reduce import Binding

from .protocol import Action, Adjustment


@dataclass(frozen=True, slots=True)
class Aimd:
    """`back_off` in (0, 1), `gain` in (0, 1)."""

    back_off: float = 0.96
    gain: float = 0.02

    def __post_init__(self) -> None:
        if not (0 < self.back_off < 1 and 0 < self.gain < 1):
            raise ValueError(f"AIMD needs back_off and gain inside (0, 1), got {self.back_off} and {self.gain}")

    def step(self, sigma: float, binding: Binding) -> Adjustment:
        """One tick."""
        ttft = None if binding.ttft is None else binding.ttft.severity
        tpot = None if binding.tpot is None else binding.tpot.severity
        if ttft is None and tpot is None:
            return Adjustment(sigma, Action.NO_EVIDENCE)
        if tpot is not None and tpot > 1 and (ttft is None or tpot >= ttft):
            return Adjustment(self.back_off * sigma, Action.PROTECT_TPOT)
        if ttft is not None and ttft > 1:
            return Adjustment(min(1.0, sigma + self.gain), Action.PROTECT_TTFT)
        return Adjustment(sigma, Action.HOLD)
