"""`trimtab demo --headless`: one scenario, all policies, the same seeds, in virtual time.

Everything that is shown or written comes from the scores of the runs, so the same seeds give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean

from emulator.workload import ConversationPlan, Phase

from .contenders import contender, contenders
from .runs import Job, Outcome, Run, played
from .scenarios import SCENARIOS, Scenario

HERO = "controller"
TRACE_TAIL_S = 60.0
"""After the last start and thinking time of a trace, for the answers."""
PLOTTED = (HERO, "dynamo", "threshold_1536", "x0", "x1")
"""Policies in the picture; all of them are in the table."""


def from_trace(base: Scenario, name: str, plans: Sequence[ConversationPlan]) -> Scenario:
    """Recorded conversations on the fleet and under the promises of a scenario, as one phase."""
    end_s = max(plan.start_s + sum(turn.think_s for turn in plan.turns) for plan in plans) + TRACE_TAIL_S
    label = f"{len(plans)} conversations"
    return replace(
        base,
        name="trace",
        title=f"Trace: {name}",
        phases=(Phase(label, end_s, recorded=tuple(plans)),),
        settle_s=0.0,
        first_settle_s=None,
    )


def run_all(
    scenario: Scenario,
    seeds: Sequence[int],
    workers: int,
    progress: Callable[[int, int], None],
    names: Sequence[str] = (),
) -> Outcome:
    """Run every policy, or the controller and those named, on every seed. Raises ValueError for an unknown name."""
    for name in names:
        contender(name, {})
    policies = list(dict.fromkeys([HERO, *names])) if names else list(contenders({}))
    todo = [Job(scenario, policy, seed, policy in PLOTTED) for policy in policies for seed in seeds]
    done: list[Run] = []
    for run in played(todo, workers):
        done.append(run)
        progress(len(done), len(todo))
    return Outcome(
        scenario,
        tuple(seeds),
        {policy: tuple(run for run in done if run.policy == policy) for policy in policies},
    )


def as_json(outcome: Outcome, command: str, commit: str) -> str:
    """The result for machines; P99s are means over seeds, hold is the share of seeds."""
    policies = {}
    for policy, runs in outcome.runs.items():
        phases = [
            {
                "label": phase.label,
                "p99_ttft_ms": _mean(run.score.phases[at].p99_ttft_ms for run in runs),
                "p99_tpot_ms": _mean(run.score.phases[at].p99_tpot_ms for run in runs),
                "hold": fmean(run.score.phases[at].hold for run in runs),
                "attainment": _mean(run.score.phases[at].attainment for run in runs),
                "local_share": _mean(run.score.phases[at].local_share for run in runs),
            }
            for at, phase in enumerate(outcome.scenario.phases)
        ]
        policies[policy] = {
            "attainment": round(outcome.attainment(policy), 6),
            "attainment_by_seed": [round(value, 6) for value in outcome.attainments(policy)],
            "holds_all": outcome.holds_all(policy),
            "margin_of_controller": outcome.margin(policy).as_json(6),
            "phases": phases,
        }
    document = {
        "source": "emulated",
        "scenario": outcome.scenario.name,
        "seeds": list(outcome.seeds),
        "slos": {slo.name: slo.threshold_s for slo in outcome.scenario.slos},
        "model": outcome.scenario.profile,
        "topology": outcome.scenario.topology,
        "command": command,
        "commit": commit.removeprefix("commit "),
        "policies": policies,
    }
    return json.dumps(document, indent=1) + "\n"


def _mean(values: object) -> float | None:
    found = [value for value in values if value is not None]  # type: ignore[attr-defined]
    mean = fmean(found) if found else None
    return round(mean, 4) if mean is not None and isfinite(mean) else None


def scenario_named(name: str) -> Scenario:
    """The scenario of that name. Raises ValueError with the known ones."""
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}; known: {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
