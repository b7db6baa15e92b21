"""A mean over seeds and how far it may be off: the half-width of Student's 95 % interval, s t / √n."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from statistics import fmean, stdev

from scipy.special import stdtrit  # scipy.stats would cost every process a second of imports


@dataclass(frozen=True, slots=True)
class Spread:
    """`half_width` is NaN where one value says nothing of the spread."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that exist; None without any, and where one of them is endless."""
        found = [value for value in values if value is not None]
        if not found or not all(map(isfinite, found)):
            return None
        if len(found) < 2:
            return cls(fmean(found), nan)
        return cls(fmean(found), float(stdtrit(len(found) - 1, 0.975)) * stdev(found) / sqrt(len(found)))

    def as_json(self, digits: int) -> dict[str, float | None]:
        """Rounded; null where the width is not known."""
        width = round(self.half_width, digits) if isfinite(self.half_width) else None
        return {"mean": round(self.mean, digits), "half_width_95": width}
