"""The share of turns that exceed a limit over the last few ticks, with the design effect of their conversations, and
with the turns that still wait.

A turn that still waits is censored: its age is a lower bound of its latency. Older than the limit, it is a miss for
sure. Younger, it may become one: the lower bound takes it for kept, the upper one for missed, and the value leaves it
out. So the value lags a stall by the limit at most, the upper bound not at all (`censored` has a value that does not
lag, from the samples themselves).

A conversation is one cluster over the whole window. Where a tick has more conversations than `cap`, the one least
recently heard of is summed up; if it comes back it counts as another, so bounds get a little too narrow.

Needs scipy (`exceedance`). Left out: discounting within the window, and the conversations of turns that still wait.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import Self

from .clusters import Clusters
from .exceedance import CONFIDENCE, Exceedance
from .protocol import Estimate, State


class WindowedExceedance:
    """Misses of the last `slices` ticks, and of those since. Memory: (slices + 1) x cap conversations."""

    __slots__ = ("_cap", "_closed", "_confidence", "_limit", "_open", "_rolled_s")

    def __init__(self, limit: float, slices: int = 3, cap: int = 4096, confidence: float = CONFIDENCE) -> None:
        """A value above `limit` is a miss. Raises ValueError unless slices and cap are >= 1, 0 < confidence < 1."""
        if not math.isfinite(limit) or slices < 1 or cap < 1 or not 0.0 < confidence < 1.0:
            raise ValueError(f"no window for limit={limit}, slices={slices}, cap={cap}, confidence={confidence}")
        self._limit = limit
        self._cap = cap
        self._confidence = confidence
        self._open = _Slice()
        self._closed: deque[_Slice] = deque(maxlen=slices)
        self._rolled_s = -math.inf

    def update(self, value: float, now_s: float, conversation: str | None = None) -> None:
        """Takes an ended turn, +inf for one that failed; without `conversation` it is one of its own. Raises
        ValueError for NaN."""
        if math.isnan(value):
            raise ValueError(f"{value} is not a sample")
        self._open.add(conversation, int(value > self._limit), self._cap)

    def roll(self, now_s: float) -> None:
        """Closes the open slice, at a tick. A repeated call does nothing; raises ValueError for no finite time."""
        if not math.isfinite(now_s):
            raise ValueError(f"{now_s} is not a time")
        if now_s > self._rolled_s:
            self._rolled_s = now_s
            self._closed.append(self._open)
            self._open = _Slice()

    def clusters(self) -> Clusters:
        """The conversations of the window."""
        total = Clusters()
        together: dict[str, tuple[int, int]] = {}
        for part in (*self._closed, self._open):
            total += part.folded + part.alone
            for name, (bad, valid) in part.counts.items():
                before = together.get(name, (0, 0))
                together[name] = (before[0] + bad, before[1] + valid)
        return total + Clusters.of(together.values())

    def estimate(self, now_s: float, waiting: Iterable[float] = ()) -> Estimate:
        """The share (0..1) and its bounds; `n` is in effective turns. `waiting`: ages of turns without an answer."""
        ages = list(waiting)
        if any(math.isnan(age) for age in ages):
            raise ValueError("NaN is not an age")
        late = sum(age > self._limit for age in ages)
        known, unknown = self.clusters(), len(ages) - late
        bad, valid, effect = known.bad + late, known.valid + late, known.design_effect
        least = Exceedance(bad, valid + unknown, effect).estimate(now_s, self._confidence)
        most = Exceedance(bad + unknown, valid + unknown, effect).estimate(now_s, self._confidence)
        return Estimate(bad / valid if valid else None, least.low, most.high, valid / effect, now_s)

    def merged(self, other: Self) -> Self:
        """Both windows as one, tick by tick from the newest; a conversation in both is one, if all fit the cap."""
        if (self._limit, self._confidence, self._cap) != (other._limit, other._confidence, other._cap):
            raise ValueError("windows with other limits, caps or confidence are not of one quantity")
        both = type(self)(
            self._limit, max(self._closed.maxlen or 1, other._closed.maxlen or 1), self._cap, self._confidence
        )
        both._rolled_s = max(self._rolled_s, other._rolled_s)
        both._open = self._open.merged(other._open, self._cap)
        for at in range(max(len(self._closed), len(other._closed)), 0, -1):
            parts = [each._closed[-at] for each in (self, other) if len(each._closed) >= at]
            both._closed.append(parts[0].merged(parts[1] if len(parts) > 1 else _Slice(), self._cap))
        return both

    def snapshot(self) -> State:
        """Conversations by the names they were given: give such as may be written down."""
        return {
            "limit": self._limit,
            "slices": self._closed.maxlen,
            "cap": self._cap,
            "confidence": self._confidence,
            "rolled_s": None if self._rolled_s == -math.inf else self._rolled_s,
            "parts": [
                {
                    "folded": list((part.folded + part.alone).sums),
                    "counts": {name: list(two) for name, two in part.counts.items()},
                }
                for part in (*self._closed, self._open)
            ],
        }

    @classmethod
    def restore(cls, state: State) -> Self:
        """Raises ValueError for what no `snapshot` gave."""
        try:
            window = cls(float(state["limit"]), int(state["slices"]), int(state["cap"]), float(state["confidence"]))
            *closed, last = (_Slice.of(part["folded"], part["counts"], window._cap) for part in state["parts"])
            window._open = last
            window._closed.extend(closed)
            window._rolled_s = -math.inf if state["rolled_s"] is None else float(state["rolled_s"])
        except (KeyError, TypeError, AttributeError, ValueError) as problem:
            raise ValueError(f"no state of a WindowedExceedance: {problem!r}") from problem
        return window


class _Slice:
    """Conversations of one tick: (misses, turns) by name, least recently heard of first; those summed up; and turns
    that are alone."""

    __slots__ = ("_bad_alone", "_valid_alone", "counts", "folded")

    def __init__(self) -> None:
        self._bad_alone = self._valid_alone = 0
        self.counts: dict[str, tuple[int, int]] = {}
        self.folded = Clusters()

    @classmethod
    def of(cls, folded: Iterable[float], counts: dict[str, Iterable[int]], cap: int) -> "_Slice":
        new = cls()
        new.folded = Clusters(*map(float, folded))
        for name, (bad, valid) in counts.items():
            if not (0 <= bad <= valid and valid >= 1) or len(new.counts) >= cap:
                raise ValueError(f"{bad} misses of {valid} turns, {len(counts)} conversations of {cap}")
            new.counts[str(name)] = (int(bad), int(valid))
        return new

    def add(self, name: str | None, bad: int, cap: int) -> None:
        if name is None:
            self._bad_alone += bad
            self._valid_alone += 1
            return
        before = self.counts.pop(name, (0, 0))
        self.counts[name] = (before[0] + bad, before[1] + 1)
        self._bound(cap)

    @property
    def alone(self) -> Clusters:
        bad, valid = float(self._bad_alone), float(self._valid_alone)
        return Clusters(valid, bad, valid, bad, valid, bad, bad)

    def merged(self, other: "_Slice", cap: int) -> "_Slice":
        both = _Slice()
        both.folded = self.folded + self.alone + other.folded + other.alone
        for name in sorted({*self.counts, *other.counts}):
            (bad, valid), (more_bad, more_valid) = self.counts.get(name, (0, 0)), other.counts.get(name, (0, 0))
            both.counts[name] = (bad + more_bad, valid + more_valid)
        both._bound(cap)
        return both

    def _bound(self, cap: int) -> None:
        while len(self.counts) > cap:
            self.folded += Clusters.of((self.counts.pop(next(iter(self.counts))),))
