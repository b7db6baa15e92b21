"""The suite's result for machines (docs/reference/suite.md). Nothing in it depends on where or how fast it ran."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import fmean

from ..console import versions
from .measures import Measures, Settled
from .play import Played
from .policies import CONTROLLER
from .split import Split
from .verdicts import Verdict, verdicts

FORMAT = 1
DIGITS = 6


def as_json(found: Sequence[Played], split: Split, command: str, commit: str) -> str:
    """The document that `trimtab scenarios run --json` writes."""
    document = {
        "format": FORMAT,
        "source": "emulated",
        "provenance": {
            "command": command,
            "commit": commit.removeprefix("commit "),
            "seeds": sorted({seed for played in found for seed in played.outcome.seeds}),
            "versions": versions(),
            "frozen": {name: {"policy": each.policy, "found": each.found} for name, each in split.frozen.items()},
        },
        "scenarios": {played.entry.name: scenario_json(played, split) for played in found},
        "verdicts": [_verdict(verdict) for verdict in verdicts(found, split)],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def scenario_json(played: Played, split: Split) -> dict[str, object]:
    """One scenario."""
    own = [measures for (policy, _), measures in played.measures.items() if policy == CONTROLLER]
    settled = [each for measures in own for each in measures.settled]
    oracle = played.oracle
    recovery = played.gap_recovery
    names = played.by_name
    best = played.best_of(played.fixed)
    return {
        "binding": played.binding,
        "two_sided": played.entry.sided.value == "two",
        "gap_recovery": _rounded(recovery),
        "attainment": {name: _rounded(played.outcome.attainment(policy)) for name, policy in names.items()},
        "holds_all": {name: _rounded(played.outcome.holds_all(policy)) for name, policy in names.items()},
        "settle_ticks": _rounded(fmean(each.ticks for each in settled)) if settled else None,
        "sd_ln_p": _rounded(fmean(measures.sd_ln_p for measures in own)),
        "reversals_per_h": _rounded(fmean(measures.reversals_per_h for measures in own)),
        "title": played.entry.scenario.title,
        "sided": played.entry.sided.value,
        "use": split.use_of(played.entry.name),
        "seeds": {name: list(played.cast.seeds[policy]) for name, policy in names.items()},
        "oracle": None
        if oracle is None
        else {
            "attainment": _rounded(oracle.attainment),
            "phases": [[phase.policy, _rounded(phase.attainment)] for phase in oracle.phases],
        },
        "best_fixed_rule": {"policy": best, "attainment": _rounded(played.outcome.attainment(best))},
        "margin_of_controller": {
            name: played.margin(CONTROLLER, policy).as_json(DIGITS)
            for name, policy in names.items()
            if policy != CONTROLLER
        },
        "phases": [
            {
                "label": phase.label,
                "attainment": {
                    name: _mean(run.score.phases[at].attainment for run in played.outcome.runs[policy])
                    for name, policy in names.items()
                },
                "hold": {
                    name: _mean(float(run.score.phases[at].hold) for run in played.outcome.runs[policy])
                    for name, policy in names.items()
                },
            }
            for at, phase in enumerate(played.entry.scenario.phases)
        ],
        "controller": [
            _run(seed, measures) for (policy, seed), measures in played.measures.items() if policy == CONTROLLER
        ],
    }


def _run(seed: int, measures: Measures) -> dict[str, object]:
    return {
        "seed": seed,
        "settled": [_settled(each) for each in measures.settled],
        "moves": measures.moves,
        "cycling_ticks": measures.cycling_ticks,
        "needless_moves": measures.needless_moves,
        "flags": [{"phase": flag.phase, "after_s": flag.after_s} for flag in measures.flags],
    }


def _settled(each: Settled) -> dict[str, object]:
    worst = _rounded(each.worst) if isfinite(each.worst) else None
    return {"phase": each.phase, "ticks": each.ticks, "turns": each.turns, "entered": each.entered, "worst": worst}


def _verdict(verdict: Verdict) -> dict[str, object]:
    figure = verdict.figure if verdict.figure is not None and isfinite(verdict.figure) else None
    return {
        "kind": verdict.kind,
        "demand": verdict.demand,
        "scenario": verdict.scenario,
        "against": verdict.against,
        "figure": _rounded(figure),
        "limit": verdict.limit,
        "met": verdict.met,
        "sure": verdict.sure,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(fmean(known)) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
