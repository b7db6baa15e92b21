"""When conversations start: arrival processes, apart from what is said in them.

    Poisson     constant rate λ
    Mmpp        Poisson whose rate jumps between states; stays are exponential, the next state is any other one.
                Index of dispersion of counts of two states, for long windows (Heffes and Lucantoni 1986):
                1 + 2 (λ1 - λ2)² / ((r1 + r2)² (1/r1 + 1/r2) · mean), r = 1 / mean stay
    Diurnal     λ(t) = mean (1 + swing · cos(2π (t - peak) / period))
    FlashCrowd  λ(t) = base, times `factor` from `start` for `lasting`

The last two are drawn by thinning (Lewis and Shedler 1979). Times are absolute: a process is asked for the
starts in [begin, end), and its own clock (peak, flash) counts from begin. Left out: arrivals that react to the
service, as users who give up do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import cos, inf, log, pi
from typing import Protocol, Self

from numpy.random import Generator


class Arrivals(Protocol):
    """A process of starts."""

    @property
    def mean_hz(self) -> float:
        """Starts per second over a long time; of a flash crowd, outside the flash."""
        ...

    def starts(self, begin_s: float, end_s: float, rng: Generator) -> Iterator[float]:
        """Times in [begin, end), rising. Draws lazily: between two starts the caller may use `rng` itself."""
        ...

    def scaled(self, factor: float) -> Self:
        """The same shape at so many times the rate."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Constant rate; 0 brings nobody."""

    rate_hz: float

    def __post_init__(self) -> None:
        _not_negative("rate_hz", self.rate_hz)

    @property
    def mean_hz(self) -> float:
        """The rate."""
        return self.rate_hz

    def starts(self, begin_s: float, end_s: float, rng: Generator) -> Iterator[float]:
        """Exponential gaps."""
        if self.rate_hz == 0:
            return
        at_s = begin_s
        while (at_s := at_s + _gap_s(self.rate_hz, rng)) < end_s:
            yield at_s

    def scaled(self, factor: float) -> Poisson:
        """Times `factor`."""
        return Poisson(self.rate_hz * factor)


@dataclass(frozen=True, slots=True)
class Mmpp:
    """Markov-modulated Poisson: rate and mean stay by state. Starts in a state drawn by its share of time."""

    rates_hz: tuple[float, ...]
    stays_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rates_hz) != len(self.stays_s) or len(self.rates_hz) < 2:
            raise ValueError("a modulated process has two or more states, each with a rate and a mean stay")
        for rate_hz in self.rates_hz:
            _not_negative("rates_hz", rate_hz)
        if not all(0 < stay_s < inf for stay_s in self.stays_s):
            raise ValueError("stays_s must be positive")

    @property
    def mean_hz(self) -> float:
        """Weighted by time: every state is entered equally often."""
        return sum(r * s for r, s in zip(self.rates_hz, self.stays_s, strict=True)) / sum(self.stays_s)

    @property
    def dispersion(self) -> float:
        """Index of dispersion of counts over long windows; of two states only. Raises ValueError for more."""
        if len(self.rates_hz) != 2:
            raise ValueError("known in closed form for two states")
        (a_hz, b_hz), (out_a, out_b) = self.rates_hz, (1 / stay_s for stay_s in self.stays_s)
        spread = 2 * (a_hz - b_hz) ** 2 * out_a * out_b
        return 1 + spread / ((out_a + out_b) ** 2 * (a_hz * out_b + b_hz * out_a))

    def starts(self, begin_s: float, end_s: float, rng: Generator) -> Iterator[float]:
        """Exponential gaps at the rate of the state; a gap that outlasts the stay is drawn anew."""
        state = self._first(float(rng.random()))
        at_s, leaves_s = begin_s, begin_s + _gap_s(1 / self.stays_s[state], rng)
        while at_s < end_s:
            next_s = at_s + _gap_s(self.rates_hz[state], rng) if self.rates_hz[state] > 0 else inf
            if next_s < leaves_s:
                at_s = next_s
                if at_s < end_s:
                    yield at_s
                continue
            at_s = leaves_s
            state = (state + 1 + int(rng.integers(len(self.rates_hz) - 1))) % len(self.rates_hz)
            leaves_s = at_s + _gap_s(1 / self.stays_s[state], rng)

    def _first(self, coin: float) -> int:
        coin *= sum(self.stays_s)
        for state, stay_s in enumerate(self.stays_s):
            coin -= stay_s
            if coin < 0:
                return state
        return len(self.stays_s) - 1

    def scaled(self, factor: float) -> Mmpp:
        """All rates times `factor`; the stays remain."""
        return Mmpp(tuple(rate_hz * factor for rate_hz in self.rates_hz), self.stays_s)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A day as a cosine: `swing` 0..1 of the mean, the peak `peak_s` after the beginning."""

    mean_hz: float
    swing: float
    period_s: float = 86_400.0
    peak_s: float = 0.0

    def __post_init__(self) -> None:
        _not_negative("mean_hz", self.mean_hz)
        if not 0 <= self.swing <= 1:
            raise ValueError(f"swing must be in [0, 1], got {self.swing}")
        if not 0 < self.period_s < inf:
            raise ValueError("period_s must be positive")

    def rate_hz(self, after_s: float) -> float:
        """So long after the beginning."""
        return self.mean_hz * (1 + self.swing * cos(2 * pi * (after_s - self.peak_s) / self.period_s))

    def starts(self, begin_s: float, end_s: float, rng: Generator) -> Iterator[float]:
        """Thinned from the peak rate."""
        return _thinned(self.rate_hz, self.mean_hz * (1 + self.swing), begin_s, end_s, rng)

    def scaled(self, factor: float) -> Diurnal:
        """The mean times `factor`."""
        return replace(self, mean_hz=self.mean_hz * factor)


@dataclass(frozen=True, slots=True)
class FlashCrowd:
    """A constant rate that is `factor` times as high from `start_s` after the beginning, for `lasting_s`."""

    base_hz: float
    factor: float = 5.0
    start_s: float = 60.0
    lasting_s: float = 60.0

    def __post_init__(self) -> None:
        _not_negative("base_hz", self.base_hz)
        if not 1 <= self.factor < inf:
            raise ValueError(f"factor must be 1 or more, got {self.factor}")
        if self.start_s < 0 or not 0 < self.lasting_s < inf:
            raise ValueError("a flash starts at 0 s or later and lasts a while")

    @property
    def mean_hz(self) -> float:
        """Outside the flash."""
        return self.base_hz

    def rate_hz(self, after_s: float) -> float:
        """So long after the beginning."""
        inside = self.start_s <= after_s < self.start_s + self.lasting_s
        return self.base_hz * (self.factor if inside else 1.0)

    def starts(self, begin_s: float, end_s: float, rng: Generator) -> Iterator[float]:
        """Thinned from the flash's rate."""
        return _thinned(self.rate_hz, self.base_hz * self.factor, begin_s, end_s, rng)

    def scaled(self, factor: float) -> FlashCrowd:
        """The base times `factor`."""
        return replace(self, base_hz=self.base_hz * factor)


def _gap_s(rate_hz: float, rng: Generator) -> float:
    return -log(1.0 - float(rng.random())) / rate_hz


def _thinned(
    rate_hz: Callable[[float], float], ceiling_hz: float, begin_s: float, end_s: float, rng: Generator
) -> Iterator[float]:
    for at_s in Poisson(ceiling_hz).starts(begin_s, end_s, rng):
        if float(rng.random()) * ceiling_hz < rate_hz(at_s - begin_s):
            yield at_s


def _not_negative(name: str, value: float) -> None:
    if not 0 <= value < inf:
        raise ValueError(f"{name} must be 0 or more, got {value}")
