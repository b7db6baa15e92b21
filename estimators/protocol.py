"""What an estimator takes and gives: samples in, a value with bounds out, time always an argument."""

from dataclasses import dataclass
from typing import Protocol


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

    def update(self, value: float, now_s: float) -> None:
        """Takes one sample. Raises ValueError for NaN."""
        ...

    def estimate(self, now_s: float) -> Estimate: ...
