"""What one SLO has counted, slice of time by slice of time, over the days that its budget lasts.

A slice is numbered by the epoch: floor(seconds / slice_s). They lie in a ring of fixed size (8,065 slices of five
minutes for 28 days, some 250 KiB), so memory is fixed and the oldest are overwritten. Sums over windows are kept
until a slice closes or an older one changes; asking again costs nothing.

    window   the open slice and the last round(seconds / slice_s) closed ones, so between one and two slices long
             for the shortest and up to one slice too long for others; for less see `ledger.CountWindow`
    slices   how many closed ones kept the objective, broke it, or say nothing for having too few turns

Left out: the disk (`controller/store.py`), and what the sums mean (`budget.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .counts import Count

_NOTHING = -1


@dataclass(frozen=True, slots=True)
class Slices:
    """Closed slices by their verdict; measured are the good and the bad ones."""

    good: int = 0
    bad: int = 0
    unknown: int = 0

    @property
    def measured(self) -> int:
        return self.good + self.bad


class History:
    """The slices of one SLO as it is declared. Raises ValueError for sizes that are none."""

    def __init__(self, slice_s: float, over_s: float) -> None:
        if not 0.0 < slice_s <= over_s:
            raise ValueError(f"slices of {slice_s} s over {over_s} s")
        self.slice_s = slice_s
        self.over_s = over_s
        self._size = int(over_s / slice_s) + 2  # the open one, and one that the window's far end lies in
        self._at = np.full(self._size, _NOTHING, dtype=np.int64)
        self._valid = np.zeros(self._size, dtype=np.int64)
        self._bad = np.zeros(self._size, dtype=np.int64)
        self._excluded = np.zeros(self._size, dtype=np.int64)
        self._last = self._asked = _NOTHING
        self._sums: dict[tuple[int, int], Count] = {}
        self._verdicts: dict[tuple[float, float, int, int], Slices] = {}
        self._first: int | None = None

    def number(self, epoch_s: float) -> int:
        """The slice that holds a moment."""
        return int(epoch_s // self.slice_s)

    def add(self, at: int, count: Count) -> Count:
        """Counts into a slice; returns what the slice has now."""
        return self.put(at, self.get(at) + count)

    def put(self, at: int, count: Count) -> Count:
        """Sets what a slice has counted; what lay in its place, a ring's length away, is gone."""
        place = at % self._size
        self._at[place] = at
        self._valid[place], self._bad[place], self._excluded[place] = count.valid, count.bad, count.excluded
        if at != self._last or at < self._asked:
            self._last = at
            self._forget()
        if self._first is None or at < self._first:
            self._first = at
        return count

    def get(self, at: int) -> Count:
        """What a slice has counted."""
        place = at % self._size
        return self._count(place) if self._at[place] == at else Count()

    def window(self, seconds: float, at: int) -> Count:
        """What was counted in the open slice `at` and the closed ones that make up so many seconds before it."""
        self._asked = max(self._asked, at)
        return self._closed(max(1, round(seconds / self.slice_s)), at) + self.get(at)

    def slices(self, seconds: float, at: int, epsilon: float, min_samples: int) -> Slices:
        """Verdicts on the closed slices of that window: bad where more than the share `epsilon` was bad."""
        self._asked = max(self._asked, at)
        key = (seconds, epsilon, min_samples, at)
        found = self._verdicts.get(key)
        if found is None:
            places = self._places(round(seconds / self.slice_s), at)
            valid, bad = self._valid[places], self._bad[places]
            known = valid >= min_samples
            broken = int(np.count_nonzero(known & (bad > epsilon * valid)))
            measured = int(np.count_nonzero(known))
            # Slices in which nothing was counted have no row, and say nothing either.
            elapsed = self.elapsed(seconds, at)
            found = Slices(measured - broken, broken, max(0, elapsed - measured))
            if len(self._verdicts) > 64:
                self._verdicts.clear()
            self._verdicts[key] = found
        return found

    def elapsed(self, seconds: float, at: int) -> int:
        """Closed slices of that window since the first that counted anything."""
        first = self.first
        return 0 if first is None else max(0, min(round(seconds / self.slice_s), at - first))

    @property
    def first(self) -> int | None:
        """The oldest slice that is still here."""
        if self._first is not None and self._at[self._first % self._size] != self._first:
            known = self._at[self._at != _NOTHING]
            self._first = int(known.min()) if known.size else None
        return self._first

    def rows(self) -> Iterator[tuple[int, Count]]:
        """All slices, oldest first."""
        for place in np.argsort(self._at, kind="stable"):
            if self._at[place] != _NOTHING:
                yield int(self._at[place]), self._count(int(place))

    def _closed(self, slices: int, at: int) -> Count:
        key = (slices, at)
        found = self._sums.get(key)
        if found is None:
            places = self._places(slices, at)
            sums = (int(column[places].sum()) for column in (self._valid, self._bad, self._excluded))
            found = Count(*sums)
            if len(self._sums) > 64:
                self._sums.clear()
            self._sums[key] = found
        return found

    def _places(self, slices: int, at: int) -> np.ndarray:
        """Where the closed slices before `at` lie, those that counted something."""
        if slices > self._size // 8:
            everywhere: np.ndarray = (self._at >= at - slices) & (self._at < at)
            return everywhere
        numbers = np.arange(at - slices, at)
        places = numbers % self._size
        found: np.ndarray = places[self._at[places] == numbers]
        return found

    def _count(self, place: int) -> Count:
        return Count(int(self._valid[place]), int(self._bad[place]), int(self._excluded[place]))

    def _forget(self) -> None:
        self._sums.clear()
        self._verdicts.clear()
