"""The simulator against measured points: what all other chapters rest on."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from ..agreement import CORE, PURE, Line, Pair, by_config, comparable, line
from .lab import Lab
from .panel import Panel, Series, Source
from .target import Chapter, Finding, Target, Unit

ALL = "all"
PLACE = "published points"
WHY_4R = "measured replicas were loaded unevenly (TPOT P50 9.3, P90 14.8 ms), by a rule that nobody published"
HOW = (
    "Every point of the grid by the protocol of the measured runs: at most QPS × 10 conversations within 10 s, two "
    "turns without a pause, at most 50 requests in flight, pD nodes that take .83 of their later turns. Compared are "
    "points with at least 99 % success. The constants were fitted by hand to 811 of them, so this is a fit and no "
    "test; the ShareGPT runs of Figure 4 set no constant."
)


def compared(lab: Lab) -> list[Pair]:
    """Measured and simulated points that say something about speed."""
    clean = {r.point for r in comparable(lab.measured)}
    return [pair for pair in lab.pairs if pair[0].point in clean]


def lines(lab: Lab) -> list[Line]:
    """All points of the core configurations, then a line a configuration."""
    pairs = compared(lab)
    core = [pair for pair in pairs if pair[0].point.config in CORE]
    return [line(ALL, core), *by_config(pairs, [c for c in lab.configs if c in PURE])] if core else []


def fit(lab: Lab) -> Chapter:
    """The chapter."""
    findings: list[Finding] = []
    for found in lines(lab):
        overall, core = found.name == ALL, found.name in CORE or found.name == ALL
        limits = (0.05, 0.15) if overall else (0.10, 0.25) if core else (None, None)
        why = WHY_4R if found.name == "4R" else "" if core else "no limit: a mix of local and transferred turns"
        for what, at_most, one in (
            ("TPOT, mean absolute error", limits[0], found.tpot),
            ("TTFT of second turns (P50), mean absolute error", limits[1], found.ttft),
        ):
            name = f"fit/{found.name}/{'tpot' if one is found.tpot else 'ttft'}"
            text = f"{found.name}, {found.ttft.n} points: {what}"
            findings.append(Finding(Target(name, text, Unit.SHARE, PLACE, at_most=at_most, why=why), one.mape))
            if overall and not isnan(one.spearman):
                rank = Target(f"{name}/spearman", f"{text.split(':')[0]}: rank correlation", Unit.RATIO, PLACE)
                rank = Target(rank.name, f"{rank.what} of {what.split(',')[0]}", Unit.RATIO, PLACE, at_least=0.93)
                findings.append(Finding(rank, one.spearman))
    return Chapter("The fit", HOW, findings, _panels(compared(lab)), 2)


def _panels(pairs: Sequence[Pair]) -> list[Panel]:
    """Measured against simulated, by kind of configuration."""
    if not pairs:
        return []
    kinds = {
        "replicas": [p for p in pairs if "R" in p[0].point.config],
        "x = 0": [p for p in pairs if p[0].point.config in ("1P_3D", "2P_2D", "3P_1D")],
        "x = .83": [p for p in pairs if p[0].point.config in ("1P_3pD", "2P_2pD", "3P_1pD")],
    }

    def cloud(get: str) -> list[Series]:
        return [
            Series(
                kind,
                [getattr(m.later, get) for m, _ in some],
                [getattr(s.later, get) for _, s in some],
                color,
                Source.MEASURED,
                line=False,
                mark=".",
            )
            for color, (kind, some) in enumerate(kinds.items())
            if some
        ]

    axes = ("measured, ms", "Trimtab, ms")
    return [
        Panel("TPOT of second turns", *axes, cloud("tpot_mean_ms"), x_log=True, y_log=True, diagonal=True),
        Panel("TTFT of second turns, P50", *axes, cloud("ttft_p50_ms"), x_log=True, y_log=True, diagonal=True),
    ]
