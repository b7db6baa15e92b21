"""Every estimator by name, as the conformance suite runs it, and which laws do not apply to it and why."""

import math
from collections.abc import Callable
from typing import Any, Self

from estimators.drift import DriftAlarm
from estimators.histogram import Histogram, HistogramWindow, Snapshot, merged
from estimators.length import LengthEstimator, LengthState
from estimators.protocol import Estimate, Kept, Mergeable, State
from estimators.quantile import WindowedQuantile
from estimators.rate import EventRate

VLLM_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)


class Lengths:
    """Replies of one model and one application, each by a new conversation."""

    of = LengthEstimator

    def __init__(self, lengths: LengthEstimator | None = None) -> None:
        self.lengths = lengths or LengthEstimator()

    def update(self, value: float, now_s: float) -> None:
        model, app = ("m", "a") if now_s < 1000.0 else (f"m{now_s}", f"a{now_s}")
        self.lengths.update(model, None, int(value), app)

    def estimate(self, now_s: float) -> Estimate:
        n = self.lengths._models.get("m", LengthState(0.0, 0)).replies
        value = self.lengths.expected_tokens("m", None, app="a")
        return Estimate(value if n else None, None, None, n, now_s)

    def merged(self, other: Self) -> Self:
        return type(self)(self.lengths.merged(other.lengths))

    def snapshot(self) -> State:
        return self.lengths.snapshot()

    @classmethod
    def restore(cls, state: State) -> Self:
        return cls(LengthEstimator.restore(state))


class Buckets:
    """What an engine counts and a scrape after each value sees, as the window adds it up."""

    of = HistogramWindow

    def __init__(self, histogram: Histogram | None = None) -> None:
        self.edges = (*VLLM_EDGES, math.inf)
        self.counts = [0.0] * len(self.edges)
        self.window = HistogramWindow(scrapes=10**6)
        self.window.add(Snapshot(self.edges, tuple(self.counts), 1.0))
        self.before = histogram

    def update(self, value: float, now_s: float) -> None:
        if math.isnan(value):
            raise ValueError("nan is not counted")
        for at, edge in enumerate(self.edges):
            self.counts[at] += value <= edge
        self.window.add(Snapshot(self.edges, tuple(self.counts), 1.0))

    def total(self) -> Histogram | None:
        parts = [part for part in (self.before, self.window.total()) if part is not None]
        return merged(parts)

    def estimate(self, now_s: float) -> Estimate:
        total = self.total()
        return Estimate(None, None, None, 0, now_s) if total is None else total.estimate(0.9, now_s)

    def merged(self, other: Self) -> Self:
        return type(self)(merged(part for part in (self.total(), other.total()) if part is not None))


KEPT: tuple[type[Kept], ...] = (WindowedQuantile, EventRate, DriftAlarm)
MERGEABLE: tuple[type[Mergeable], ...] = (WindowedQuantile, EventRate)
"""Here so that the type checker compares them with what they promise."""

ESTIMATORS: dict[str, Callable[[], Any]] = {
    "quantile": lambda: WindowedQuantile(0.99, min_samples=5, cap_per_slice=256),
    "thinned quantile": lambda: WindowedQuantile(0.5, min_samples=1, cap_per_slice=4),
    "rate": lambda: EventRate(start_s=0.0),
    "drift": lambda: DriftAlarm(learn=5),
    "length": Lengths,
    "histogram": Buckets,
}

EXEMPT: dict[tuple[str, str], str] = {
    ("drift", "merge"): "a sequential test is about one stream: parts have no order between them",
    (
        "thinned quantile",
        "pooled",
    ): "what is thinned twice errs upwards twice; the largest half is exact (test_quantile)",
    (
        "histogram",
        "memory",
    ): "its window here has no end, so that parts add up; a real one has (test_histogram)",
    ("histogram", "snapshot"): "four scrapes fill it again, and an engine's counts outlive the restart by themselves",
    ("rate", "coverage"): "it gives no bounds: two horizons have no distribution to take them from",
    ("length", "coverage"): "it gives no bounds: it is judged by decision flips (test_flips)",
    ("length", "nan"): "it takes whole tokens, and its type says so",
    ("length", "time"): "it keeps no time; here the times name models",
}
