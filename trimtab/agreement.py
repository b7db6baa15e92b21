"""How far simulated results are from measured ones: relative errors, ranks, a line a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scipy.stats import spearmanr

from .measured import CLEAN, Result

CORE = ("4R", "1P_3D", "2P_2D", "3P_1D", "1P_3pD", "2P_2pD", "3P_1pD")
"""The configurations that the constants are judged on."""
PURE = (*CORE, "1P_2D_1pD", "2P_1D_1pD", "1P_1D_2pD")
Pair = tuple[Result, Result]
"""(measured, simulated)."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over some points: mean absolute percentage error, median of simulated / measured, Spearman's rank
    correlation. Shares, 0..1; `spearman` nan below three points, or where all are equal."""

    n: int
    mape: float
    ratio: float
    spearman: float


@dataclass(frozen=True, slots=True)
class Line:
    """One group of points."""

    name: str
    tpot: Agreement
    """Of both turns."""
    ttft: Agreement
    """P50 of second turns."""


def agreement(measured: Sequence[float], simulated: Sequence[float]) -> Agreement:
    """Compare two lists of positive numbers. Raises ValueError where they are empty or of different lengths."""
    if not measured or len(measured) != len(simulated):
        raise ValueError(f"{len(measured)} measured and {len(simulated)} simulated values cannot be compared")
    ratios = [s / m for m, s in zip(measured, simulated, strict=True)]
    ranked = len(measured) > 2 and len(set(measured)) > 1 and len(set(simulated)) > 1
    rank = float(spearmanr(measured, simulated).statistic) if ranked else float("nan")
    return Agreement(len(measured), fmean(abs(r - 1) for r in ratios), median(ratios), rank)


def comparable(results: Iterable[Result]) -> list[Result]:
    """The measured points that say something about speed: nearly everything was answered."""
    return [r for r in results if r.success >= CLEAN and r.first.n and r.later.n]


def line(name: str, pairs: Sequence[Pair]) -> Line:
    """TPOT of both turns and TTFT of second ones over some points."""
    tpot = [(m.tpot_mean_ms, s.tpot_mean_ms) for a, b in pairs for m, s in ((a.first, b.first), (a.later, b.later))]
    ttft = [(a.later.ttft_p50_ms, b.later.ttft_p50_ms) for a, b in pairs]
    return Line(name, _of(tpot), _of(ttft))


def by_config(pairs: Sequence[Pair], configs: Iterable[str] | None = None) -> list[Line]:
    """A line a configuration, in the order given or met."""
    groups: dict[str, list[Pair]] = {} if configs is None else {config: [] for config in configs}
    for pair in pairs:
        config = pair[0].point.config
        if configs is None or config in groups:
            groups.setdefault(config, []).append(pair)
    return [line(config, group) for config, group in groups.items() if group]


def _of(values: Sequence[tuple[float, float]]) -> Agreement:
    return agreement([m for m, _ in values], [s for _, s in values])


LOADS: dict[str, Callable[[float], bool]] = {
    "low (0.5-2)": lambda qps: qps <= 2,
    "medium (4-8)": lambda qps: 4 <= qps <= 8,
    "high (12-20)": lambda qps: qps >= 12,
}
"""The columns of the paper's Table 1."""


def ttft_change(results: Sequence[Result], before: str, after: str) -> dict[str, float]:
    """The paper's Table 1: relative change of second turns' mean TTFT from one configuration to another, by load:
    the mean of the points' changes, over workloads and levels that both configurations answered."""
    at = {(r.point.config, r.point.first, r.point.turn2, r.point.qps): r for r in comparable(results)}
    changes: dict[str, list[float]] = {load: [] for load in LOADS}
    for (config, first, turn2, qps), old in at.items():
        new = at.get((after, first, turn2, qps))
        if config != before or new is None:
            continue
        for load, inside in LOADS.items():
            if inside(qps):
                changes[load].append(new.later.ttft_mean_ms / old.later.ttft_mean_ms - 1)
    return {load: fmean(values) for load, values in changes.items() if values}
