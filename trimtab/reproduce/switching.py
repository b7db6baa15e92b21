"""Table 1: what second turns gain in TTFT from x = 0 to x = 1, by P:D ratio and load."""

from __future__ import annotations

from collections.abc import Sequence

from ..agreement import LOADS, ttft_change
from ..measured import Result
from .lab import RATIOS, Lab, appends
from .panel import Panel, Series, Source
from .target import Chapter, Finding, Target, Unit, Verdict

PLACE = "Table 1"
PAPER: dict[str, tuple[float, float, float]] = {
    "1P_3D": (-0.578, -0.652, -0.733),
    "2P_2D": (-0.477, -0.516, -0.562),
    "3P_1D": (-0.443, -0.381, -0.249),
}
"""At low, medium and high QPS."""
WITHIN = 0.10
WHY = (
    "the published points themselves give −52 % at high QPS on 3P_1D where the paper has −25 %: its table comes from "
    "other runs, and there the model is between the two"
)
WHY_X1 = "the measured pD nodes took .83 of their later turns, not all: the paper's “x = 1” is not 1"
HOW = (
    "Mean over workloads and QPS levels of the change of the mean TTFT of second turns. As measured: the pD nodes "
    "take .83 of their later turns, as 16 to 22 % of the measured ones went through P. Below it x = 1 in earnest. The "
    "limit is against the measured value: 8 of 9 within 10 points."
)


def table_1(lab: Lab) -> Chapter:
    """The chapter."""
    findings: list[Finding] = []
    panels: list[Panel] = []
    for ratio, paper in PAPER.items():
        ours = _changes(lab.grid, ratio)
        full = _changes(lab.grid_local, ratio)
        known = _changes(lab.measured, ratio) if lab.measured else [None] * 3
        for at, load in enumerate(LOADS):
            why = WHY if ratio == "3P_1D" and at == 2 else ""
            name, what = f"table-1/{ratio}/{load.split()[0]}", f"{ratio}, {load} QPS, TTFT as measured (x = .83)"
            target = Target(
                name, what, Unit.CHANGE, PLACE, paper[at], WITHIN if known[at] is not None else None, why=why
            )
            findings.append(Finding(target, ours[at], known[at]))
        for at, load in enumerate(LOADS):
            name, what = f"table-1/x=1/{ratio}/{load.split()[0]}", f"{ratio}, {load} QPS, TTFT at x = 1"
            findings.append(Finding(Target(name, what, Unit.CHANGE, PLACE, paper[at], why=WHY_X1), full[at]))
        panels.append(_panel(ratio, paper, known, ours, full))
    judged = [f for f in findings if f.target.limit is not None]
    if judged:
        held = float(sum(f.verdict is Verdict.HOLDS for f in judged))
        what = f"cells within {WITHIN * 100:g} points of the measured value"
        # The single cells need not hold: eight of nine have to.
        findings = [_without_limit(f) for f in findings]
        findings.insert(
            0, Finding(Target("table-1/cells", what, Unit.COUNT, PLACE, at_least=8.0 * len(judged) / 9), held)
        )
    return Chapter("Table 1: TTFT of second turns, from x = 0 to x = 1", HOW, findings, panels)


def _without_limit(finding: Finding) -> Finding:
    t = finding.target
    return Finding(Target(t.name, t.what, t.unit, t.place, t.paper, why=t.why), finding.trimtab, finding.measured)


def _changes(results: Sequence[Result], ratio: str) -> list[float | None]:
    found = ttft_change(results, ratio, appends(ratio))
    return [found.get(load) for load in LOADS]


def _panel(
    ratio: str,
    paper: Sequence[float | None],
    known: Sequence[float | None],
    ours: Sequence[float | None],
    full: Sequence[float | None],
) -> Panel:
    def series(label: str, values: Sequence[float | None], color: int, source: Source) -> Series:
        some = [(float(at), value * 100) for at, value in enumerate(values) if value is not None]
        return Series(label, [x for x, _ in some], [y for _, y in some], color, source)

    return Panel(
        ratio,
        "QPS",
        "change of TTFT, %",
        [
            series("paper", paper, 0, Source.PAPER),
            series("measured", known, 0, Source.MEASURED),
            series("Trimtab, x = .83", ours, 0, Source.TRIMTAB),
            series("Trimtab, x = 1", full, 1, Source.TRIMTAB),
        ],
        x_names=[load.split()[0] for load in LOADS],
    )


assert tuple(PAPER) == RATIOS
