"""Each latency SLO's percentile over the last five minutes, with bounds: to be shown, never to judge by.

The law reads its own, shorter windows (`cells.py`), and whether an SLO is kept is counted. Turns that the SLO excludes
are left out, failed ones are infinitely slow. All models together, as the SLO counts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from estimators.protocol import Estimate
from estimators.quantile import WindowedQuantile
from router.record import TurnRecord
from slos.objective import Outcome, Signal, Slo, Verdict, judge
from slos.revisions import revision

PARTS = 10
PART_S = 30.0
CAP = 1024
"""Values kept of each half minute; a P99 is exact up to 51,200 turns in it."""


class Percentiles:
    """By SLO. Time is the caller's, seconds of any monotonic clock."""

    def __init__(self, slos: Iterable[Slo]) -> None:
        self._slos: tuple[Slo, ...] = ()
        self._windows: dict[str, WindowedQuantile] = {}
        self._rolled_s: float | None = None
        self.redeclare(slos)

    def redeclare(self, slos: Iterable[Slo]) -> None:
        """Take other SLOs; the window of one that still means the same goes on."""
        before = {slo.name: (revision(slo), self._windows[slo.name]) for slo in self._slos}
        self._slos = tuple(slo for slo in slos if slo.threshold_s is not None)
        self._windows = {}
        for slo in self._slos:
            meant, window = before.get(slo.name, ("", None))
            if window is None or meant != revision(slo):
                window = WindowedQuantile(slo.objective, PARTS - 1, cap_per_slice=CAP)
            self._windows[slo.name] = window

    def fold(self, records: Iterable[TurnRecord], now_s: float) -> None:
        """Take ended turns."""
        self._roll(now_s)
        for record in records:
            for slo in self._slos:
                if judge(slo, record) is not Verdict.EXCLUDED:
                    value_s = _value_s(slo, record)
                    self._windows[slo.name].update(inf if value_s is None else value_s, record.ended_s)

    def estimate(self, name: str, now_s: float) -> Estimate | None:
        """The percentile of an SLO in seconds; None for one without a latency."""
        self._roll(now_s)
        window = self._windows.get(name)
        return None if window is None else window.estimate(now_s)

    def _roll(self, now_s: float) -> None:
        if self._rolled_s is None:
            self._rolled_s = now_s
        passed = min(PARTS, int((now_s - self._rolled_s) / PART_S))
        for _ in range(passed):
            self._rolled_s += PART_S
            for window in self._windows.values():
                window.roll(self._rolled_s)
        if passed == PARTS:
            self._rolled_s = now_s


def _value_s(slo: Slo, record: TurnRecord) -> float | None:
    if record.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        return None
    if slo.signal is Signal.TTFT:
        return record.ttft_s
    return record.e2e_s if slo.signal is Signal.E2E else record.tpot_s
