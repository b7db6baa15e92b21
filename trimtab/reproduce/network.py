"""Figure 5 and Equation 2: slower links, on 1P_3D at one conversation a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from emulator.profiles import BANDWIDTHS_GB_S, wire_ms
from emulator.standins import WILDCHAT
from emulator.workload import LogNormal, fixed

from ..real import AS_MEASURED_REAL
from .lab import CONVERSATIONS, Lab
from .panel import Panel, Series, Source
from .target import Chapter, Finding, Target, Unit
from .trial import Ran, Rule, Trial

WILDCHAT_AT_ONCE = replace(WILDCHAT, think_s=fixed(0))
"""The stand-in for WildChat, by the protocol of the measured runs: no pause between turns."""
_BRIEF = LogNormal(53, 1.28, 4, 16_000)
WILDCHAT_BRIEF = replace(
    WILDCHAT_AT_ONCE, name="wildchat-brief", first=LogNormal(458, 1.28, 4, 16_000), later=((1.0, _BRIEF),)
)
"""As long prompts on average, but most of it in the first: later turns bring 120 new tokens instead of 400."""
PLACE = "Figure 5"
HOW = (
    f"{CONVERSATIONS} conversations of the WildChat stand-in (published statistics: the paper's sample is not "
    "published), 1 a second, on 1P_3D with the P2pNccl link. PPD: Algorithm 1 at weights (1, 1) with the table from "
    "virtual time. The slower wire stalls D's loop by Equation 2, as the authors emulated it. The absolute level of "
    "PD's TTFT was used to set the link's constants; its slope, PPD, TPOT and E2E were not."
)
WHY_BRIEF = (
    "how the sample splits its prompts into first and later ones is not published; this is the other end of what its "
    "statistics allow, long first prompts and brief later ones"
)
Key = tuple[str, str]
"""Link, and PD or PPD."""
ENDS = ("nvlink", "100gbe")
LIMIT = 0.08
PAPER: dict[tuple[str, str], tuple[float, float]] = {
    ("ttft", "PD"): (143.7, 170.6),
    ("ttft", "PPD"): (51.0, 51.0),
    ("tpot", "PD"): (8.07, 8.38),
    ("tpot", "PPD"): (8.1, 8.1),
    ("e2e", "PD"): (3028.0, 3169.0),
}
"""ms over NVLink and over 100GbE."""
METRICS: dict[str, Callable[[Ran], float]] = {
    "ttft": lambda ran: ran.later.ttft_mean_ms,
    "tpot": lambda ran: ran.later.tpot_mean_ms,
    "e2e": lambda ran: ran.sent.e2e_mean_ms,
}
LABELS = {"ttft": "TTFT of later turns, mean", "tpot": "TPOT of later turns, mean", "e2e": "end-to-end, mean"}
EQUATION_2 = {150.0: 4.5, 25.0: 27.0, 10.0: 67.0}
"""ms by GB/s at 5,115 tokens (Appendix B.6)."""


def figure_5(lab: Lab) -> Chapter:
    """The chapter."""
    names = list(BANDWIDTHS_GB_S)
    rule = Rule(lab.table("1P_3D"))
    keys: list[Key] = []
    todo: list[Trial] = []
    for name in names:
        profile = AS_MEASURED_REAL.profile.with_bandwidth(BANDWIDTHS_GB_S[name])
        conditions = replace(AS_MEASURED_REAL, profile=profile)
        trial = Trial("1P_3D", WILDCHAT_AT_ONCE, 1.0, lab.conversations, conditions)
        keys += [(name, "PD"), (name, "PPD")]
        todo += [trial, replace(trial, rule=rule)]
    brief = Trial("1P_3D", WILDCHAT_BRIEF, 1.0, lab.conversations, AS_MEASURED_REAL)
    keys += [("brief", "PD"), ("brief", "PPD")]
    todo += [brief, replace(brief, rule=rule)]
    ran = dict(zip(keys, lab.trials("four interconnects", todo), strict=True))
    findings = [*_sizes(ran), *_slopes(ran)]
    for mode, paper in (("PD", 143.7), ("PPD", 51.0)):
        what = f"{mode}, TTFT of later turns, NVLink, stand-in with brief later turns"
        target = Target(f"figure-5/brief/{mode}", what, Unit.MS, PLACE, paper, why=WHY_BRIEF)
        findings.append(Finding(target, METRICS["ttft"](ran["brief", mode])))
    return Chapter("Figure 5: slower networks", HOW, findings, [_panel(metric, names, ran) for metric in METRICS])


def _sizes(ran: Mapping[Key, Ran]) -> list[Finding]:
    """Milliseconds at both ends."""
    found = []
    for (metric, mode), said in PAPER.items():
        for link, paper in zip(ENDS, said, strict=True):
            what = f"{mode}, {LABELS[metric]}, {link}"
            target = Target(f"figure-5/{mode}/{metric}/{link}", what, Unit.MS, PLACE, paper, LIMIT)
            found.append(Finding(target, METRICS[metric](ran[link, mode])))
    return found


def _slopes(ran: Mapping[Key, Ran]) -> list[Finding]:
    """From NVLink to 100GbE, and from PD to PPD."""

    def change(metric: str, start: Key, end: Key) -> float:
        return METRICS[metric](ran[end]) / METRICS[metric](ran[start]) - 1

    fast, slow = ENDS
    rows = [
        (f"PD/ttft/{fast}-{slow}", "PD, TTFT, NVLink to 100GbE", 0.187, "ttft", (fast, "PD"), (slow, "PD")),
        (f"PD/e2e/{fast}-{slow}", "PD, end-to-end, NVLink to 100GbE", 0.047, "e2e", (fast, "PD"), (slow, "PD")),
        (f"PPD/e2e/{fast}-{slow}", "PPD, end-to-end, NVLink to 100GbE", 0.009, "e2e", (fast, "PPD"), (slow, "PPD")),
        (f"cut/{fast}", "TTFT, PD to PPD, NVLink", -0.64, "ttft", (fast, "PD"), (fast, "PPD")),
        (f"cut/{slow}", "TTFT, PD to PPD, 100GbE", -0.70, "ttft", (slow, "PD"), (slow, "PPD")),
    ]
    return [
        Finding(Target(f"figure-5/{name}", what, Unit.CHANGE, PLACE, paper, LIMIT), change(metric, start, end))
        for name, what, paper, metric, start, end in rows
    ]


def _panel(metric: str, names: Sequence[str], ran: Mapping[Key, Ran]) -> Panel:
    series = []
    for color, mode in enumerate(("PD", "PPD")):
        y = [METRICS[metric](ran[name, mode]) for name in names]
        series.append(Series(mode, [float(n) for n in range(len(names))], y, color))
        said = PAPER.get((metric, mode))
        if said is not None:
            series.append(Series(f"paper, {mode}", (0.0, float(len(names) - 1)), said, color, Source.PAPER))
    return Panel(LABELS[metric], "link", "ms", series, x_names=names)


def equation_2(lab: Lab) -> Chapter:
    """The chapter: bytes over bandwidth, no run."""
    kv = AS_MEASURED_REAL.profile.kv_bytes_per_token
    findings = [
        Finding(
            Target(f"equation-2/{gb_s:g}", f"5,115 tokens over {gb_s:g} GB/s", Unit.MS, "Appendix B.6", ms, 0.01),
            wire_ms(5115, kv, gb_s),
        )
        for gb_s, ms in EQUATION_2.items()
    ]
    return Chapter("Equation 2: bytes on the wire", "128 KiB a token; the unit tests hold the same.", findings)
