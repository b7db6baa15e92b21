"""One point of the paper's grid in virtual time, by the protocol of the measured runs.

Conversations arrive as a Poisson process, at most QPS × 10 of them and within 10 s; each has two turns without a
pause. At most 50 requests are in flight: the rest wait in the client, first come first served, and a conversation's
second turn keeps the place of its first. TTFT counts from when a turn was ready to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from statistics import fmean
from zlib import crc32

import numpy as np

from emulator.profiles import LLAMA_3_1_8B_H100_AS_MEASURED, EngineProfile
from emulator.workload import ConversationPlan, TurnPlan
from estimators.quantile import nearest_rank
from router.core import Decider
from router.decision import decide
from router.policy import Policy, Weights
from router.record import TurnRecord
from slos.objective import Outcome

from .cores import on_cores
from .measured import Point, Result, TurnStats
from .simulate import Client, Simulation
from .workloads import PAPER_WORKLOADS

CAP = Client(50)
"""The load generator of the measured runs: one connection pool of 50."""
ARRIVALS_S = 10.0
LIMIT_S = 600.0
"""A run that has not ended by then is cut off; what it has not answered has failed."""
MEASURED_X = 0.83
"""Share of later turns that the measured pD nodes took themselves: 16 to 22 % went through P all the same."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How points are run: engines, share of later turns that pD nodes take, client. The default is as measured."""

    profile: EngineProfile = LLAMA_3_1_8B_H100_AS_MEASURED
    append_x: float = MEASURED_X
    client: Client = CAP
    arrivals_s: float = ARRIVALS_S
    limit_s: float = LIMIT_S


AS_MEASURED = Conditions()


def arrivals(qps: float, seconds: float, rng: np.random.Generator) -> list[float]:
    """Times of the conversations' starts, in s."""
    times = np.cumsum(rng.exponential(1 / qps, max(1, int(qps * seconds))))
    return [float(at_s) for at_s in times if at_s < seconds] or [float(times[0])]


def run_point(point: Point, conditions: Conditions = AS_MEASURED, seed: int = 0) -> Result:
    """One run. The arrivals depend on seed, workload and QPS, not on the configuration. Raises ValueError for an
    unknown workload or topology."""
    workload = PAPER_WORKLOADS.get(point.workload)
    if workload is None:
        raise ValueError(f"no workload {point.workload!r}: {', '.join(PAPER_WORKLOADS)}")
    rng = np.random.default_rng([seed, crc32(workload.name.encode()), round(point.qps * 10)])
    turns = (TurnPlan(*workload.first, 0.0), TurnPlan(*workload.second, 0.0))
    plans = [
        ConversationPlan(f"c{number}", at_s, turns)
        for number, at_s in enumerate(arrivals(point.qps, conditions.arrivals_s, rng))
    ]
    run = simulate(point.config, plans, conditions, seed)
    return summary(point, run, plans)


TRANSFER_ALL = Policy(1, {}, Weights(1, 1), pin_x=0.0)


def simulate(
    config: str,
    plans: Sequence[ConversationPlan],
    conditions: Conditions = AS_MEASURED,
    seed: int = 0,
    *,
    policy: Policy = TRANSFER_ALL,
    decider: Decider = decide,
) -> Simulation:
    """Conversations on a configuration in the paper's notation, to their end. Its D nodes transfer every turn, or do
    what `policy` and `decider` say."""
    run = Simulation(
        conditions.profile,
        config,
        policy,
        (),
        seed=seed,
        decider=decider,
        client=conditions.client,
        append_x=conditions.append_x,
    )
    run.start(plans, ())
    run.drain(conditions.limit_s)
    return run


def summary(point: Point, run: Simulation, plans: Sequence[ConversationPlan]) -> Result:
    """The statistics of a run. Turns that were never answered have failed, those never sent too."""
    answered = [r for r in run.records if r.outcome is Outcome.COMPLETED]
    total = sum(len(plan.turns) for plan in plans)
    ended_s = max((r.ended_s for r in answered), default=run.events.now_s)
    return Result(
        point,
        total,
        total - len(answered),
        ended_s,
        sum(r.output_tokens for r in answered) / ended_s if ended_s > 0 else 0.0,
        stats([r for r in answered if r.turn == 1], run.held_s),
        stats([r for r in answered if r.turn > 1], run.held_s),
    )


def stats(records: Sequence[TurnRecord], held_s: dict[str, float]) -> TurnStats:
    """Statistics as the client sees them: with its own wait for a place."""
    if not records:
        return TurnStats()
    held = [held_s.get(r.request_id, 0.0) for r in records]
    ttft = sorted((r.ttft_s or 0.0) * 1e3 + wait * 1e3 for r, wait in zip(records, held, strict=True))
    e2e = sorted(r.e2e_s * 1e3 + wait * 1e3 for r, wait in zip(records, held, strict=True))
    tpot = sorted(r.tpot_s * 1e3 for r in records if r.tpot_s is not None)
    return TurnStats(
        len(records),
        fmean(ttft),
        float(np.median(ttft)),
        nearest_rank(ttft, 0.99),
        fmean(tpot) if tpot else 0.0,
        nearest_rank(tpot, 0.99) if tpot else 0.0,
        fmean(e2e),
        nearest_rank(e2e, 0.99),
    )


def mean(results: Sequence[Result]) -> Result:
    """Several seeds of one point as one result: the mean of each statistic over the seeds that have it."""
    return Result(
        results[0].point,
        sum(r.total for r in results),
        sum(r.failed for r in results),
        fmean(r.duration_s for r in results),
        fmean(r.tokens_per_s for r in results),
        mean_stats([r.first for r in results]),
        mean_stats([r.later for r in results]),
    )


def mean_stats(stats: Sequence[TurnStats]) -> TurnStats:
    """The mean of each statistic over those that have one."""
    some = [astuple(s) for s in stats if s.n]
    if not some:
        return TurnStats()
    return TurnStats(sum(s[0] for s in some), *(fmean(column) for column in list(zip(*some, strict=True))[1:]))


def run_points(
    points: Iterable[Point],
    conditions: Conditions = AS_MEASURED,
    *,
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Result]:
    """Every point, the mean over the seeds each, in the order given whatever the jobs."""
    return on_cores(partial(_seeds, conditions=conditions, seeds=tuple(seeds)), points, jobs, progress)


def _seeds(point: Point, conditions: Conditions, seeds: tuple[int, ...]) -> Result:
    return mean([run_point(point, conditions, seed) for seed in seeds])
