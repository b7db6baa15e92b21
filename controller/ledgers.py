"""The histories of all declared SLOs on one calendar, fed with the counters that routers report.

    ledgers.take(counts, now_s)     what the counters gained goes into the open slice of every SLO
    ledgers.changed()               slices to be stored, with what they have now: writing one twice changes nothing

A history belongs to an SLO's name, what it promises, and how long its slices are. An SLO that is declared anew with
another threshold begins another; the old one stays in the store. Pure but for the numpy inside: both clocks are
arguments.

The counters here are what routers counted since somebody was there to note when: `Intake.measured`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slos.budget import MONTH_S
from slos.counts import Count
from slos.epoch import Epoch
from slos.history import History
from slos.objective import Slo
from slos.revisions import revision


@dataclass(frozen=True, slots=True, order=True)
class LedgerKey:
    """Whose slices these are."""

    slo: str
    revision: str
    slice_s: float


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice of one history, as it is stored."""

    key: LedgerKey
    at: int
    count: Count


class Ledgers:
    """Histories by SLO."""

    def __init__(
        self, slos: Iterable[Slo], epoch: Epoch, rows: Iterable[SliceRow] = (), start: Mapping[str, Count] | None = None
    ) -> None:
        """`rows`: what is stored, oldest first; `start`: the counters that are in them already."""
        self.epoch = epoch
        self.now_s = 0.0
        """The moment of the last `take`, seconds since the epoch."""
        self._slos: dict[str, Slo] = {}
        self._keys: dict[str, LedgerKey] = {}
        self._histories: dict[LedgerKey, History] = {}
        self._before: dict[str, Count] = dict(start or {})
        self._changed: set[tuple[LedgerKey, int]] = set()
        self.redeclare(slos, rows)

    def redeclare(
        self, slos: Iterable[Slo], rows: Iterable[SliceRow] = (), start: Mapping[str, Count] | None = None
    ) -> None:
        """Take other SLOs; histories of those that promise the same go on. `rows`: what is stored of the new ones;
        `start`: the counters now, from which those are counted."""
        keys = self._keys
        self._slos = {slo.name: slo for slo in slos}
        self._keys = {name: ledger_key(slo) for name, slo in self._slos.items()}
        for name, count in (start or {}).items():
            if name in self._keys and self._keys[name] != keys.get(name):
                self._before[name] = count
        before = self._histories
        self._histories = {}
        for name, key in self._keys.items():
            budget = self._slos[name].budget
            over_s = max(budget.over_s, MONTH_S)
            history = before.get(key)
            if history is None or history.over_s < over_s:
                longer = History(budget.slice_s, over_s)
                for at, count in history.rows() if history is not None else ():
                    longer.put(at, count)
                history = longer
            self._histories[key] = history
        known = before.keys()
        for row in rows:
            found = self._histories.get(row.key)
            if found is not None and row.key not in known:
                found.put(row.at, row.count)
        self._changed = {(key, at) for key, at in self._changed if key in self._histories}

    def take(self, counts: Mapping[str, Count], mono_s: float, wall_s: float) -> None:
        """Count what was gained since the last time. An SLO's first counters say where counting starts if none were
        stored."""
        self.now_s = self.epoch.at(mono_s, wall_s)
        for name, key in self._keys.items():
            count = counts.get(name)
            if count is None:
                continue
            gained = count.since(self._before.get(name, count))
            self._before[name] = count
            if gained != _NOTHING:
                history = self._histories[key]
                at = history.number(self.now_s)
                history.add(at, gained)
                self._changed.add((key, at))

    def changed(self) -> list[SliceRow]:
        """Slices that differ from what was handed out here before; they count as handed out."""
        rows = [SliceRow(key, at, self._histories[key].get(at)) for key, at in sorted(self._changed)]
        self._changed.clear()
        return rows

    def all(self) -> list[SliceRow]:
        """Every slice: for a store that has lost its own."""
        return [SliceRow(key, at, count) for key, history in self._histories.items() for at, count in history.rows()]

    def history(self, name: str) -> History:
        """Of a declared SLO. Raises KeyError."""
        return self._histories[self._keys[name]]

    def key(self, name: str) -> LedgerKey:
        """Under which its slices are stored. Raises KeyError."""
        return self._keys[name]


_NOTHING = Count()


def ledger_key(slo: Slo) -> LedgerKey:
    """Whose slices an SLO's are."""
    return LedgerKey(slo.name, revision(slo), slo.budget.slice_s)
