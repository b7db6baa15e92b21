"""What a control law is: the evidence on both sides in, a new place on the price range out. No clock, no I/O, no
memory but its own state, which it hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, log
from typing import Protocol


class Action(StrEnum):
    """What a law did in a tick, and why."""

    PROTECT_TPOT = "protect_tpot"
    """TPOT misses its SLO and is the worse of the two: the price rises, less goes local."""
    PROTECT_TTFT = "protect_ttft"
    """TTFT misses its SLO and is the worse of the two: the price falls, more goes local."""
    RETURN = "return"
    """Something may be amiss, and too little is seen to say what: back towards the price that was right before."""
    SAVE = "save"
    """Both inside for sure, `priority: economic`: towards the side that moves less KV."""
    HOLD = "hold"
    """Nothing to mend."""
    NO_EVIDENCE = "no_evidence"
    """Too few samples to say anything."""


class Priority(StrEnum):
    """Whose promise comes first where both cannot be kept."""

    BALANCED = "balanced"
    """The worse one's."""
    TTFT_FIRST = "ttft_first"
    TPOT_FIRST = "tpot_first"
    ECONOMIC = "economic"
    """The worse one's; with both kept for sure, more goes local: throughput."""


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
class Side:
    """One side, TTFT or TPOT: of several SLOs the worst. Without evidence `severity` is None, z = 0 and `turns` = 0."""

    severity: float | None = None
    """Latency over threshold at the SLO's percentile, last three ticks; above 1 when missed."""
    z: float = 0.0
    """Log-odds of the misses over what the SLO allows (`controller/evidence.py`); above 0 when missed."""
    sd: float = 1.0
    """Standard deviation of z."""
    turns: float = 0.0
    """Behind z: discounted, and divided by the design effect."""
    low: float = 0.0
    high: float = float("inf")
    """Bounds of the share of misses over what is allowed, over the last minutes: kept for sure if `high` < 1."""

    @property
    def kept(self) -> bool:
        """The promise is kept for sure."""
        return self.high < 1


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of one model."""

    ttft: Side = Side()
    tpot: Side = Side()

    def bounded_by(self, long: Sides) -> Sides:
        """These, with the bounds of a longer memory: a P99 takes 299 turns to bound."""
        return Sides(
            replace(self.ttft, low=long.ttft.low, high=long.ttft.high),
            replace(self.tpot, low=long.tpot.low, high=long.tpot.high),
        )


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Where the law wants to be."""

    sigma: float
    action: Action


class Law(Protocol):
    """One control law."""

    def step(self, sigma: float, sides: Sides) -> tuple[Law, Adjustment]:
        """One tick: what is known of both sides in; the law as it is now and the new coordinate out."""
        ...

    @property
    def memory(self) -> Mapping[str, float]:
        """What a restart must not forget, as numbers by name."""
        ...

    def remembering(self, memory: Mapping[str, float]) -> Law:
        """The same law with that memory; names that it does not know are ignored."""
        ...


class LawMaker(Protocol):
    """A class of laws; its defaults are the shipped settings."""

    def __call__(self, *, priority: Priority = Priority.BALANCED) -> Law: ...
