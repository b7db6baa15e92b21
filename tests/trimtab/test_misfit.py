"""Engines that are not what the table was made from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from emulator.profiles import LLAMA_3_1_70B_H100_TP4, StepTime
from trimtab.misfit import misfit
from trimtab.runs import Job, run_one
from trimtab.scenarios import H1


def engines(seed: int):
    return misfit(LLAMA_3_1_70B_H100_TP4, np.random.default_rng([seed, 3]))


def test_a_seed_gives_one_engine_and_another_seed_another():
    assert engines(1) == engines(1)
    assert len({engines(seed).linear_ms for seed in range(20)}) == 2
    assert len({engines(seed) for seed in range(20)}) > 10


def test_constants_are_off_by_thirty_percent_and_steps_are_convex():
    right = LLAMA_3_1_70B_H100_TP4
    for seed in range(10):
        wrong = engines(seed)
        assert round(wrong.kv_read_ms_per_token / right.kv_read_ms_per_token, 6) in (0.7, 1.3)
        assert round(wrong.link.hop_ms / right.link.hop_ms, 6) in (0.7, 1.3)
        ratio = [StepTime(wrong).linear_ms(n) / StepTime(right).linear_ms(n) for n in (1, 2048, 8192)]
        assert ratio[0] < ratio[1] < ratio[2] and ratio[2] / ratio[0] > 1.25


def test_the_router_keeps_the_table_that_does_not_fit():
    short = replace(H1, phases=(replace(H1.phases[0], duration_s=60.0),), settle_s=10.0)
    fits = run_one(Job(short, "price_0.4", 0)).score
    assert run_one(Job(replace(short, misfit=True), "price_0.4", 0)).score != fits
