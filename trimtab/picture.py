"""Outcomes as a picture's data: what the ticks of one seed saw, and a sweep at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from dashboards.scenario_plot import PhaseView, ScenarioView, SeriesView
from dashboards.sweep_plot import SweepView, Swept, SweptAxis
from slos.objective import Signal, Slo

from .contenders import contender
from .experiment import Result
from .runs import Outcome, Run
from .spread import Spread


def as_view(outcome: Outcome, command: str, commit: str, names: Sequence[str]) -> ScenarioView:
    """The first seed of the policies named, as far as they ran; the first is drawn strong."""
    scenario = outcome.scenario
    # The line's label stands at the right end: it is the last phase's.
    limits = _limits_ms(scenario.slos_of(len(scenario.phases) - 1))
    phases = []
    for at, (phase, begin_s) in enumerate(zip(scenario.phases, scenario.begins_s(), strict=True)):
        own = _limits_ms(scenario.slos_of(at))
        phases.append(
            PhaseView(
                phase.label,
                begin_s,
                begin_s + phase.duration_s,
                scenario.settle_of(at),
                *(own[signal] if own[signal] != limits[signal] else None for signal in (Signal.TTFT, Signal.TPOT)),
            )
        )
    series = [
        _series(outcome.runs[name][0], contender(name, {}).has_price, outcome.attainment(name))
        for name in names
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


def _limits_ms(slos: Sequence[Slo]) -> dict[Signal, float]:
    return {slo.signal: (slo.threshold_s or 0.0) * 1e3 for slo in slos}


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


def as_sweep(results: Sequence[Result], command: str, commit: str) -> SweepView:
    """All points of a sweep in one picture; they are a full grid, the last path running fastest."""
    first = results[0].outcome
    paths = [path for path, _ in results[0].at]
    axes = [SweptAxis(path, list(dict.fromkeys(dict(result.at)[path] for result in results))) for path in paths]
    seeds = f"{len(first.seeds)} seed{'s' if len(first.seeds) > 1 else ''}"
    policies = [
        Swept(
            policy,
            [result.outcome.attainment(policy) for result in results],
            [_width(result.outcome, policy) for result in results],
            [_worst(result.outcome, policy, "p99_ttft_ms") for result in results],
            [_worst(result.outcome, policy, "p99_tpot_ms") for result in results],
        )
        for policy in first.runs
        if all(policy in result.outcome.runs for result in results)
    ]
    return SweepView(
        f"{first.scenario.title}, swept: {' × '.join(paths)}",
        axes,
        policies,
        _common_ms(results, Signal.TTFT),
        _common_ms(results, Signal.TPOT),
        f"source: emulated · {command} · {commit} · {seeds} a point",
    )


def _width(outcome: Outcome, policy: str) -> float | None:
    spread = Spread.of(outcome.attainments(policy))
    return None if spread is None or isnan(spread.half_width) else spread.half_width


def _worst(outcome: Outcome, policy: str, name: str) -> float | None:
    """The largest mean over seeds of any phase; None where one is endless or there is none."""
    count = len(outcome.scenario.phases)
    means = [Spread.of(getattr(run.score.phases[at], name) for run in outcome.runs[policy]) for at in range(count)]
    known = [spread.mean for spread in means if spread is not None]
    return max(known) if len(known) == count else None


def _common_ms(results: Sequence[Result], signal: Signal) -> float | None:
    limits = {slo.threshold_s for result in results for slo in result.outcome.scenario.slos if slo.signal is signal}
    only = limits.pop() if len(limits) == 1 else None
    return None if only is None else only * 1e3
