"""How a run is judged: attainment and hold per phase, as docs/reference/demo.md defines them.

Per phase, without its first `settle_s`, by the time a turn was accepted: P99 TTFT of later turns and P99 TPOT
of all turns with at least 8 tokens, against the SLOs of that phase (hold: both inside). Attainment J: the share
of later turns that meet the TTFT SLO and, with at least 8 tokens, the TPOT SLO, then the plain mean over phases.
Turns that still wait past the SLO when the run ends are misses; turns cut off by the end before that are no
evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Protocol

from controller.cells import LAW_MIN_OUTPUT_TOKENS
from estimators.quantile import nearest_rank
from slos.objective import Outcome, Signal

from .scenarios import Scenario
from .simulate import Unfinished


class Judged(Protocol):
    """What is needed of an ended turn: a router's record has it, and so has what a client saw."""

    @property
    def accepted_s(self) -> float: ...
    @property
    def turn(self) -> int: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def went_local(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class PhaseScore:
    """One phase of one run. P99s in ms; None without a sample."""

    p99_ttft_ms: float | None
    p99_tpot_ms: float | None
    hold: bool
    attainment: float | None
    later_turns: int
    local_share: float | None
    goodput_hz: float = 0.0
    """Answers per judged second, first turns included, that met all that they are judged by."""
    failures: int = 0
    """Turns that failed, timed out or were refused."""
    ttft_over: float | None = None
    """Share of later turns that were over the TTFT SLO."""
    tpot_over: float | None = None
    """Share of turns that were over the TPOT SLO."""

    @property
    def over(self) -> float:
        """The worse of the two: what the budget of 1 - objective is to hold."""
        return max(self.ttft_over or 0.0, self.tpot_over or 0.0)


@dataclass(frozen=True, slots=True)
class RunScore:
    """One run of one policy on one seed."""

    phases: tuple[PhaseScore, ...]

    @property
    def attainment(self) -> float:
        """Plain mean over the phases that had later turns, 0..1."""
        return fmean(p.attainment for p in self.phases if p.attainment is not None)

    @property
    def holds_all(self) -> bool:
        """Every phase holds."""
        return all(p.hold for p in self.phases)

    @property
    def goodput_hz(self) -> float:
        """Plain mean over the phases."""
        return fmean(p.goodput_hz for p in self.phases)

    @property
    def failures(self) -> int:
        """In all judged time."""
        return sum(p.failures for p in self.phases)


def score(
    scenario: Scenario,
    records: Sequence[Judged],
    unfinished: Sequence[Unfinished],
    refused_s: Sequence[tuple[float, int]],
) -> RunScore:
    """Judge a finished run."""
    phases = []
    end_s = 0.0
    for at, phase in enumerate(scenario.phases):
        limits = {slo.signal: slo.threshold_s for slo in scenario.slos_of(at)}
        ttft_s, tpot_s = limits[Signal.TTFT], limits[Signal.TPOT]
        assert ttft_s is not None and tpot_s is not None
        begin_s, end_s = end_s + scenario.settle_of(at), end_s + phase.duration_s
        phases.append(
            _phase(
                [r for r in records if begin_s <= r.accepted_s < end_s],
                [u for u in unfinished if begin_s <= u.accepted_s < end_s and u.turn > 1],
                [turn for at_s, turn in refused_s if begin_s <= at_s < end_s],
                end_s - begin_s,
                scenario.duration_s,
                ttft_s,
                tpot_s,
            )
        )
    return RunScore(tuple(phases))


def _phase(
    records: list[Judged],
    unfinished: list[Unfinished],
    refused_turns: list[int],
    judged_s: float,
    now_s: float,
    ttft_slo_s: float,
    tpot_slo_s: float,
) -> PhaseScore:
    refused = sum(turn > 1 for turn in refused_turns)
    ttft: list[float] = [inf] * refused
    tpot: list[float] = []
    met, later, ended, local = 0, refused, 0, 0
    good, failures = 0, len(refused_turns)
    for record in records:
        failures += record.outcome in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.REJECTED)
        long_enough = record.output_tokens >= LAW_MIN_OUTPUT_TOKENS and record.tpot_s is not None
        if long_enough and record.tpot_s is not None:
            tpot.append(record.tpot_s)
        answered = record.outcome is Outcome.COMPLETED and record.ttft_s is not None
        fluent = not long_enough or (record.tpot_s or 0.0) <= tpot_slo_s
        if record.turn < 2:
            good += answered and fluent
            continue
        later += 1
        ended += 1
        local += record.went_local
        ttft.append(record.ttft_s if answered and record.ttft_s is not None else inf)
        in_time = answered and record.ttft_s is not None and record.ttft_s <= ttft_slo_s
        met += in_time and fluent
        good += in_time and fluent
    for turn in unfinished:
        waited_s = turn.ttft_s if turn.ttft_s is not None else now_s - turn.accepted_s
        if waited_s > ttft_slo_s:
            ttft.append(waited_s)
            later += 1
        elif turn.ttft_s is not None:
            ttft.append(turn.ttft_s)
    p99_ttft = nearest_rank(sorted(ttft), 0.99) if ttft else None
    p99_tpot = nearest_rank(sorted(tpot), 0.99) if tpot else None
    return PhaseScore(
        None if p99_ttft is None else p99_ttft * 1e3,
        None if p99_tpot is None else p99_tpot * 1e3,
        (p99_ttft is None or p99_ttft <= ttft_slo_s) and (p99_tpot is None or p99_tpot <= tpot_slo_s),
        met / later if later else None,
        later,
        local / ended if ended else None,
        good / judged_s if judged_s > 0 else 0.0,
        failures,
        _share_over(ttft, ttft_slo_s),
        _share_over(tpot, tpot_slo_s),
    )


def _share_over(values: list[float], limit_s: float) -> float | None:
    return sum(value > limit_s for value in values) / len(values) if values else None
