"""The result of a scenario as a table for a terminal."""

from __future__ import annotations

from math import isfinite
from statistics import fmean, median

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from slos.objective import Signal

from .runs import Outcome

NARROW = 120
"""Below so many columns the intervals stay out and a phase takes two lines."""


def result_table(outcome: Outcome, command: str, commit: str, width: int = 150) -> Table:
    """One row a policy, best attainment first: attainment, margin, seeds that hold, and per phase the median P99s.
    `width` is the terminal's, in characters."""
    narrow = width < NARROW
    scenario = outcome.scenario
    limits = {slo.signal: (slo.threshold_s or 0.0) * 1e3 for slo in scenario.slos}
    limits_text = f"P99 TTFT of later turns ≤ {limits[Signal.TTFT]:g} ms, P99 TPOT ≤ {limits[Signal.TPOT]:g} ms"
    seeds = f"{len(outcome.seeds)} seed{'s' if len(outcome.seeds) > 1 else ''}"
    table = Table(
        title=f"{scenario.title}\n{scenario.profile}, {scenario.topology}, {limits_text}, {seeds}",
        caption="J: later turns that meet both SLOs, mean over phases. Margin: controller − policy in J, percentage "
        "points, paired, ± 95 % interval.\nPer phase: median over seeds of P99 TTFT / P99 TPOT in ms · share of seeds "
        f"that hold both.\nsource: emulated · {escape(command)} · {commit}",
        box=box.SIMPLE_HEAD if narrow else box.HEAVY_HEAD,
        padding=(0, 0) if narrow else (0, 1),
        pad_edge=not narrow,
        caption_justify="left",
        title_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    table.add_column("J %", justify="right", no_wrap=True)
    table.add_column("margin", justify="right", no_wrap=True)
    table.add_column("all", justify="right", no_wrap=True)
    for phase in scenario.phases:
        label = phase.label.replace(" ", "\n") if narrow else phase.label.replace(", ", ",\n").replace(" + ", "\n+ ")
        table.add_column(label, justify="right", no_wrap=not narrow, overflow="fold")
    for policy in sorted(outcome.runs, key=lambda name: -outcome.attainment(name)):
        runs = outcome.runs[policy]
        margin = outcome.margin(policy)
        interval = f" ±{margin.half_width * 100:.2f}" if isfinite(margin.half_width) and not narrow else ""
        shown = "" if policy == outcome.hero else f"{margin.mean * 100:+.2f}{interval}"
        cells = []
        for at in range(len(scenario.phases)):
            scores = [run.score.phases[at] for run in runs]
            ttft = median(s.p99_ttft_ms if s.p99_ttft_ms is not None else 0.0 for s in scores)
            tpot = median(s.p99_tpot_ms if s.p99_tpot_ms is not None else 0.0 for s in scores)
            hold = fmean(s.hold for s in scores)
            p99s = f"{ttft:.0f}/{tpot:.0f}" if narrow else f"{ttft:.0f} / {tpot:.0f}"
            cell = Text(f"{p99s}\n{hold:.1f}" if narrow else f"{p99s} · {hold:.1f}")
            cell.stylize("green" if ttft <= limits[Signal.TTFT] and tpot <= limits[Signal.TPOT] else "red")
            cells.append(cell)
        table.add_row(
            Text(policy, style="bold" if policy == outcome.hero else ""),
            f"{outcome.attainment(policy) * 100:.2f}",
            shown,
            f"{outcome.holds_all(policy):.1f}",
            *cells,
        )
    return table
