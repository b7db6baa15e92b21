"""Cumulative counts of verdicts, one row per SLO: what budgets, alerts and exceedance are computed from.

Counts add over time and over replicas, which quantiles do not. Every declared SLO has a row from the start,
at zero, so that its first bad turn is an increase and not a new series. Cumulative means that a lost report
costs nothing: the next one covers it, and the interval is `Count.since`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .objective import Verdict

MAX_ASIDE = 256
"""Revisions that are no longer declared, and whose counts are kept in case they come back."""


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
    """The counts of all declared SLOs, by name, each of one revision of its SLO (`revisions.py`).

    A reload swaps what is declared. An SLO that means the same goes on, one that changed begins at zero, and the count
    of what it meant before is set aside, so that a change that is taken back goes on where it stopped: a cumulative
    counter must not start over under a meaning that somebody has counted already. Bounded by the declaration and by
    `MAX_ASIDE`.
    """

    __slots__ = ("_aside", "_revisions", "_rows")

    def __init__(self, declared: Iterable[str] | Mapping[str, str]) -> None:
        """The names of the SLOs, with their revisions where a reload may change them."""
        self._revisions = dict(declared) if isinstance(declared, Mapping) else dict.fromkeys(declared, "")
        self._rows: dict[str, Count] = {name: Count() for name in self._revisions}
        self._aside: dict[tuple[str, str], Count] = {}

    @property
    def revisions(self) -> Mapping[str, str]:
        """What is counted now, by name."""
        return self._revisions

    def redeclare(self, revisions: Mapping[str, str]) -> None:
        """Counts these from now on."""
        before = {(name, revision): self._rows[name] for name, revision in self._revisions.items()}
        known = {**self._aside, **before}
        self._rows = {name: known.pop((name, revision), Count()) for name, revision in revisions.items()}
        self._revisions = dict(revisions)
        self._aside = dict(list(known.items())[-MAX_ASIDE:])

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
