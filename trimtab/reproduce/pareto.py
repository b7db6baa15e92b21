"""Figures 1 and 9: P99 TTFT against throughput, and who is on the frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from emulator.workload import Mix, fixed

from ..agreement import PURE
from ..grid import Conditions
from ..measured import Result
from ..simulate import EAGER
from .lab import FULLY_LOCAL, RATIOS, Lab
from .panel import Panel, Series, Source
from .target import Chapter, Finding, Target, Unit
from .trial import Rule, Trial
from .winners import WHY_4R

PD, LOCAL = "PD, x = 0", "D-local capable"


@dataclass(frozen=True, slots=True)
class Spot:
    """A configuration on a panel."""

    ttft_ms: float
    tps: float


def capable(config: str) -> bool:
    """Whether some D node may run append-prefill: blue in the paper."""
    return "pD" in config or config.startswith("PPD")


def frontier(spots: Mapping[str, Spot]) -> list[str]:
    """Those that nobody beats in both, or in one at equality in the other."""

    def beaten(name: str) -> bool:
        own = spots[name]
        return any(
            o.ttft_ms <= own.ttft_ms and o.tps >= own.tps and (o.ttft_ms, o.tps) != (own.ttft_ms, own.tps)
            for other, o in spots.items()
            if other != name
        )

    return [name for name in spots if not beaten(name)]


KINDS_OF = {PD: "o", LOCAL: "o", "4R": "s", "PPD": "*"}
"""With their marks."""


def _kind(config: str) -> str:
    if config == "4R":
        return "4R"
    return "PPD" if config.startswith("PPD") else LOCAL if capable(config) else PD


def _panel(title: str, spots: Mapping[str, Spot], measured: Mapping[str, Spot]) -> Panel:
    series = []
    for source, some in ((Source.TRIMTAB, spots), (Source.MEASURED, measured)):
        for color, (label, mark) in enumerate(KINDS_OF.items()):
            chosen = [spot for config, spot in some.items() if _kind(config) == label]
            if chosen:
                name = label if source is Source.TRIMTAB else f"measured, {label}"
                x, y = [s.ttft_ms for s in chosen], [s.tps for s in chosen]
                series.append(Series(name, x, y, color, source, line=False, mark=mark))
    return Panel(title, "P99 TTFT of later turns, ms", "tokens/s", series, x_log=True)


# -- Figure 1 ----------------------------------------------------------------------------------------------------------

LONG = Mix("long-context", fixed(10_000), ((1.0, fixed(100)),), fixed(100), fixed(0), 1.0, 5, 5)
LOADS = (0.5, 1.0, 2.0)
OPEN: Conditions = replace(FULLY_LOCAL, client=EAGER)
HOW_1 = (
    "The paper says: 10k input, 100 output tokens, 5 turns, three loads. Here: a first prompt of 10,000 tokens, then "
    "100 new ones a turn; 0.5, 1 and 2 conversations a second; open loop; P99 of later turns. Which tokens the "
    "paper's 10k are, its loads and its axes' values are not published, so there is nothing to compare but who is "
    "where. PPD: Algorithm 1 at weights (1, 1)."
)


def figure_1(lab: Lab) -> Chapter:
    """The chapter."""
    count = 40 if lab.quick else 200
    keys, todo = [], []
    for qps in LOADS:
        for config in PURE:
            keys.append((qps, config))
            todo.append(Trial(config, LONG, qps, count, OPEN))
        for ratio in RATIOS:
            keys.append((qps, f"PPD {ratio}"))
            todo.append(Trial(ratio, LONG, qps, count, OPEN, rule=Rule(lab.table(ratio))))
    ran = dict(zip(keys, lab.trials("long contexts", todo), strict=True))
    findings, panels, fastest, chosen = [], [], 0, 0
    for qps in LOADS:
        spots = {c: Spot(r.later.ttft_p99_ms, r.tokens_per_s) for (q, c), r in ran.items() if q == qps}
        apart = {c: spot for c, spot in spots.items() if c != "4R"}
        fastest += capable(min(apart, key=lambda c: apart[c].ttft_ms))
        chosen += any(name.startswith("PPD") for name in frontier(apart))
        panels.append(_panel(f"{qps:g} conversations/s", spots, {}))
        x0, x1 = (min(apart[c].ttft_ms for c in apart if want(c)) for want in (lambda c: c in RATIOS, capable))
        target = Target(
            f"figure-1/{qps:g}/cut", f"{qps:g}/s: best P99 TTFT, D-local capable against x = 0", Unit.CHANGE, "Figure 1"
        )
        findings.append(Finding(target, x1 / x0 - 1))
    where = "loads at which a D-local capable configuration has the lowest P99 TTFT of all with P and D"
    best = "loads at which PPD on some P:D ratio is on the frontier of all with P and D"
    findings.append(Finding(Target("figure-1/lowest", where, Unit.COUNT, "Figure 1", 3.0, 0.0), float(fastest)))
    findings.append(Finding(Target("figure-1/ppd", best, Unit.COUNT, "Figure 1", 3.0, 0.0), float(chosen)))
    return Chapter("Figure 1: Pareto frontiers, long contexts", HOW_1, findings, panels)


# -- Figure 9 ----------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[str, ...]] = {
    "decode-heavy": ("tiny", "short_gen", "long_gen", "very_long_gen"),
    "balanced": ("small_bal", "mid_bal"),
    "prefill-heavy": ("mid_paste", "big_paste", "huge_paste"),
}
QPS = (2.0, 8.0, 20.0)
HOW_9 = (
    "The ten core configurations on the grid as measured: mean over the workloads of a kind of the P99 TTFT of second "
    "turns and of throughput. A P99 of 20 to 200 turns is close to their maximum, and the model has no jitter. 4R is "
    "orange in the paper, and usually on the frontier."
)


def figure_9(lab: Lab) -> Chapter:
    """The chapter."""
    levels = lab.qps_levels if lab.quick else QPS
    panels, lowest = [], {"ours": 0, "theirs": 0}
    on: dict[str, list[bool]] = {"ours": [], "theirs": []}
    with_4r: dict[str, list[bool]] = {"ours": [], "theirs": []}
    for qps in levels:
        for kind, types in KINDS.items():
            both = {"ours": _spots(lab.grid, types, qps), "theirs": _spots(lab.measured, types, qps)}
            for who, spots in both.items():
                if spots:
                    apart = {c: s for c, s in spots.items() if c != "4R"}
                    on[who] += [capable(c) for c in frontier(apart)]
                    with_4r[who] += [capable(c) for c in frontier(spots)]
                    lowest[who] += capable(min(apart, key=lambda c: apart[c].ttft_ms))
            panels.append(_panel(f"{kind}, QPS {qps:g}", both["ours"], both["theirs"]))
    known = bool(on["theirs"])
    what = "frontier points of all with P and D that are D-local capable"
    share = Target("figure-9/share", what, Unit.SHARE, "Figure 9", limit=0.15)
    every = Target("figure-9/share/4R", "the same with 4R beside them", Unit.SHARE, "Figure 9", why=WHY_4R)
    where = f"panels (of {len(panels)}) whose lowest P99 TTFT of all with P and D is D-local capable"
    low = Target("figure-9/lowest", where, Unit.COUNT, "Figure 9", float(len(panels)), 1.0)
    findings = [
        Finding(share, _mean(on["ours"]), _mean(on["theirs"]) if known else None),
        Finding(every, _mean(with_4r["ours"]), _mean(with_4r["theirs"]) if known else None),
        Finding(low, float(lowest["ours"]), float(lowest["theirs"]) if known else None),
    ]
    return Chapter("Figure 9: Pareto frontiers", HOW_9, findings, panels)


def _mean(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def _spots(results: Sequence[Result], types: Sequence[str], qps: float) -> dict[str, Spot]:
    """Configurations of which every workload of these types was answered."""
    found = {}
    for config in PURE:
        some = [r for r in results if r.point.config == config and r.point.turn2 in types and r.point.qps == qps]
        if some and all(r.later.n for r in some):
            found[config] = Spot(fmean(r.later.ttft_p99_ms for r in some), fmean(r.tokens_per_s for r in some))
    return found
