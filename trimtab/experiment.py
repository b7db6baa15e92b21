"""Experiments: all points of a scenario file x policies x seeds, and their result for machines.

The JSON holds nothing that depends on where or how fast it ran, so the same file, seeds and version give the
same bytes. `play` is what `trimtab simulate` calls, and whoever needs figures from virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from emulator.arrivals import Arrivals
from emulator.faults import Fault
from slos.objective import Slo

from .console import versions
from .runs import Job, Outcome, Run, played
from .scenarios import Scenario
from .score import PhaseScore
from .spread import Spread
from .sweep import Point

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a point."""

    at: tuple[tuple[str, str], ...]
    outcome: Outcome


class Stopped(Exception):
    """The user stopped the runs; `done` were finished, in the order of points, policies and seeds, of `total`."""

    def __init__(self, done: Sequence[tuple[Point, Run]], total: int) -> None:
        super().__init__(f"{len(done)} of {total} runs")
        self.done = tuple(done)
        self.total = total


def play(
    points: Sequence[Point],
    workers: int,
    progress: Callable[[int, int], None],
    *,
    backend: str | None = None,
    ticks: bool = False,
) -> tuple[Result, ...]:
    """Run everything. With `ticks`, the first seed keeps what a picture needs. Raises Stopped, BackendMissing."""
    todo: list[tuple[Point, Job]] = []
    for point in points:
        experiment = point.experiment
        for policy in experiment.policies:
            for seed in experiment.seeds:
                keep = ticks and seed == experiment.seeds[0]
                todo.append((point, Job(experiment.scenario, policy, seed, keep)))
    done: list[tuple[Point, Run]] = []
    try:
        for run in played([job for _, job in todo], workers, backend):
            done.append((todo[len(done)][0], run))
            progress(len(done), len(todo))
    except KeyboardInterrupt:
        raise Stopped(done, len(todo)) from None
    return tuple(_result(point, [run for at, run in done if at is point]) for point in points)


def _result(point: Point, runs: list[Run]) -> Result:
    experiment = point.experiment
    by_policy = {name: tuple(run for run in runs if run.policy == name) for name in experiment.policies}
    return Result(point.at, Outcome(experiment.scenario, experiment.seeds, by_policy))


def as_json(results: Sequence[Result], command: str, commit: str) -> str:
    """The document that `trimtab simulate --json` writes (docs/reference/simulate.md)."""
    seeds = sorted({seed for result in results for seed in result.outcome.seeds})
    document = {
        "format": FORMAT,
        "provenance": {
            "source": "emulated",
            "command": command,
            "commit": commit.removeprefix("commit "),
            "seeds": seeds,
            "versions": versions(),
        },
        "points": [_point(result) for result in results],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _point(result: Result) -> dict[str, object]:
    outcome = result.outcome
    return {
        "at": dict(result.at),
        "scenario": _scenario(outcome.scenario),
        "seeds": list(outcome.seeds),
        "policies": {policy: _policy(outcome, policy) for policy in outcome.runs},
    }


def _scenario(scenario: Scenario) -> dict[str, object]:
    return {
        "name": scenario.name,
        "title": scenario.title,
        "profile": scenario.profile,
        "topology": scenario.topology,
        "profiles": dict(scenario.profiles),
        "append_x": scenario.append_x,
        "link": scenario.link,
        "bandwidth_gb_s": scenario.bandwidth_gb_s,
        "kv_tokens": dict(scenario.kv_tokens),
        "table": scenario.table.value,
        "routers": scenario.routers,
        "told": scenario.told_share,
        "client": {
            "max_in_flight": scenario.client.max_in_flight,
            "timeout_s": scenario.client.timeout_s if isfinite(scenario.client.timeout_s) else None,
        },
        "faults": [_fault(fault) for fault in scenario.faults],
        "slos": [_slo(slo) for slo in scenario.slos],
        "phases": [
            {
                "label": phase.label,
                "duration_s": phase.duration_s,
                "settle_s": scenario.settle_of(at),
                "traffic": [[source.name, _mean_hz(arrivals)] for source, arrivals in phase.traffic],
                "recorded": len(phase.recorded),
                "out": list(phase.out),
                "slos": [_slo(slo) for slo in scenario.slos_of(at)],
            }
            for at, phase in enumerate(scenario.phases)
        ],
    }


def _fault(fault: Fault) -> dict[str, object]:
    return {
        "kind": fault.kind.value,
        "at_s": fault.at_s,
        "for_s": fault.for_s if isfinite(fault.for_s) else None,
        "node": fault.node,
        "value": fault.value,
    }


def _slo(slo: Slo) -> dict[str, object]:
    return {
        "name": slo.name,
        "signal": slo.signal.value,
        "objective": slo.objective,
        "threshold_s": slo.threshold_s,
    }


def _mean_hz(arrivals: float | Arrivals) -> float:
    return arrivals if isinstance(arrivals, float | int) else arrivals.mean_hz


def _policy(outcome: Outcome, policy: str) -> dict[str, object]:
    runs = outcome.runs[policy]
    scores = [run.score for run in runs]
    return {
        "attainment": _spread(score.attainment for score in scores),
        "attainment_by_seed": [round(score.attainment, 6) for score in scores],
        "margin_of_first": outcome.margin(policy).as_json(6),
        "holds_all": outcome.holds_all(policy),
        "goodput_hz": _spread(score.goodput_hz for score in scores),
        "failures_by_seed": [score.failures for score in scores],
        "warnings": sorted({warning for run in runs for warning in run.warnings}),
        "phases": [_phase([score.phases[at] for score in scores]) for at in range(len(outcome.scenario.phases))],
    }


def _phase(scores: list[PhaseScore]) -> dict[str, object]:
    """Of one phase, over seeds. A P99 is null where a seed has an endless one, or none has any."""
    return {
        "attainment": _spread(score.attainment for score in scores),
        "hold": round(sum(score.hold for score in scores) / len(scores), 6),
        "p99_ttft_ms": _spread((score.p99_ttft_ms for score in scores), 3),
        "p99_tpot_ms": _spread((score.p99_tpot_ms for score in scores), 4),
        "local_share": _spread(score.local_share for score in scores),
        "goodput_hz": _spread(score.goodput_hz for score in scores),
        "failures": sum(score.failures for score in scores),
        "later_turns": sum(score.later_turns for score in scores),
    }


def _spread(values: Iterable[float | None], digits: int = 6) -> dict[str, float | None] | None:
    spread = Spread.of(values)
    return None if spread is None else spread.as_json(digits)
