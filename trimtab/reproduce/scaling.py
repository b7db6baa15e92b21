"""Figure 10: whether the gain lasts with more turns and larger models."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from emulator.profiles import (
    LLAMA_3_1_8B_H100_AS_MEASURED,
    P2P_NCCL,
    QWEN_2_5_14B_H100,
    QWEN_3_30B_A3B_H100,
    EngineProfile,
)
from emulator.workload import Mix, fixed

from ..grid import AS_MEASURED
from .lab import Lab
from .panel import Panel, Series, Source
from .target import Chapter, Finding, Target, Unit
from .trial import Trial

PLACE = "Figure 10"
CUT = -0.70
TURNS = (2, 4, 8, 16)
REQUESTS = 32
"""Of a measured run, whatever its turns: 16 conversations of two, two of sixteen."""
QPS = 4.0
WHY_SMALL = (
    "the same cell of the published grid (4R, QPS 4) has 34.6 ms: the fit is over 18 workloads, and is a fifth slow "
    "for appends of 256 tokens, which wait for the step under way and then take one of their own"
)
WHY_TURNS = (
    "measured TTFT grows by 1 to 2 ms a turn also where the cache holds the prompt; here a turn pays for its uncached "
    "tokens, and the growing prompt itself costs only attention"
)
HOW = (
    "(a) The workload small_mid_bal (128 tokens in and 128 out in every turn, no pause) at 4 turns a second, ten "
    "times the 32 requests that a measured run had. (b) The same with two turns on three models. Profiles of 14B and "
    "30B-A3B are derived from the 8B's by weights, FLOPs and KV bytes, not measured, and get its P2pNccl link here."
)
MODELS: dict[str, EngineProfile] = {
    "8B": LLAMA_3_1_8B_H100_AS_MEASURED,
    "14B": replace(QWEN_2_5_14B_H100, link=P2P_NCCL, reuse_responses=False),
    "30B-A3B": replace(QWEN_3_30B_A3B_H100, link=P2P_NCCL, reuse_responses=False),
}
MODES = {"x = 0": ("2P_2D", 0.0, "2P_2D"), "x = 1": ("2P_2D", 1.0, "2P_2pD"), "4R": ("4R", 0.0, "4R")}
"""Configuration, x, and the configuration's measured name."""


def _mix(turns: int) -> Mix:
    return Mix(f"mid_bal-{turns}", fixed(128), ((1.0, fixed(128)),), fixed(128), fixed(0), 1.0, turns, turns)


def figure_10(lab: Lab) -> Chapter:
    """The chapter."""
    repeats = 3 if lab.quick else 10  # a run is small: several in a row, some seconds apart, are one longer one
    lengths = TURNS[:3] if lab.quick else TURNS
    keys = [(turns, mode) for turns in lengths for mode in MODES]
    todo = [
        Trial(config, _mix(turns), QPS / turns, REQUESTS // turns * repeats, AS_MEASURED, x=x)
        for turns in lengths
        for config, x, _ in MODES.values()
    ]
    by_model = [(model, mode) for model in MODELS for mode in MODES]
    todo += [
        Trial(config, _mix(2), QPS / 2, REQUESTS // 2 * repeats, replace(AS_MEASURED, profile=profile), x=x)
        for profile in MODELS.values()
        for config, x, _ in MODES.values()
    ]
    done = [ran.later.ttft_mean_ms for ran in lab.trials("turns and models", todo)]
    ours = dict(zip(keys, done, strict=False))
    models = dict(zip(by_model, done[len(keys) :], strict=True))
    findings: list[Finding] = []
    known: dict[tuple[int, str], float] = {}
    for turns in lengths:
        for mode, (_, _, config) in MODES.items():
            values = lab.readings.turns.get((config, turns))
            if values:
                known[turns, mode] = fmean(values)
    for turns in lengths:
        said = {m: known.get((turns, m)) for m in MODES}
        for mode in MODES:
            limit = 0.25 if turns <= 8 else None
            target = Target(
                f"figure-10/turns-{turns}/{mode}",
                f"{turns} turns, {mode}, TTFT of later turns",
                Unit.MS,
                PLACE,
                limit=limit,
                why=WHY_TURNS if turns > 8 else WHY_SMALL if mode != "x = 0" else "",
            )
            findings.append(Finding(target, ours[turns, mode], said[mode]))
        gain = Target(f"figure-10/turns-{turns}/cut", f"{turns} turns, x = 0 to 1", Unit.CHANGE, PLACE, CUT, 0.1)
        old, new = said["x = 0"], said["x = 1"]
        findings.append(
            Finding(gain, ours[turns, "x = 1"] / ours[turns, "x = 0"] - 1, new / old - 1 if old and new else None)
        )
    for model in MODELS:
        gain = Target(f"figure-10/model-{model}/cut", f"{model}, two turns, x = 0 to 1", Unit.CHANGE, PLACE, CUT, 0.1)
        findings.append(Finding(gain, models[model, "x = 1"] / models[model, "x = 0"] - 1))
    return Chapter(
        "Figure 10: more turns, larger models", HOW, findings, [_by_turns(ours, known), _by_model(models)], 2
    )


def _by_turns(ours: dict[tuple[int, str], float], known: dict[tuple[int, str], float]) -> Panel:
    series = []
    for color, mode in enumerate(MODES):
        for label, values, source in ((mode, ours, Source.TRIMTAB), (f"measured, {mode}", known, Source.MEASURED)):
            some = [(float(turns), ms) for (turns, m), ms in values.items() if m == mode]
            if some:
                series.append(
                    Series(
                        label, [x for x, _ in some], [y for _, y in some], color, source, line=source is Source.TRIMTAB
                    )
                )
    return Panel("(a) turns", "turns of a conversation", "TTFT of later turns, ms", series, x_log=True)


def _by_model(models: dict[tuple[str, str], float]) -> Panel:
    x = [float(n) for n in range(len(MODELS))]
    series = [Series(mode, x, [models[model, mode] for model in MODELS], color) for color, mode in enumerate(MODES)]
    return Panel("(b) models", "", "TTFT of second turns, ms", series, x_names=list(MODELS))
