"""Figure 5 and Equation 2: slower links, on 1P_3D at one conversation a second."""

from __future__ import annotations

from dataclasses import replace

from emulator.profiles import BANDWIDTHS_GB_S, wire_ms
from emulator.standins import WILDCHAT
from emulator.workload import fixed

from ..real import AS_MEASURED_REAL
from .lab import CONVERSATIONS, Lab
from .panel import Panel, Series, Source
from .target import Chapter, Finding, Target, Unit
from .trial import Rule, Trial

WILDCHAT_AT_ONCE = replace(WILDCHAT, think_s=fixed(0))
"""The stand-in for WildChat, by the protocol of the measured runs: no pause between turns."""
PLACE = "Figure 5"
HOW = (
    f"{CONVERSATIONS} conversations of the WildChat stand-in (published statistics: the paper's "
    "sample is not published), "
    "1 a second, on 1P_3D with the P2pNccl link. PPD: Algorithm 1 at weights (1, 1) with the table "
    "from virtual time. The "
    "slower wire stalls D's loop by Equation 2, as the authors emulated it. The absolute level of "
    "PD's TTFT was used to set "
    "the link's constants; its slope, PPD, TPOT and E2E were not."
)
EQUATION_2 = {150.0: 4.5, 25.0: 27.0, 10.0: 67.0}
"""ms by GB/s at 5,115 tokens (Appendix B.6)."""


def figure_5(lab: Lab) -> Chapter:
    """The chapter."""
    names = list(BANDWIDTHS_GB_S)
    rule = Rule(lab.table("1P_3D"))
    todo = []
    for name in names:
        profile = AS_MEASURED_REAL.profile.with_bandwidth(BANDWIDTHS_GB_S[name])
        trial = Trial("1P_3D", WILDCHAT_AT_ONCE, 1.0, lab.conversations, replace(AS_MEASURED_REAL, profile=profile))
        todo += [trial, replace(trial, rule=rule)]
    ran = lab.trials("four interconnects", todo)
    by = {(name, mode): ran[2 * at + step] for at, name in enumerate(names) for step, mode in enumerate(("PD", "PPD"))}
    first, last = names[0], names[-1]

    def target(name: str, what: str, unit: Unit, paper: float | None, limit: float | None, why: str = "") -> Target:
        return Target(f"figure-5/{name}", what, unit, PLACE, paper, limit, why=why)

    def ttft(name: str, mode: str) -> float:
        return by[name, mode].later.ttft_mean_ms

    def tpot(name: str, mode: str) -> float:
        return by[name, mode].later.tpot_mean_ms

    def e2e(name: str, mode: str) -> float:
        return by[name, mode].every.e2e_mean_ms

    slow = "the slope is ours to predict; 5 points"
    findings = [
        Finding(target("pd/ttft/nvlink", "PD, TTFT of later turns, NVLink", Unit.MS, 143.7, 0.08), ttft(first, "PD")),
        Finding(target("pd/ttft/100gbe", "PD, TTFT of later turns, 100GbE", Unit.MS, 170.6, 0.08), ttft(last, "PD")),
        Finding(
            target("pd/ttft/slope", "PD, TTFT, NVLink to 100GbE", Unit.CHANGE, 0.187, 0.05, slow),
            ttft(last, "PD") / ttft(first, "PD") - 1,
        ),
        Finding(target("ppd/ttft/nvlink", "PPD, TTFT of later turns, NVLink", Unit.MS, 51.0, 0.08), ttft(first, "PPD")),
        Finding(target("ppd/ttft/100gbe", "PPD, TTFT of later turns, 100GbE", Unit.MS, 51.0, 0.08), ttft(last, "PPD")),
        Finding(target("pd/tpot/nvlink", "PD, TPOT, NVLink", Unit.MS, 8.07, 0.08), tpot(first, "PD")),
        Finding(target("pd/tpot/100gbe", "PD, TPOT, 100GbE", Unit.MS, 8.38, 0.08), tpot(last, "PD")),
        Finding(target("ppd/tpot/nvlink", "PPD, TPOT, NVLink", Unit.MS, 8.1, 0.08), tpot(first, "PPD")),
        Finding(target("pd/e2e/nvlink", "PD, mean end-to-end, NVLink", Unit.MS, 3028.0, 0.08), e2e(first, "PD")),
        Finding(target("pd/e2e/100gbe", "PD, mean end-to-end, 100GbE", Unit.MS, 3169.0, 0.08), e2e(last, "PD")),
        Finding(
            target("ppd/e2e/slope", "PPD, end-to-end, NVLink to 100GbE", Unit.CHANGE, 0.009, 0.02),
            e2e(last, "PPD") / e2e(first, "PPD") - 1,
        ),
        Finding(
            target("cut/nvlink", "TTFT cut by PPD, NVLink", Unit.CHANGE, -0.64, 0.05),
            ttft(first, "PPD") / ttft(first, "PD") - 1,
        ),
        Finding(
            target("cut/100gbe", "TTFT cut by PPD, 100GbE", Unit.CHANGE, -0.70, 0.05),
            ttft(last, "PPD") / ttft(last, "PD") - 1,
        ),
    ]
    ends = (0.0, float(len(names) - 1))
    panels = []
    for title, of, unit, paper in (
        ("TTFT of later turns", ttft, "ms", ((143.7, 170.6), (51.0, 51.0))),
        ("TPOT of later turns", tpot, "ms", ((8.07, 8.38), (8.1, 8.1))),
        ("end-to-end, mean", e2e, "ms", ((3028.0, 3169.0), None)),
    ):
        series = []
        for color, mode in enumerate(("PD", "PPD")):
            series.append(
                Series(mode, [float(n) for n in range(len(names))], [of(name, mode) for name in names], color)
            )
            said = paper[color]
            if said is not None:
                series.append(Series(f"paper, {mode}", ends, said, color, Source.PAPER))
        panels.append(Panel(title, "link", unit, series, x_names=names))
    return Chapter("Figure 5: slower networks", HOW, findings, panels)


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
