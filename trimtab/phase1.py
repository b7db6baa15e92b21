"""Phase 1 of Algorithm 1 in virtual time: turn-2 TTFT and TPOT at x=0 and x=1, cell by cell.

The cells are those of `trimtab/workloads.py`: 27 workloads × 10 QPS levels. An arm runs until 300 later turns
are answered or 120 virtual seconds have passed. A turn without a first token after 30 s has failed (the paper's
time-out).

Beside the cell's own numbers each run leaves what the latency model is fitted to: TTFTs of turns that met no
backlog, and the mean step time against the mean batch and context on D.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import numpy as np

from emulator.profiles import EngineProfile
from emulator.workload import Phase, conversations
from estimators.quantile import nearest_rank
from router.artefact import Arm, MeasuredCell
from router.paper_table import QPS_LEVELS, TURN2_TYPES
from router.policy import Policy, Weights
from router.record import TurnRecord
from slos.objective import Outcome

from .simulate import Simulation
from .workloads import FIRST_TURNS, Workload

LATER_TURNS = 300
LIMIT_S = 120.0
TIMEOUT_S = 30.0
ROWS_PER_ARM = 12
FIT_QPS = 4.0
"""TTFTs for the fit come from levels up to this: above it, turns without a backlog of their own still meet
other people's."""


@dataclass(frozen=True, slots=True)
class TtftRow:
    """One turn that met no backlog: what it lacked, and how long it took."""

    local: bool
    uncached_d: int
    uncached_p: int
    prompt: int
    batch: int
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class StepRow:
    """Mean time per output token of a run, against mean batch, context tokens and appends on one D while it
    was steady."""

    batch: float
    context: float
    append_hz: float
    uncached_d: float
    """Of an append, mean; 1 without any."""
    prompt: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell, both arms."""

    cell: MeasuredCell
    ttft_rows: tuple[TtftRow, ...]
    step_rows: tuple[StepRow, ...]


def measure(profile: EngineProfile, topology: str, workload: Workload, qps: float, seed: int) -> CellResult:
    """Both arms of one cell on the same arrivals."""
    arms: list[Arm] = []
    rows: list[TtftRow] = []
    steps: list[StepRow] = []
    for x in (0, 1):
        simulation = _run(profile, topology, workload, qps, x, seed)
        arms.append(_arm(simulation))
        if qps <= FIT_QPS:
            rows.extend(_ttft_rows(simulation.records))
        step = _step_row(simulation)
        if step is not None:
            steps.append(step)
    return CellResult(MeasuredCell(workload.context, workload.turn2, qps, arms[0], arms[1]), tuple(rows), tuple(steps))


def _run(profile: EngineProfile, topology: str, workload: Workload, qps: float, x: int, seed: int) -> Simulation:
    phase = Phase("phase 1", LIMIT_S, ((workload.mix(), qps),))
    policy = Policy(1, {}, Weights(1, 1), pin_x=float(x))
    simulation = Simulation(profile, topology, policy, (), seed=seed)
    # The seed of the traffic is the cell's own, so that cells are independent and both arms meet the same arrivals.
    types, levels = list(TURN2_TYPES), list(QPS_LEVELS)
    cell_seed = [seed, list(FIRST_TURNS.values()).index(workload.first), types.index(workload.turn2), levels.index(qps)]
    simulation.start(conversations((phase,), np.random.default_rng(cell_seed)), (phase,))
    for until_s in range(1, round(LIMIT_S) + 1):
        simulation.advance(float(until_s))
        if simulation.later_answered >= LATER_TURNS:
            break
    return simulation


def _arm(simulation: Simulation) -> Arm:
    later = [r for r in simulation.records if r.turn > 1 and r.outcome is Outcome.COMPLETED]
    ttft = sorted(r.ttft_s * 1e3 for r in later if r.ttft_s is not None and r.ttft_s <= TIMEOUT_S)
    tpot = sorted(r.tpot_s * 1e3 for r in later if r.tpot_s is not None)
    good = bad = 0
    for record in simulation.records:
        in_time = record.outcome is Outcome.COMPLETED and record.ttft_s is not None and record.ttft_s <= TIMEOUT_S
        good += in_time
        bad += not in_time
    now = simulation.events.now_s
    for unfinished in simulation.unfinished:
        waited_s = now - unfinished.accepted_s if unfinished.ttft_s is None else unfinished.ttft_s
        bad += waited_s > TIMEOUT_S
    tokens = sum(r.output_tokens for r in simulation.records)
    return Arm(
        n=len(ttft),
        success=round(good / (good + bad), 4) if good + bad else 0.0,
        ttft_mean_ms=round(fmean(ttft), 3) if ttft else None,
        ttft_p99_ms=round(nearest_rank(ttft, 0.99), 3) if ttft else None,
        tpot_mean_ms=round(fmean(tpot), 4) if tpot else None,
        tpot_p99_ms=round(nearest_rank(tpot, 0.99), 4) if tpot else None,
        tokens_per_s=round(tokens / now, 1),
    )


def _ttft_rows(records: list[TurnRecord]) -> list[TtftRow]:
    rows = []
    for record in records:
        f = record.features
        if record.ttft_s is None or f.p_backlog_ms > 0 or f.link_backlog_ms > 0 or f.d_backlog_ms > 0:
            continue
        local = record.went_local
        rows.append(TtftRow(local, f.uncached_d, f.uncached_p, f.prompt_tokens, f.d_batch, record.ttft_s * 1e3))
    stride = max(1, len(rows) // ROWS_PER_ARM)
    return rows[::stride][:ROWS_PER_ARM]


def _step_row(simulation: Simulation) -> StepRow | None:
    """Occupancy of D over the steady middle of a run, by Little's law from the records."""
    records = [r for r in simulation.records if r.ttft_s is not None and r.tpot_s is not None and r.output_tokens >= 8]
    decode_nodes = sum(1 for name in simulation.fleet.engines if not name.startswith("P"))
    if len(records) < 40:
        return None
    begin_s, end_s = 0.3 * simulation.events.now_s, 0.8 * simulation.events.now_s
    busy_s = context_s = weight = steps_ms = 0.0
    for record in records:
        assert record.ttft_s is not None and record.tpot_s is not None
        first_s = record.accepted_s + record.ttft_s
        overlap_s = min(record.ended_s, end_s) - max(first_s, begin_s)
        if overlap_s <= 0:
            continue
        busy_s += overlap_s
        context_s += overlap_s * (record.prompt_tokens + record.output_tokens / 2)
        weight += overlap_s
        steps_ms += overlap_s * record.tpot_s * 1e3
    if weight == 0:
        return None
    span_s = (end_s - begin_s) * decode_nodes
    appends = [r.features for r in records if r.went_local and begin_s <= r.accepted_s + (r.ttft_s or 0.0) < end_s]
    return StepRow(
        # A running sequence meets one more than the mean: itself.
        batch=busy_s / span_s + 1,
        context=(context_s / span_s) * (1 + span_s / busy_s),
        append_hz=len(appends) / span_s,
        uncached_d=fmean(f.uncached_d for f in appends) if appends else 1.0,
        prompt=fmean(f.prompt_tokens for f in appends) if appends else 1.0,
        tpot_ms=steps_ms / weight,
    )
