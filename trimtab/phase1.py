"""Phase 1 of Algorithm 1 in virtual time: turn-2 TTFT and TPOT at x=0 and x=1, cell by cell.

An arm runs until 300 later turns are answered or 120 virtual seconds have passed. Beside the cell's own numbers each
run leaves what the latency model is fitted to: TTFTs of turns that met no backlog, and the mean step time against
the mean batch and context on D. The same on real engines: `trimtab.measure`.
"""

from __future__ import annotations

import numpy as np

from emulator.profiles import EngineProfile
from emulator.workload import ConversationPlan, Phase, conversations
from router.artefact import MeasuredCell
from router.paper_table import QPS_LEVELS, TURN2_TYPES
from router.policy import Policy, Weights

from .cells import PHASE1, Window
from .rows import ArmRun, CellResult, StepRow, TtftRow, arm, step_row, ttft_rows
from .simulate import Simulation
from .workloads import FIRST_TURNS, Workload

ROWS_PER_ARM = 12
ROWS_OF_FEW = 60
"""Where a few cells are measured and not the grid: each turn counts for more."""
FIT_QPS = 4.0
"""TTFTs for the fit come from levels up to this: above it, turns without a backlog of their own still meet
other people's."""


def measure(
    profile: EngineProfile,
    topology: str,
    workload: Workload,
    qps: float,
    seed: int,
    window: Window = PHASE1,
    rows_per_arm: int = ROWS_PER_ARM,
) -> CellResult:
    """Both arms of one cell on the same arrivals."""
    runs = [_run(profile, topology, workload, qps, x, seed, window) for x in (0, 1)]
    return cell_result(workload, qps, runs[0], runs[1], rows_per_arm)


def cell_result(workload: Workload, qps: float, x0: ArmRun, x1: ArmRun, rows_per_arm: int) -> CellResult:
    """What both arms of a cell come to."""
    rows: list[TtftRow] = []
    steps: list[StepRow] = []
    for run in (x0, x1):
        if qps <= FIT_QPS:
            rows.extend(ttft_rows(run, rows_per_arm))
        step = step_row(run)
        if step is not None:
            steps.append(step)
    cell = MeasuredCell(workload.context, workload.turn2, qps, arm(x0), arm(x1))
    return CellResult(cell, tuple(rows), tuple(steps))


def arrivals(workload: Workload, qps: float, seed: int, limit_s: float) -> tuple[Phase, list[ConversationPlan]]:
    """The traffic of a cell. Its seed is the cell's own, so that cells are independent and both arms meet the same."""
    phase = Phase("phase 1", limit_s, ((workload.mix(), qps),))
    firsts, types, levels = list(FIRST_TURNS.values()), list(TURN2_TYPES), list(QPS_LEVELS)
    cell_seed = [seed, firsts.index(workload.first), types.index(workload.turn2), levels.index(qps)]
    return phase, conversations((phase,), np.random.default_rng(cell_seed))


def _run(
    profile: EngineProfile, topology: str, workload: Workload, qps: float, x: int, seed: int, window: Window
) -> ArmRun:
    policy = Policy(1, {}, Weights(1, 1), pin_x=float(x))
    simulation = Simulation(profile, topology, policy, (), seed=seed)
    phase, plans = arrivals(workload, qps, seed, window.limit_s)
    simulation.start(plans, (phase,))
    for until_s in range(1, round(window.limit_s) + 1):
        simulation.advance(float(until_s))
        if simulation.later_answered >= window.later_turns and until_s >= window.least_s:
            break
    decode_nodes = sum(1 for name in simulation.fleet.engines if not name.startswith("P"))
    return ArmRun(simulation.records, simulation.unfinished, decode_nodes, 0.0, simulation.events.now_s)
