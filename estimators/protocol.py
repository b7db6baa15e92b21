"""What an estimator takes and gives: samples in, a value with bounds out, time always an argument."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

State = Mapping[str, Any]
"""What outlives a restart: numbers, strings, lists and mappings only, without NaN and infinity (`plain`)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its bounds, in the unit of its estimator.

    None means unresolved: too few samples for a value, or for that bound. `low` and `high` each hold with the
    estimator's confidence (one-sided). `n` is the evidence behind it in samples, not whole where samples are
    discounted. `asof_s` is the time for which it was asked.
    """

    value: float | None
    low: float | None
    high: float | None
    n: float
    asof_s: float


class Estimator(Protocol):
    """One quantity followed over time. Asking changes nothing, and time that runs backwards stands still."""

    def update(self, value: float, now_s: float) -> object:
        """Takes one sample. Raises ValueError for NaN, and for a time that is NaN or infinite, if it keeps times."""
        ...

    def estimate(self, now_s: float) -> Estimate: ...


class Kept(Estimator, Protocol):
    """One that goes on after a restart as if there had been none."""

    def snapshot(self) -> State: ...

    @classmethod
    def restore(cls, state: State) -> Self:
        """Raises ValueError for what no `snapshot` gave."""
        ...


class Mergeable(Estimator, Protocol):
    """One whose parts, fed apart, say together what one fed with everything would."""

    def merged(self, other: Self) -> Self:
        """A third one; both stay as they are. Raises ValueError where they measure different things."""
        ...


def plain(value: float) -> float | str:
    """A number for a State: "inf" for infinity, which JSON cannot write. `float` reads both."""
    return value if math.isfinite(value) else str(value)
