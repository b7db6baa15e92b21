"""Cumulative counts of verdicts, one row per SLO: what budgets, alerts and exceedance are computed from.

Counts add over time and over replicas, which quantiles do not. Every declared SLO has a row from the start,
at zero, so that its first bad turn is an increase and not a new series. Cumulative means that a lost report
costs nothing: the next one covers it, and the interval is `Count.since`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .objective import Verdict


@dataclass(frozen=True, slots=True)
class Count:
    """Turns judged by one SLO: `valid` = good + bad; excluded turns are in neither."""

    valid: int = 0
    bad: int = 0
    excluded: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.valid + other.valid, self.bad + other.bad, self.excluded + other.excluded)

    def plus(self, verdict: Verdict) -> "Count":
        if verdict is Verdict.EXCLUDED:
            return Count(self.valid, self.bad, self.excluded + 1)
        return Count(self.valid + 1, self.bad + (verdict is Verdict.BAD), self.excluded)

    def since(self, earlier: "Count") -> "Count":
        """What was added after `earlier`; all of it where a counter fell, for then its process began anew."""
        if self.valid < earlier.valid or self.bad < earlier.bad or self.excluded < earlier.excluded:
            return self
        return Count(self.valid - earlier.valid, self.bad - earlier.bad, self.excluded - earlier.excluded)


class SloCounts:
    """The counts of all declared SLOs, by name; the names are fixed when it is made, which bounds it."""

    __slots__ = ("_rows",)

    def __init__(self, names: Iterable[str]) -> None:
        self._rows: dict[str, Count] = {name: Count() for name in names}

    def add(self, name: str, verdict: Verdict) -> None:
        """Counts one verdict. Raises KeyError for an SLO that was not declared."""
        self._rows[name] = self._rows[name].plus(verdict)

    def merge(self, counts: Mapping[str, Count]) -> frozenset[str]:
        """Adds another process's counts or their increase. Returns the names unknown here, not added."""
        for name in self._rows.keys() & counts.keys():
            self._rows[name] += counts[name]
        return frozenset(counts.keys() - self._rows.keys())

    def snapshot(self) -> dict[str, Count]:
        """A copy that later verdicts do not change, in the order of declaration."""
        return dict(self._rows)
