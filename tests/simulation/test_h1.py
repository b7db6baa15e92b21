"""H1 on one seed, the whole loop in virtual time: what the controller has to beat, and what must not happen."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.profiles import PROFILES
from emulator.workload import conversations
from slos.objective import Outcome
from trimtab.contenders import contenders
from trimtab.scenarios import H1
from trimtab.score import RunScore, score
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

pytestmark = pytest.mark.simulation

SEED = 0
FIXED = ("x0", "x1", "prototype", "dynamo")


def run(policy: str) -> Simulation:
    contender = contenders(as_tables(shipped()))[policy]
    simulation = Simulation(
        PROFILES[H1.profile],
        H1.topology,
        contender.policy,
        H1.slos,
        seed=SEED,
        law=contender.law,
        decider=contender.decider,
    )
    simulation.run(conversations(H1.phases, np.random.default_rng([SEED, 0])), H1.phases)
    return simulation


def judged(simulation: Simulation) -> RunScore:
    return score(H1, simulation.records, simulation.unfinished, simulation.refused_s)


@pytest.fixture(scope="module")
def runs() -> dict[str, Simulation]:
    return {policy: run(policy) for policy in ("controller", "price_0.4", *FIXED)}


@pytest.fixture(scope="module")
def attainment(runs) -> dict[str, float]:
    return {policy: judged(simulation).attainment for policy, simulation in runs.items()}


@pytest.mark.parametrize("rule", FIXED)
def test_the_controller_attains_more_than_a_fixed_rule(attainment, rule):
    assert attainment["controller"] > attainment[rule], f"seed {SEED}: {attainment}"


def test_the_controller_is_close_to_the_constant_that_was_right_in_hindsight(attainment):
    assert attainment["controller"] > attainment["price_0.4"] - 0.015, f"seed {SEED}: {attainment}"


def test_each_end_of_the_range_fails_on_the_other_side(runs):
    x0, x1 = judged(runs["x0"]), judged(runs["x1"])
    assert any((phase.p99_ttft_ms or 0) > 2000 for phase in x0.phases), "x0 waits on P"
    assert any((phase.p99_tpot_ms or 0) > 38 for phase in x1.phases), "x1 stalls D"


def test_every_turn_that_ended_was_answered(runs):
    for policy, simulation in runs.items():
        assert {record.outcome for record in simulation.records} == {Outcome.COMPLETED}, policy
        assert not simulation.refused_s, policy


def test_residency_is_believed_rightly_but_for_a_handful_of_turns(runs):
    for policy in ("controller", "price_0.4"):
        assert runs[policy].core.residency_misses <= 10, policy


def test_no_read_comes_after_the_end_of_its_lease(runs):
    for policy, simulation in runs.items():
        assert simulation.fleet.poisoned_reads == 0, policy


def test_the_price_moves_within_its_range_and_its_slew_limit():
    prices = [view.output.price for view in run("controller_start_2.9").ticks]
    steps = np.abs(np.diff(np.log(prices)))
    assert min(prices) >= 0.02 and max(prices) <= 5.0
    assert 0 < steps.max() <= 0.25 + 1e-9


def test_the_cells_of_the_tallies_stay_few(runs):
    (tally,) = runs["controller"].tallies.values()
    assert 10 < len(tally.cells) < 2000 and tally.cells_dropped == 0


def test_the_same_seed_gives_the_same_run(runs):
    again = run("controller")
    assert again.records == runs["controller"].records
    assert again.ticks == runs["controller"].ticks
