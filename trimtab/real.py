"""The measured runs of real conversations again, with lengths drawn from published statistics of ShareGPT.

500 conversations of two or more turns arrive as a Poisson process and take their turns without a pause; at most 50
requests are in flight. The authors' sample is not published, so its lengths are not known: these are log-normal
through the median and the 90th percentile of ShareGPT's multi-turn conversations (turns: mean 4.4; later prompts 16 and
86 tokens; answers 249 and 523). The length of first prompts is a guess, and hardly matters to later turns. The runs
were not used to set a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from emulator.workload import ConversationPlan, LogNormal, Mix, fixed
from slos.objective import Outcome

from .grid import AS_MEASURED, Conditions, simulate, stats
from .measured import CLEAN, RealRun, TurnStats

SHAREGPT = Mix(
    "sharegpt",
    first=LogNormal(60, 1.4, 4, 1024),
    later=((1.0, LogNormal(16, 1.31, 3, 1024)),),
    output=LogNormal(249, 0.58, 8, 800),
    think_s=fixed(0),
    turns_mean=4.16,  # a geometric with at least two: mean 4.4
    turns_low=2,
    turns_high=16,
)

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
    plans = [ConversationPlan(f"c{n}", float(at_s), SHAREGPT.draw(rng)) for n, at_s in enumerate(starts)]
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
    results: list[TurnStats] = []
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for result in pool.map(partial(run_real, conditions=conditions, seed=seed), runs):
            results.append(result)
            progress(len(results), len(runs))
    return results
