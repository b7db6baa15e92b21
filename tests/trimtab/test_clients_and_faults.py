"""The simulator's client and its faults: limits, patience, and that nothing is lost or counted twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.faults import Fault, FaultKind
from emulator.fleet import PAPER_TOPOLOGIES
from emulator.profiles import LLAMA_3_1_8B_H100, LLAMA_3_1_8B_H100_AS_MEASURED, EngineProfile
from emulator.workload import CHAT, ConversationPlan, Phase, TurnPlan, conversations
from router.policy import Policy, Weights
from router.turn import Route
from slos.objective import Outcome
from trimtab.simulate import EAGER, Client, Simulation

PINNED = Policy(1, {}, Weights(1, 1), pin_x=0.0)
FOR_S = 40.0


def made(
    topology: str = "2P_2D", profile: EngineProfile = LLAMA_3_1_8B_H100, client: Client = EAGER, append_x: float = 1.0
) -> Simulation:
    return Simulation(profile, topology, PINNED, (), seed=0, client=client, append_x=append_x)


def chats(rate_hz: float = 2.0, think: bool = True) -> list[ConversationPlan]:
    plans = conversations((Phase("chat", FOR_S, ((CHAT, rate_hz),)),), np.random.default_rng(0))
    if think:
        return plans
    return [replace(p, turns=tuple(replace(t, think_s=0.0) for t in p.turns)) for p in plans]


def ran(run: Simulation, plans: list[ConversationPlan], faults: tuple[Fault, ...] = ()) -> Simulation:
    run.start(plans, (), faults)
    run.drain(3600.0)
    assert run.open == 0
    return run


def turns(plans: list[ConversationPlan]) -> int:
    return sum(len(plan.turns) for plan in plans)


def assert_at_rest(run: Simulation) -> None:
    run.advance(run.events.now_s + 100)
    for engine in run.fleet.engines.values():
        assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert run.fleet.open_leases == 0 and not run.core.flights()


@pytest.mark.parametrize("topology", PAPER_TOPOLOGIES)
def test_every_configuration_of_the_paper_answers_every_turn(topology):
    plans = chats()
    run = ran(made(topology, LLAMA_3_1_8B_H100_AS_MEASURED), plans)
    assert [r.outcome for r in run.records] == [Outcome.COMPLETED] * turns(plans)
    assert sum(r.output_tokens for r in run.records) == sum(t.output_tokens for p in plans for t in p.turns)
    assert_at_rest(run)


def test_pd_nodes_take_their_later_turns_themselves_and_d_nodes_never():
    run = ran(made("1P_1D_1pD"), chats())
    later = [r for r in run.records if r.turn > 1]
    went = {node: {r.went_local for r in later if r.placement.decode == node} for node in ("D0", "pD0")}
    assert went == {"D0": {False}, "pD0": {True}}
    assert all(r.decision.route is Route.PREFILL_TRANSFER for r in run.records if r.turn == 1)


def test_a_share_of_later_turns_goes_through_p_where_pd_nodes_were_measured_so():
    later = [r for r in ran(made("2P_2pD", append_x=0.83), chats()).records if r.turn > 1]
    assert 0.75 < sum(r.went_local for r in later) / len(later) < 0.91


def test_replicas_of_a_hybrid_know_no_x_and_take_their_part():
    records = ran(made("1R_1P_2D"), chats()).records
    on_replica = [r for r in records if r.placement.decode == "R0"]
    assert all(r.placement.prefill is None for r in on_replica)
    assert 0.15 < len(on_replica) / len(records) < 0.6
    assert all(r.placement.prefill == "P0" for r in records if r.placement.decode != "R0")


def test_a_client_never_has_more_in_flight_than_it_may():
    most = 0

    def count(record) -> None:
        nonlocal most
        most = max(most, len(run.core.flights()) + 1)

    run = made(client=Client(5))
    run.on_record = count
    plans = chats(4.0)
    ran(run, plans)
    assert most == 5 and len(run.records) == turns(plans) and run.held_s


def test_a_second_turn_that_follows_at_once_keeps_the_place_of_the_first():
    plan = [ConversationPlan(f"c{n}", 0.0, (TurnPlan(500, 50, 0.0), TurnPlan(50, 50, 0.0))) for n in range(40)]
    run = ran(made("4R", client=Client(8)), plan)
    waited = {r.turn for r in run.records if run.held_s.get(r.request_id, 0.0) > 0}
    assert waited == {1}


def test_without_a_limit_nobody_waits_in_the_client():
    assert not ran(made(), chats(think=False)).held_s


@pytest.mark.parametrize("limit", [None, 40])
def test_what_a_client_gives_up_is_counted_and_leaves_nothing_behind(limit):
    plans = chats(6.0, think=False)
    run = ran(made("1P_1D", client=Client(limit, timeout_s=3.0)), plans)
    timed_out = [r for r in run.records if r.outcome is Outcome.TIMED_OUT]
    answered = [r for r in run.records if r.outcome is Outcome.COMPLETED]
    assert len(timed_out) == len(run.gave_up_s) > 10 and len(answered) > 100
    assert len(answered) + len(timed_out) == len(run.records) < turns(plans)
    assert all(r.ended_s - r.accepted_s <= 3.0 + 1e-6 for r in run.records)
    assert_at_rest(run)


def test_a_turn_can_be_given_up_before_it_was_sent():
    long = ConversationPlan("a", 0.0, (TurnPlan(100, 250, 0.0), TurnPlan(100, 250, 0.0)))
    short = ConversationPlan("b", 0.1, (TurnPlan(100, 10, 0.0),))
    run = ran(made("1R", client=Client(1, timeout_s=2.5)), [long, short])
    [(at_s, number)] = run.gave_up_s
    assert at_s == pytest.approx(2.6) and number == 1
    assert [r.outcome for r in run.records] == [Outcome.COMPLETED] * 2
    assert {r.placement.decode for r in run.records} == {"R0"}


@pytest.mark.parametrize(
    ("bad", "why"), [({"max_in_flight": 0}, "1 request or more"), ({"timeout_s": 0.0}, "positive")]
)
def test_a_client_that_makes_no_sense_is_refused(bad, why):
    with pytest.raises(ValueError, match=why):
        Client(**bad)


def test_a_node_that_dies_and_returns_loses_its_cache_and_no_turn_is_counted_twice():
    plans = chats()
    fault = Fault(FaultKind.OUT, 15.0, 10.0, "D0")
    run = ran(made(), plans, (fault,))
    per_talk = [r.request_id for r in run.records]
    assert len(per_talk) == len(set(per_talk))
    assert run.fleet.engines["D0"].epoch == 1 and run.fleet.engines["D0"].alive
    assert any(r.placement.decode == "D0" and r.accepted_s > 25 for r in run.records)
    assert not any(r.placement.decode == "D0" and 15 < r.accepted_s < 25 for r in run.records)
    assert_at_rest(run)


def test_a_restart_that_takes_no_time_still_costs_the_cache():
    plans = [ConversationPlan("c", 0.0, (TurnPlan(2000, 10, 0.0), TurnPlan(16, 10, 5.0)))]
    lacked = []
    for faults in ((), (Fault(FaultKind.OUT, 3.0, 0.0, "R0"),)):
        run = ran(made("1R"), plans, faults)
        assert run.records[1].cached_tokens is not None
        lacked.append(run.records[1].prompt_tokens - run.records[1].cached_tokens)
    assert lacked[0] < 50 and lacked[1] == 2026


def tpot_ms(run: Simulation, node: str, before_s: float, after_s: float) -> float:
    some = [
        r.tpot_s for r in run.records if r.placement.decode == node and before_s < r.accepted_s < after_s and r.tpot_s
    ]
    return 1e3 * float(np.median(some))


def test_a_slow_node_is_slow_until_it_is_over():
    run = ran(made(), chats(), (Fault(FaultKind.SLOW, 10.0, 15.0, "D0", 4.0),))
    assert tpot_ms(run, "D0", 12, 20) > 2.5 * tpot_ms(run, "D0", 30, 60)
    assert tpot_ms(run, "D1", 12, 20) < 1.5 * tpot_ms(run, "D1", 30, 60)


def test_a_slow_link_is_slow_until_it_is_over():
    def ttft_ms(faults: tuple[Fault, ...], a: float, b: float) -> float:
        run = ran(made(), chats(1.0), faults)
        return 1e3 * float(np.median([r.ttft_s for r in run.records if a < r.accepted_s < b and r.ttft_s]))

    slow = (Fault(FaultKind.BANDWIDTH, 10.0, 15.0, None, 0.5),)
    assert ttft_ms(slow, 10, 25) > ttft_ms((), 10, 25) + 15
    assert ttft_ms(slow, 45, 80) == pytest.approx(ttft_ms((), 45, 80), rel=0.1)


def test_what_the_controller_missed_it_learns_when_its_metrics_are_back():
    run = made()
    run.start(chats(), (), (Fault(FaultKind.METRICS, 10.0, 20.0),))
    run.advance(29.0)
    tally = run.tallies[run.profile.model]
    during = tally.later_turns
    run.advance(31.0)
    assert during == sum(r.turn > 1 for r in run.records if r.ended_s < 10.0)
    assert tally.later_turns == sum(r.turn > 1 for r in run.records) > during + 20


def test_a_fleet_that_preempts_answers_all_the_same():
    tight = replace(LLAMA_3_1_8B_H100, kv_capacity_tokens=9_000, preempts=True)
    plans = chats(4.0)
    run = ran(made(profile=tight), plans)
    assert sum(engine.preemptions for engine in run.fleet.engines.values()) > 0
    failed = [r for r in run.records if r.outcome is not Outcome.COMPLETED]
    assert all(r.features.prompt_tokens > 7000 for r in failed)  # only what could never fit
    assert_at_rest(run)
