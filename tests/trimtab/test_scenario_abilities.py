"""What a scenario may ask of a run beside traffic and faults: other promises by phase, turns that the controller is not
told of, several routers, other KV memory, and tables that are missing or wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.profiles import PROFILES
from emulator.workload import AGENT, Phase, conversations
from router.policy import Policy, TableKey, Weights
from router.turn import NodeId, Reason
from slos.objective import Outcome
from trimtab.contenders import contender
from trimtab.router_group import RouterGroup
from trimtab.runs import Job, Run, run_one
from trimtab.scenarios import H1, Scenario, promises
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation
from trimtab.told import Told
from trimtab.wrong_tables import FLIPPED, NOISE, TableState, tables_in

PHASES = (Phase("a", 40.0, ((AGENT, 0.8),)), Phase("b", 40.0, ((AGENT, 0.8),)))
SLOS = promises(2.0, 0.038)
SHORT = Scenario("short", "short", H1.profile, "2P_2D", PHASES, SLOS, settle_s=5.0)
TABLES = as_tables(shipped())
MODEL = PROFILES[H1.profile].model


def played(scenario: Scenario, policy: str = "price_0.4") -> Run:
    return run_one(Job(scenario, policy, 3, keep_ticks=True))


def simulated(**how) -> Simulation:
    policy = Policy(1, TABLES, Weights.from_price(0.4))
    simulation = Simulation(PROFILES[H1.profile], "2P_2D", policy, SLOS, seed=3, **how)
    simulation.run(conversations(PHASES, np.random.default_rng([3, 0])), PHASES)
    return simulation


# -- promises by phase -------------------------------------------------------------------------------------------------


def test_each_phase_is_judged_by_its_own_promise_and_the_controller_follows():
    strict = promises(0.3, 0.020)
    run = played(replace(SHORT, phase_slos=(SLOS, strict)))
    before, after = run.score.phases
    assert (before.ttft_over or 0) < 0.05 < 0.1 < (after.ttft_over or 0)
    told = {view.at_s: {reading.slo for reading in view.output.readings} for view in run.ticks}
    assert told[35.0] == set(SLOS) and told[45.0] == set(strict)


def test_a_promise_that_stays_is_no_change():
    assert played(replace(SHORT, phase_slos=(SLOS, SLOS))) == played(SHORT)


def test_promises_for_another_number_of_phases_are_refused():
    with pytest.raises(ValueError, match="promises for 1 phases of 2; write one set for each"):
        replace(SHORT, phase_slos=(SLOS,))


# -- what the controller is told ---------------------------------------------------------------------------------------


def test_a_controller_that_sees_a_tenth_is_told_of_about_a_tenth_and_routing_goes_on_as_before():
    everything, tenth = simulated(), simulated(told_share=0.1)
    assert tenth.records == everything.records
    told = tenth.tallies[MODEL].turns
    assert 0.04 * len(tenth.records) < told < 0.2 * len(tenth.records)
    assert simulated(told_share=0.1).tallies[MODEL].turns == told


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0 and up to 1, got 0"):
        Told(MODEL, SLOS, share=0.0, seed=0)


# -- several routers ---------------------------------------------------------------------------------------------------


def test_several_routers_share_the_fleet_and_each_knows_only_its_own_turns():
    simulation = simulated(routers=3)
    assert {record.outcome for record in simulation.records} == {Outcome.COMPLETED}
    assert simulation.tallies[MODEL].turns == len(simulation.records)
    opened = [len({flight.conversation.key for flight in core.flights()}) for core in simulation.routers.cores]
    assert len(simulation.unfinished) == sum(len(core.flights()) for core in simulation.routers.cores)
    busy = [sum(core.load[NodeId(node)].sequences for node in ("D0", "D1")) for core in simulation.routers.cores]
    assert all(sequences <= of for sequences, of in zip(busy, opened, strict=True)) and sum(busy) > 0


def test_a_conversation_stays_with_its_router():
    simulation = simulated(routers=2)
    group = simulation.routers
    for core in group.cores:
        assert all(group.of(flight.turn.key.id) is core for flight in core.flights())


def test_all_routers_hear_of_a_dead_node_and_of_a_publication():
    simulation = simulated(routers=2)
    simulation.kill("P1")
    assert {core.topology for core in simulation.routers.cores} == {"1P_2D"}
    newer = replace(simulation.state.publication, version=99)
    simulation.routers.swap(newer)
    assert all(core.current.publication is newer for core in simulation.routers.cores)


def test_no_router_is_refused():
    with pytest.raises(ValueError, match="one router or more, got 0"):
        RouterGroup(lambda: pytest.fail("none is made"), 0)


# -- memory and tables -------------------------------------------------------------------------------------------------


def test_a_role_may_have_less_kv_memory_and_a_node_less_still():
    less = replace(SHORT, kv_tokens=(("D", 60_000), ("D1", 30_000)))
    assert played(less, "x1").score != played(SHORT, "x1").score


def test_without_a_table_the_controller_goes_by_tokens_and_the_papers_table_through_p():
    bare = replace(SHORT, table=TableState.NONE)
    assert [phase.local_share for phase in played(bare, "paper_table").score.phases] == [0.0, 0.0]
    assert all((phase.local_share or 0.0) > 0.5 for phase in played(bare).score.phases)


def test_the_other_models_keep_their_tables():
    rng = np.random.default_rng(0)
    assert {key.model for key in tables_in(TableState.NONE, TABLES, MODEL, rng)} == {
        key.model for key in TABLES if key.model != MODEL
    }
    assert tables_in(TableState.SHIPPED, TABLES, MODEL, rng) is TABLES


def test_a_wrong_table_is_off_by_its_noise_and_one_sign_in_five_and_is_the_same_for_a_seed():
    key = TableKey(MODEL, "2P_2D")
    first, again, other = (
        tables_in(TableState.WRONG, TABLES, MODEL, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first[key] == again[key] != other[key] and first[key].digest != TABLES[key].digest
    right, wrong = TABLES[key].load_aware, first[key].load_aware
    ratios = np.array([b / a for a, b in zip(right.saved_ms, wrong.saved_ms, strict=True) if a])
    assert np.abs(ratios).max() <= NOISE and np.abs(ratios).min() >= 1 / NOISE
    assert (ratios < 0).mean() == pytest.approx(FLIPPED, abs=0.02)
    assert min(wrong.cost) >= 0 and wrong.cost != right.cost
    paper, made = TABLES[key].paper, first[key].paper
    assert paper is not None and made is not None and paper.cells != made.cells


# -- rivals ------------------------------------------------------------------------------------------------------------


def test_llm_d_prefills_elsewhere_from_sixteen_uncached_tokens_on():
    assert played(SHORT, "llm_d").score == played(SHORT, "threshold_16").score


def test_the_shorter_queue_is_the_score_at_price_zero():
    entry = contender("shorter_queue", TABLES)
    assert entry.policy.weights == Weights(1, 0) and not entry.has_price and entry.law is None
    simulation = Simulation(PROFILES[H1.profile], "2P_2D", entry.policy, SLOS, seed=3)
    simulation.run(conversations(PHASES, np.random.default_rng([3, 0])), PHASES)
    scored = [r.decision for r in simulation.records if r.decision.reason is Reason.SCORE]
    assert scored and all((d.saved_ms or 0) > 0 for d in scored)


def test_dynamos_rule_takes_other_numbers():
    assert played(SHORT, "dynamo_2048_0.7").score == played(SHORT, "dynamo").score
    assert played(SHORT, "dynamo_64_0.2").score != played(SHORT, "dynamo").score
