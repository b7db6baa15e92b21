"""What a control law is: readings in, a new place on the price range out. No clock, no I/O, no memory but its
own state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import exp, log
from typing import Protocol

from slos.reduce import Binding


class Action(StrEnum):
    """What a law did in a tick, and why."""

    PROTECT_TPOT = "protect_tpot"
    """TPOT is over its SLO and the worse of the two: the price rises, less goes local."""
    PROTECT_TTFT = "protect_ttft"
    """TTFT is over its SLO and the worse of the two: the price falls, more goes local."""
    HOLD = "hold"
    """Both inside."""
    NO_EVIDENCE = "no_evidence"
    """Too few samples to say anything."""


@dataclass(frozen=True, slots=True)
class PriceRange:
    """The prices that a law may set, and the coordinate it moves on: σ = ln(high/p) / ln(high/low), 0 at
    high, 1 at low.

    Defaults: regimes in which the right price was known lay within .2–.6; the SLO pair moves it about
    tenfold.
    """

    low: float = 0.02
    high: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < float("inf"):
            raise ValueError(f"price range needs 0 < low < high, got {self.low}..{self.high}")

    def sigma(self, price: float) -> float:
        """Coordinate of a price, clipped to the range."""
        return min(1.0, max(0.0, log(self.high / price) / log(self.high / self.low)))

    def price(self, sigma: float) -> float:
        """Price at a coordinate."""
        return self.high * exp(-sigma * log(self.high / self.low))


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Where the law wants to be."""

    sigma: float
    action: Action


class Law(Protocol):
    """One control law."""

    def step(self, sigma: float, binding: Binding) -> Adjustment:
        """One tick: the worst TTFT and the worst TPOT reading in, the new coordinate out."""
        ...
