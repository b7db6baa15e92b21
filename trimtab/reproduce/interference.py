"""Figures 2, 7 and 8: how much a prefill beside a decoding batch slows its steps.

The paper measured by HTTP; here the formula of one engine step says it (emulator/profiles.py), for an operation in
every step, or once in a window of 64 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.profiles import LLAMA_3_1_8B_H100_AS_MEASURED, StepTime

from .lab import Lab
from .panel import Panel, Series, Source
from .target import Chapter, Finding, Target, Unit

PROFILE = LLAMA_3_1_8B_H100_AS_MEASURED
CONTEXT = 2048
"""Tokens of each decoding sequence, and cached ones of an append."""
FULL, APPEND, SMALL = 1024, 128, 64
"""New tokens of a full prefill, and of an append."""
BATCHES = tuple(range(10, 251, 10))
WINDOW = 64
FIGURE_8_BATCH = 64
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536)
WHY_APPEND = (
    "1,024 uncached tokens cost the same FLOPs with a cache before them or without; an append is cheap as it is "
    "small. The paper's 2 % is near what 64 new tokens cost; the released benchmark's own raw runs append 128 (+9 % "
    "at 200)"
)
WHY_FOUR = (
    "four full prefills in every step cost four times the tokens; +57 % beside the paper's own +48 % for one is not "
    "reproduced by any step model"
)
WHY_MEASURED = "measured over HTTP: 200 prompts of 2k tokens arrive at once and dominate TPOT there"
HOW = (
    f"The step formula of {PROFILE.name}: a batch of sequences with {CONTEXT:,} tokens of context each, and beside it, "
    f"in every step, prefills of {FULL:,} new tokens or appends of {APPEND} on {CONTEXT:,} cached ones. Measured: the "
    ""
    "published raw runs, mean TPOT by HTTP with the prompts of the batch itself arriving too. " + WHY_APPEND + "."
)


def slowdown(batch: int, count: int, new: int, cached: int) -> float:
    """Of a step, by `count` chunks beside the batch."""
    step, context = StepTime(PROFILE), batch * CONTEXT
    return step.mixed_ms(batch, context, [(new, cached)] * count, 0) / step.mixed_ms(batch, context, [], 0) - 1


def in_window(batch: int, new: int, cached: int) -> float:
    """Of the mean of 64 steps of which the first ones also prefill `new` tokens, by the token budget."""
    step, context = StepTime(PROFILE), batch * CONTEXT
    alone = step.mixed_ms(batch, context, [], 0)
    room, done, spent, steps = PROFILE.token_budget - batch, 0, 0.0, 0
    while done < new:
        chunk = min(room, new - done)
        spent += step.mixed_ms(batch, context, [(chunk, cached + done)], 0)
        done += chunk
        steps += 1
    return (spent + (WINDOW - steps) * alone) / (WINDOW * alone) - 1


def measured(lab: Lab, batch: int, count: int, kind: str) -> float | None:
    """The same, by HTTP."""
    found = lab.readings.interference
    alone, beside = found.get((batch, 0, "")), found.get((batch, count, kind))
    return beside / alone - 1 if alone and beside else None


def figures_2_and_7(lab: Lab) -> Chapter:
    """The chapter."""
    rows: list[tuple[str, str, str, float | None, int, int, int, float | None, str]] = [
        ("figure-2/full", "batch 200, 1 full prefill", "Figure 2", 0.48, 1, FULL, 0, 0.1, ""),
        ("figure-2/append-64", "batch 200, 1 append of 64", "Figure 2", 0.02, 1, SMALL, CONTEXT, 0.05, ""),
        ("figure-2/append-128", "batch 200, 1 append of 128", "Figure 2", 0.02, 1, APPEND, CONTEXT, 0.05, ""),
        ("figure-2/append-1024", "batch 200, 1 append of 1,024", "Figure 2", 0.02, 1, FULL, CONTEXT, None, WHY_APPEND),
        ("figure-7/full", "batch 200, 4 full prefills", "Figure 7", 0.57, 4, FULL, 0, None, WHY_FOUR),
        ("figure-7/append-128", "batch 200, 4 appends of 128", "Figure 7", 0.21, 4, APPEND, CONTEXT, 0.1, ""),
    ]
    findings = [
        Finding(Target(name, what, Unit.CHANGE, place, paper, limit, why=why), slowdown(200, count, new, cached))
        for name, what, place, paper, count, new, cached, limit, why in rows
    ]
    for count, kind, new, cached in ((1, "full", FULL, 0), (1, "append", APPEND, CONTEXT)):
        raw = measured(lab, 200, count, kind)
        if raw is not None:
            target = Target(
                f"figure-2/raw/{kind}", f"batch 200, 1 {kind}, raw runs", Unit.CHANGE, "raw runs", why=WHY_MEASURED
            )
            findings.append(Finding(target, slowdown(200, count, new, cached), raw))
    small, full = findings[1].trimtab or 0.0, findings[0].trimtab or 0.0
    gap = Target("figure-2/gap", "full / append of 64", Unit.RATIO, "§4.1: an order of magnitude", at_least=10.0)
    findings.append(Finding(gap, full / small if small else None))
    panels = [_panel(lab, count) for count in (1, 4)]
    return Chapter("Figures 2 and 7: interference", HOW, findings, panels, 2)


def _panel(lab: Lab, count: int) -> Panel:
    x = [float(b) for b in BATCHES]
    series = [
        Series("full, 1,024", x, [slowdown(b, count, FULL, 0) * 100 for b in BATCHES], 0),
        Series("append, 128", x, [slowdown(b, count, APPEND, CONTEXT) * 100 for b in BATCHES], 1),
        Series("append, 64", x, [slowdown(b, count, SMALL, CONTEXT) * 100 for b in BATCHES], 2),
    ]
    for kind, color in (("full", 0), ("append", 1)):
        raw = [(float(b), value * 100) for b in BATCHES if (value := measured(lab, b, count, kind)) is not None]
        if raw:
            label = f"{kind}, raw runs"
            series.append(Series(label, [b for b, _ in raw], [y for _, y in raw], color, Source.MEASURED, line=False))
    paper = (48.0, 2.0) if count == 1 else (57.0, 21.0)
    series += [
        Series(f"paper, {kind}", [200.0], [paper[at]], at, Source.PAPER) for at, kind in enumerate(("full", "append"))
    ]
    title = f"Figure {2 if count == 1 else 7}: {count} in every step"
    return Panel(title, "decoding sequences", "slower step, %", series)


WHY_8 = "appends of 128 attend over the whole context in every step; once per 64 tokens they cost a percent"
WHY_8_FULL = (
    "2.2× at 32K over a window of 64 tokens; the paper does not say how long its window was: a shorter one costs more"
)
HOW_8 = (
    f"A batch of {FIGURE_8_BATCH}. Full prefill: once within {WINDOW} steps, in chunks of the token budget. Append of "
    f"{APPEND}: in every step, and once within {WINDOW}. The paper does not say how often either came."
)


def figure_8(lab: Lab) -> Chapter:
    """The chapter."""
    full = {n: in_window(FIGURE_8_BATCH, n, 0) for n in CONTEXTS}
    every = {n: slowdown(FIGURE_8_BATCH, 1, APPEND, n) for n in CONTEXTS}
    once = {n: in_window(FIGURE_8_BATCH, APPEND, n) for n in CONTEXTS}
    place = "Figure 8"
    findings = [
        Finding(
            Target("figure-8/full/32K", "TPOT by one full prefill of 32K", Unit.RATIO, place, 3.5, why=WHY_8_FULL),
            1 + full[32768],
        ),
        Finding(Target("figure-8/full/64K", "the same of 64K", Unit.RATIO, place), 1 + full[65536]),
        Finding(
            Target("figure-8/append/64K", "append on 64K, once in 64 steps", Unit.CHANGE, place, at_most=0.25),
            once[65536],
        ),
        Finding(
            Target("figure-8/append-every/32K", "append on 32K, in every step", Unit.CHANGE, place, why=WHY_8),
            every[32768],
        ),
        Finding(
            Target(
                "figure-8/append-every/64K", "append on 64K, in every step", Unit.CHANGE, place, at_most=0.25, why=WHY_8
            ),
            every[65536],
        ),
    ]
    return Chapter("Figure 8: interference by context", HOW_8, findings, [_contexts(full, every, once)], 2)


def _contexts(full: dict[int, float], every: dict[int, float], once: dict[int, float]) -> Panel:
    x = [n / 1024 for n in CONTEXTS]

    def factors(values: dict[int, float]) -> Sequence[float]:
        return [1 + values[n] for n in CONTEXTS]

    series = [
        Series("full, once in 64 steps", x, factors(full), 0),
        Series("append, every step", x, factors(every), 1),
        Series("append, once in 64", x, factors(once), 2),
        Series("paper, full: 3–4×", [32.0], [3.5], 0, Source.PAPER),
        Series("paper, append: below 1.25", [64.0], [1.25], 1, Source.PAPER),
    ]
    return Panel("Figure 8: batch of 64", "context, K tokens", "TPOT, × alone", series, x_log=True)
