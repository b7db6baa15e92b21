"""Figure 6: w_tpot as a knob between TTFT and TPOT, on 1P_3D under prefill-heavy conversations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from emulator.workload import LogNormal, Mix, fixed

from ..real import AS_MEASURED_REAL
from .lab import Lab
from .panel import Panel, Series, Source
from .target import Chapter, Finding, Target, Unit
from .trial import Ran, Rule, Trial

PLACE = "Figure 6"
SHARES = (0.0, 0.2, 0.5, 0.95)
"""Of local later turns, at static PD and at w_tpot 6, 3 and 1."""
AT_WEIGHT = {1.0: 0.95, 3.0: 0.50, 6.0: 0.20}
SWEEP = (0.5, 1.0, 3.0, 6.0, 12.0, 24.0, 48.0, 96.0)
QPS = (8.0, 16.0)


def _mix(name: str, mean_in: float, mean_out: float) -> Mix:
    """Log-normal lengths with these means and the tails of the WildChat stand-in."""
    new = LogNormal(mean_in / 2.27, 1.28, 4, 16_000)
    return Mix(name, new, ((1.0, new),), LogNormal(mean_out / 1.377, 0.8, 8, 2000), fixed(0), 2.715, 2, 16)


MIXES = {"A": _mix("figure-6-a", 249, 227), "B": _mix("figure-6-b", 372, 188)}
HOW = (
    "The paper samples 500 prefill-heavy conversations of ShareGPT and WildChat and does not say how long they are, "
    "so two mixes stand in: A with 249 new tokens and 227 of answer a turn on average, B with 372 and 188. The mix "
    "decides these rows. First the paper's local shares by a coin; then Algorithm 1 itself, with the table from "
    "virtual time, at the paper's weights and beyond."
)
WHY_MIX = "the sample decides this number, and is not published"
WHY_SHARE = (
    "in the table of the measured hardware relative gains in TTFT are 12 to 27 times the relative losses in TPOT (the "
    "published points say the same: docs/explanation/emulator.md), so weights of 1 to 6 hardly decide anything"
)


def figure_6(lab: Lab) -> Chapter:
    """The chapter."""
    levels = QPS[:1] if lab.quick else QPS
    sweep = (1.0, 6.0, 24.0, 96.0) if lab.quick else SWEEP
    table = lab.table("1P_3D")
    keys: list[tuple[str, float, float | str]] = []
    todo: list[Trial] = []
    for name, mix in MIXES.items():
        for qps in levels:
            trial = Trial("1P_3D", mix, qps, lab.conversations, AS_MEASURED_REAL)
            keys += [(name, qps, share) for share in SHARES] + [(name, qps, f"w{w:g}") for w in sweep]
            todo += [replace(trial, x=share) for share in SHARES]
            todo += [replace(trial, rule=Rule(table, 1.0, w)) for w in sweep]
    ran = dict(zip(keys, lab.trials("weights", todo), strict=True))
    findings: list[Finding] = []
    for name in MIXES:
        for qps in levels:
            steps = [ran[name, qps, share] for share in SHARES]
            findings += _frontier(f"{name}/qps-{qps:g}", f"mix {name}, QPS {qps:g}", steps)
            by_weight = [ran[name, qps, f"w{w:g}"] for w in sweep]
            falling = all(a.local_share >= b.local_share - 0.01 for a, b in pairwise(by_weight))
            target = Target(
                f"figure-6/{name}/qps-{qps:g}/falls",
                f"mix {name}, QPS {qps:g}: the local share falls as w_tpot rises (1: yes)",
                Unit.COUNT,
                PLACE,
                at_least=1,
            )
            findings.append(Finding(target, float(falling)))
            for weight, share in AT_WEIGHT.items():
                if weight in sweep:
                    what = f"mix {name}, QPS {qps:g}: local share at w_tpot = {weight:g}"
                    at = Target(
                        f"figure-6/{name}/qps-{qps:g}/w-{weight:g}", what, Unit.SHARE, PLACE, share, why=WHY_SHARE
                    )
                    findings.append(Finding(at, ran[name, qps, f"w{weight:g}"].local_share))
    panels = []
    for name in MIXES:
        series = []
        for color, qps in enumerate(levels):
            steps = [ran[name, qps, share] for share in SHARES]
            x, y = [r.later.ttft_mean_ms for r in steps], [r.later.tpot_mean_ms for r in steps]
            series.append(Series(f"QPS {qps:g}, by share 0, .2, .5, .95", x, y, color))
            some = [ran[name, qps, f"w{w:g}"] for w in sweep]
            x, y = [r.later.ttft_mean_ms for r in some], [r.later.tpot_mean_ms for r in some]
            label = f"QPS {qps:g}, by w_tpot {sweep[0]:g} … {sweep[-1]:g}"
            series.append(Series(label, x, y, color, Source.TRIMTAB, line=False, mark="D"))
        panels.append(Panel(f"mix {name}", "TTFT of later turns, ms", "TPOT, ms", series, x_log=True))
    shares = []
    for color, name in enumerate(MIXES):
        y = [ran[name, levels[0], f"w{w:g}"].local_share * 100 for w in sweep]
        shares.append(Series(f"mix {name}, QPS {levels[0]:g}", sweep, y, color))
    said = sorted(AT_WEIGHT)
    shares.append(Series("paper", said, [AT_WEIGHT[w] * 100 for w in said], 2, Source.PAPER))
    panels.append(Panel("local share by weight", "w_tpot", "of later turns, %", shares, x_log=True))
    return Chapter("Figure 6: w_tpot", HOW, findings, panels)


def _frontier(name: str, where: str, steps: list[Ran]) -> list[Finding]:
    base, best = steps[0].later, steps[-1].later
    ttft, tpot = [r.later.ttft_mean_ms for r in steps], [r.later.tpot_mean_ms for r in steps]
    monotone = sorted(ttft, reverse=True) == ttft and sorted(tpot) == tpot
    return [
        Finding(
            Target(
                f"figure-6/{name}/monotone",
                f"{where}: more local, TTFT falls and TPOT rises (1: yes)",
                Unit.COUNT,
                PLACE,
                at_least=1,
            ),
            float(monotone),
        ),
        Finding(
            Target(f"figure-6/{name}/ttft", f"{where}: TTFT, 95 % local", Unit.CHANGE, PLACE, -0.95, 0.05, why=WHY_MIX),
            best.ttft_mean_ms / base.ttft_mean_ms - 1,
        ),
        Finding(
            Target(f"figure-6/{name}/tpot", f"{where}: TPOT, 95 % local", Unit.CHANGE, PLACE, 0.095, 0.05, why=WHY_MIX),
            best.tpot_mean_ms / base.tpot_mean_ms - 1,
        ),
    ]
