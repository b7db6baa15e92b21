"""`trimtab demo --headless`: one scenario, all policies, the same seeds, in virtual time.

The runs go to processes; everything that is shown or written comes from their scores, so the same seeds give
the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from statistics import fmean, stdev

from scipy.stats import t as student_t

from dashboards.scenario_plot import PhaseView, ScenarioView, SeriesView
from emulator.profiles import PROFILES
from emulator.workload import ConversationPlan, Phase
from slos.objective import Signal, Slo

from .contenders import contenders
from .scenarios import SCENARIOS, Scenario
from .score import RunScore, score
from .shipped import as_tables, shipped
from .simulate import Simulation, TickView

HERO = "controller"
TRACE_TAIL_S = 60.0
"""After the last start and thinking time of a trace, for the answers."""
PLOTTED = (HERO, "dynamo", "threshold_1536", "x0", "x1")
"""Policies in the picture; all of them are in the table."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    scenario: Scenario
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Run:
    """What one run leaves behind. `ticks` only where a picture needs them."""

    policy: str
    seed: int
    score: RunScore
    ticks: tuple[TickView, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of a scenario, in the order of policies and seeds."""

    scenario: Scenario
    seeds: tuple[int, ...]
    runs: Mapping[str, tuple[Run, ...]]

    def attainments(self, policy: str) -> list[float]:
        """Attainment by seed."""
        return [run.score.attainment for run in self.runs[policy]]

    def margin(self, policy: str) -> tuple[float, float]:
        """Paired difference controller − policy in attainment: (mean, half-width of its 95 % interval)."""
        pairs = zip(self.attainments(HERO), self.attainments(policy), strict=True)
        differences = [hero - other for hero, other in pairs]
        if len(differences) < 2:
            return fmean(differences), float("nan")
        width = float(student_t.ppf(0.975, len(differences) - 1)) * stdev(differences) / sqrt(len(differences))
        return fmean(differences), width


def with_slos(scenario: Scenario, slos: Sequence[Slo]) -> Scenario:
    """The scenario under other promises. It needs exactly one TTFT and one TPOT SLO to be judged by."""
    for signal in (Signal.TTFT, Signal.TPOT):
        count = sum(slo.signal is signal for slo in slos)
        if count != 1:
            raise ValueError(
                f"the demo is judged by one {signal.value} SLO and the file has {count}; "
                f"write e.g. p99({signal.value}) <= 2s"
            )
    model = PROFILES[scenario.profile].model
    for slo in slos:
        if slo.signal not in (Signal.TTFT, Signal.TPOT):
            continue
        if slo.objective != 0.99:
            raise ValueError(f"{slo.name}: the demo judges P99, not P{slo.objective * 100:g}; write p99(...)")
        if not slo.match.covers(model, 2, True):
            raise ValueError(f"{slo.name}: match covers no second turn of {model}; the demo runs nothing else")
    return replace(scenario, slos=tuple(slos))


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
    jobs: int,
    progress: Callable[[int, int], None],
    names: Sequence[str] = (),
) -> Outcome:
    """Run every policy, or the controller and those named, on every seed. Raises ValueError for an unknown name."""
    known = list(contenders({}))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown policy {unknown[0]!r}; known: {', '.join(known)}")
    policies = list(dict.fromkeys([HERO, *names])) if names else known
    todo = [Job(scenario, policy, seed) for policy in policies for seed in seeds]
    done: list[Run] = []
    if jobs == 1:
        for job in todo:
            done.append(run_one(job))
            progress(len(done), len(todo))
    else:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            for run in pool.map(run_one, todo):
                done.append(run)
                progress(len(done), len(todo))
    return Outcome(
        scenario,
        tuple(seeds),
        {policy: tuple(run for run in done if run.policy == policy) for policy in policies},
    )


def run_one(job: Job) -> Run:
    """One policy on one seed."""
    scenario = job.scenario
    contender = contenders(as_tables(shipped()))[job.policy]
    simulation = Simulation(
        PROFILES[scenario.profile],
        scenario.topology,
        contender.policy,
        scenario.slos,
        seed=job.seed,
        law=contender.law,
        decider=contender.decider,
    )
    simulation.run(scenario.conversations(job.seed), scenario.phases)
    warnings = {
        f"{name}: {watch.feasibility.relief.value}"
        for view in simulation.ticks
        for name, watch in ((simulation.profile.model, view.output),)
        if watch.feasibility.relief is not None
    }
    return Run(
        job.policy,
        job.seed,
        score(scenario, simulation.records, simulation.unfinished, simulation.refused_s),
        tuple(simulation.ticks) if job.policy in PLOTTED else (),
        tuple(sorted(warnings)),
    )


def as_json(outcome: Outcome, command: str, commit: str) -> str:
    """The result for machines; P99s are means over seeds, hold is the share of seeds."""
    policies = {}
    for policy, runs in outcome.runs.items():
        mean, width = outcome.margin(policy)
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
            "attainment": round(fmean(outcome.attainments(policy)), 6),
            "attainment_by_seed": [round(value, 6) for value in outcome.attainments(policy)],
            "holds_all": fmean(run.score.holds_all for run in runs),
            "margin_of_controller": {
                "mean": round(mean, 6),
                "half_width_95": round(width, 6) if isfinite(width) else None,
            },
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


def as_view(outcome: Outcome, command: str, commit: str) -> ScenarioView:
    """The picture of the first seed."""
    scenario = outcome.scenario
    limits = {slo.signal: (slo.threshold_s or 0.0) * 1e3 for slo in scenario.slos}
    phases, begin_s = [], 0.0
    for at, phase in enumerate(scenario.phases):
        phases.append(PhaseView(phase.label, begin_s, begin_s + phase.duration_s, scenario.settle_of(at)))
        begin_s += phase.duration_s
    known = contenders({})
    series = [
        _series(outcome.runs[name][0], known[name].has_price, fmean(outcome.attainments(name)))
        for name in PLOTTED
        if name in outcome.runs
    ]
    seeds = f"seed {outcome.seeds[0]} drawn, attainment over {len(outcome.seeds)} seeds"
    return ScenarioView(
        f"{scenario.title} ({scenario.topology}, {scenario.profile})",
        phases,
        limits[Signal.TTFT],
        limits[Signal.TPOT],
        series,
        f"source: emulated · {command} · {commit} · {seeds}",
    )


def _series(run: Run, has_price: bool, attainment: float) -> SeriesView:
    t_s, ttft, tpot, price, share = [], [], [], [], []
    later = local = 0
    for view in run.ticks:
        worst = view.output.binding
        t_s.append(view.at_s)
        ttft.append(None if worst.ttft is None or worst.ttft.value_s is None else worst.ttft.value_s * 1e3)
        tpot.append(None if worst.tpot is None or worst.tpot.value_s is None else worst.tpot.value_s * 1e3)
        price.append(view.output.price if has_price else None)
        turns = view.later_turns - later
        share.append((view.local_turns - local) / turns if turns else None)
        later, local = view.later_turns, view.local_turns
    return SeriesView(run.policy, t_s, ttft, tpot, price, share, attainment)


def scenario_named(name: str) -> Scenario:
    """The scenario of that name. Raises ValueError with the known ones."""
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}; known: {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
