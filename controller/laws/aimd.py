"""AIMD on the price: steps of one size, by the percentiles of the last three ticks.

TPOT over its SLO and relatively the worse: σ ← back_off · σ, the price rises and less goes local. Else TTFT
over: σ ← min(1, σ + gain). Else hold; both promises kept for sure (`Side.kept`): hold. σ is PriceRange's coordinate.
Steps of .96 and .02 a 5-s tick come from a simulation study; faster ones oscillate. The state is the actuator, so
clipping is anti-windup. `priority` says which side is "the worse" (`priority.py`); badness is ln(severity).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan, log

from .priority import at_rest, error
from .protocol import Action, Adjustment, Priority, Side, Sides

COMFORT = 0.1
ROOM = 0.1
"""Of ln(severity): ten percent."""


@dataclass(frozen=True, slots=True)
class Aimd:
    """`back_off` in (0, 1), `gain` in (0, 1)."""

    back_off: float = 0.96
    gain: float = 0.02
    priority: Priority = Priority.BALANCED

    def __post_init__(self) -> None:
        if not (0 < self.back_off < 1 and 0 < self.gain < 1):
            raise ValueError(f"AIMD needs back_off and gain inside (0, 1), got {self.back_off} and {self.gain}")

    def step(self, sigma: float, sides: Sides) -> tuple[Aimd, Adjustment]:
        """One tick."""
        if sides.ttft.severity is None and sides.tpot.severity is None:
            return self, Adjustment(sigma, Action.NO_EVIDENCE)
        if (rest := at_rest(self.priority, sigma, sides)) is not None:
            return self, rest
        ttft, tpot = _badness(sides.ttft), _badness(sides.tpot)
        if max(ttft, tpot) <= 0:
            return self, Adjustment(sigma, Action.HOLD)
        wanted = error(self.priority, ttft, tpot, COMFORT, ROOM)
        if wanted > 0:
            return self, Adjustment(min(1.0, sigma + self.gain), Action.PROTECT_TTFT)
        if wanted < 0 or (self.priority in (Priority.BALANCED, Priority.ECONOMIC) and tpot > 0):
            return self, Adjustment(self.back_off * sigma, Action.PROTECT_TPOT)
        return self, Adjustment(sigma, Action.HOLD)

    @property
    def memory(self) -> Mapping[str, float]:
        """None but the price."""
        return {}

    def remembering(self, memory: Mapping[str, float]) -> Aimd:
        """Itself."""
        return self


def _badness(side: Side) -> float:
    """ln(severity); without evidence as bad as nothing."""
    if side.severity is None or isnan(side.severity):
        return -inf
    return log(side.severity) if side.severity > 0 else -inf
