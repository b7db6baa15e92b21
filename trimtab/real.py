"""The measured runs of real conversations again, with lengths drawn from published statistics of ShareGPT.

500 conversations of two or more turns arrive as a Poisson process and take their turns without a pause; at most 50
requests are in flight. The authors' sample is not published, so its lengths are not known: they are those of the
stand-in (`emulator/standins.py`). The runs were not used to set a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from emulator.standins import SHAREGPT
from emulator.workload import ConversationPlan, fixed
from slos.objective import Outcome

from .cores import on_cores
from .grid import AS_MEASURED, Conditions, simulate, stats
from .measured import CLEAN, RealRun, TurnStats

WITHOUT_PAUSE = replace(SHAREGPT, think_s=fixed(0))
"""As the load generator of the runs took its turns."""

AS_MEASURED_REAL = replace(AS_MEASURED, append_x=1.0)
"""Unlike the grid's, these runs' pD nodes took all their later turns: the 99th percentile of their TTFT is below what
the way through P takes at all."""


def held_out(runs: Sequence[RealRun]) -> list[RealRun]:
    """The ShareGPT runs in which no table decided and nearly everything was answered."""
    return [r for r in runs if r.dataset == "sharegpt" and not r.routed and r.success >= CLEAN and r.later.n]


def run_real(run: RealRun, conditions: Conditions = AS_MEASURED_REAL, seed: int = 0) -> TurnStats:
    """Later turns of one run, simulated."""
    rng = np.random.default_rng([seed, round(run.qps * 10)])
    starts = np.cumsum(rng.exponential(1 / run.qps, run.conversations))
    plans = [ConversationPlan(f"c{n}", float(at_s), WITHOUT_PAUSE.draw(rng)) for n, at_s in enumerate(starts)]
    done = simulate(run.config, plans, conditions, seed)
    later = [r for r in done.records if r.turn > 1 and r.outcome is Outcome.COMPLETED]
    return stats(later, done.held_s)


def run_all(
    runs: Sequence[RealRun],
    conditions: Conditions = AS_MEASURED_REAL,
    *,
    seed: int = 0,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[TurnStats]:
    """Every run, in order."""
    return on_cores(partial(run_real, conditions=conditions, seed=seed), runs, jobs, progress)
