"""Fleet, router core and controller in virtual time: repeatable, and every turn is accounted for, whatever dies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log

import numpy as np
import pytest

from controller.feasibility import Relief
from controller.laws import LAWS
from controller.laws.protocol import Action
from controller.tick import TICK_S
from emulator.profiles import LLAMA_3_1_70B_H100_TP4
from emulator.workload import AGENT, RAG, ConversationPlan, Phase, TurnPlan, conversations
from router.connectors import CONNECTORS
from router.core import Decider, Flight
from router.decision import Decision, decide
from router.features import TurnFeatures
from router.paper_table import PaperTable
from router.policy import Policy, TableKey, Tables, Weights
from router.turn import NodeId, Reason, Route, Turn
from slos.objective import Outcome, Slo
from trimtab.scenarios import promises
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

PROFILE = LLAMA_3_1_70B_H100_TP4
TABLES = as_tables(shipped())
PRICED = Policy(1, TABLES, Weights.from_price(0.4))
SLOS = promises(2.0, 0.038)
BUSY = Phase("agents", 60.0, ((AGENT, 0.9),))
LONG_AFTER_S = 3600.0


def made(
    policy: Policy = PRICED,
    *,
    topology: str = "2P_2D",
    seed: int = 0,
    law: str | None = None,
    slos: Sequence[Slo] = SLOS,
    decider: Decider = decide,
    connector: str = "nixl",
) -> Simulation:
    moving = None if law is None else LAWS[law]()
    return Simulation(PROFILE, topology, policy, slos, seed=seed, law=moving, decider=decider, connector=connector)


def plans(*phases: Phase, seed: int = 0) -> list[ConversationPlan]:
    return conversations(phases, np.random.default_rng([seed, 0]))


def ran(*phases: Phase, seed: int = 0, simulation: Simulation | None = None) -> Simulation:
    done = simulation or made(seed=seed)
    done.run(plans(*phases, seed=seed), phases)
    return done


def answered(simulation: Simulation) -> int:
    return sum(record.outcome is Outcome.COMPLETED for record in simulation.records)


def assert_at_rest(simulation: Simulation) -> None:
    """Nothing is in flight, booked, leased or poisoned."""
    core, fleet = simulation.core, simulation.fleet
    assert not core.flights() and not simulation.unfinished and not core.waiting(simulation.events.now_s)
    for node, load in core.load.items():
        assert (len(load.prefill), len(load.link), load.sequences, load.kv_tokens) == (0, 0, 0, 0), node
    for engine in fleet.engines.values():
        assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert fleet.open_leases == 0 and fleet.poisoned_reads == 0


# -- the same seed -----------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_records_and_ticks():
    one, two = (ran(BUSY, simulation=made(law="aimd")) for _ in range(2))
    assert one.records == two.records and one.ticks == two.ticks and one.unfinished == two.unfinished
    assert len(one.records) > 300


def test_another_seed_gives_other_traffic():
    assert ran(BUSY).records != ran(BUSY, seed=1).records


def test_the_traffic_does_not_depend_on_the_policy():
    ends = [ran(BUSY, simulation=made(Policy(1, {}, Weights(1, 1), pin_x=x))) for x in (0.0, 1.0)]
    firsts = [[(r.accepted_s, r.features.n_in) for r in run.records if r.turn == 1] for run in ends]
    assert sorted(firsts[0])[:40] == sorted(firsts[1])[:40]


def test_a_pinned_share_is_drawn_from_the_seed():
    half = Policy(1, {}, Weights(1, 1), pin_x=0.5)
    routes = [[r.decision.route for r in ran(BUSY, simulation=made(half, seed=seed)).records] for seed in (0, 0, 1)]
    assert routes[0] == routes[1] != routes[2]
    share = sum(r.went_local for r in ran(BUSY, simulation=made(half)).records if r.turn > 1)
    assert 0.4 < share / sum(r.turn > 1 for r in ran(BUSY, simulation=made(half)).records) < 0.6


# -- accounting --------------------------------------------------------------------------------------------------------


def test_at_rest_every_planned_turn_was_answered_and_nothing_is_left_over():
    simulation = ran(BUSY)
    simulation.advance(LONG_AFTER_S)
    assert answered(simulation) == len(simulation.records) == sum(len(plan.turns) for plan in plans(BUSY))
    assert_at_rest(simulation)


def test_the_engines_count_the_tokens_that_were_planned():
    simulation = ran(BUSY)
    simulation.advance(LONG_AFTER_S)
    planned = [turn.output_tokens for plan in plans(BUSY) for turn in plan.turns]
    assert sorted(r.output_tokens for r in simulation.records) == sorted(planned)
    assert all(r.prompt_tokens == r.features.prompt_tokens for r in simulation.records)


@pytest.mark.parametrize("until_s", [1.0, 13.0, 47.5, 60.0])
def test_accepted_turns_are_answered_failed_or_in_flight_at_any_time(monkeypatch, until_s):
    simulation = made()
    accepted: list[Turn] = []
    accept = simulation.core.accept

    def noting(turn: Turn, now_s: float, coin: float) -> Flight:
        accepted.append(turn)
        return accept(turn, now_s, coin)

    monkeypatch.setattr(simulation.core, "accept", noting)
    simulation.start(plans(BUSY), (BUSY,))
    simulation.events.at(20.0, simulation.kill, "P1")
    simulation.events.at(30.0, simulation.kill, "D1")
    simulation.events.at(40.0, simulation.revive, "D1")
    simulation.advance(until_s)
    ended = {Outcome.COMPLETED: 0, Outcome.FAILED: 0}
    for record in simulation.records:
        ended[record.outcome] += 1
    assert len(accepted) == sum(ended.values()) + len(simulation.unfinished)


def test_records_are_handed_on_as_they_come():
    seen: list[float] = []
    simulation = Simulation(
        PROFILE, "2P_2D", PRICED, SLOS, seed=0, on_record=lambda record: seen.append(record.ended_s)
    )
    ran(BUSY, simulation=simulation)
    assert seen == [r.ended_s for r in simulation.records] == sorted(seen)
    assert simulation.later_answered == sum(r.turn > 1 for r in simulation.records)


# -- death and return --------------------------------------------------------------------------------------------------


def test_when_a_prefill_node_dies_every_turn_is_still_answered():
    out = Phase("one P out", 60.0, ((AGENT, 0.6),), out=("P1",))
    simulation = ran(BUSY, out, BUSY)
    simulation.advance(LONG_AFTER_S)
    assert answered(simulation) == len(simulation.records) == sum(len(p.turns) for p in plans(BUSY, out, BUSY))
    assert not simulation.refused_s
    used = {r.placement.prefill for r in simulation.records if 60.0 < r.accepted_s < 120.0}
    assert used == {None, "P0"}
    assert "P1" in {r.placement.prefill for r in simulation.records if r.accepted_s > 120.0}
    assert any(r.attempts == 2 and r.decision.reason is Reason.PREFILL_FAILED for r in simulation.records)
    assert_at_rest(simulation)


@pytest.mark.parametrize("connector", sorted(CONNECTORS))
def test_every_connector_carries_the_traffic_through_deaths_of_p_and_d(connector):
    calm, out = Phase("agents", 40.0, ((AGENT, 0.6),)), Phase("one P out", 30.0, ((AGENT, 0.5),), out=("P1",))
    simulation = made(Policy(1, {}, Weights(1, 1), pin_x=0.3), connector=connector)
    simulation.start(plans(calm, out, calm), (calm, out, calm))
    simulation.events.at(20.0, simulation.kill, "D1")
    simulation.events.at(30.0, simulation.revive, "D1")
    simulation.advance(LONG_AFTER_S)
    records = simulation.records
    transferred = [r for r in records if r.outcome is Outcome.COMPLETED and r.placement.prefill is not None]
    assert len(transferred) > 100 and any(r.went_local for r in records if r.turn > 1)
    assert {r.placement.prefill for r in transferred if r.accepted_s > 75.0} == {"P0", "P1"}
    # Only a turn that had its first token when D died may fail.
    lost = [r for r in records if r.outcome is not Outcome.COMPLETED]
    assert all(r.outcome is Outcome.FAILED and r.ttft_s is not None and r.ended_s == 20.0 for r in lost)
    assert any(r.attempts > 1 for r in records) and not simulation.refused_s
    assert simulation.fleet.transferred_tokens > 0
    assert_at_rest(simulation)


def test_a_prefill_node_that_dies_loses_its_cache_and_the_router_believes_so():
    simulation = made()
    simulation.start(plans(BUSY), (BUSY,))
    simulation.advance(40.0)
    keys = {flight.conversation.key for flight in simulation.core.flights()}
    node, cache = NodeId("P1"), simulation.fleet.engines["P1"].cache
    held = {key for key in keys if simulation.core.residency.held(node, key)}
    assert held and all(cache.hit_tokens(((key.id, 10**6),)) > 0 for key in held)
    simulation.kill("P1")
    simulation.revive("P1")
    assert not any(simulation.core.residency.held(node, key) for key in keys)
    assert not any(cache.hit_tokens(((key.id, 10**6),)) for key in keys)


def test_without_any_prefill_node_turns_run_where_they_decode():
    simulation = made()
    simulation.start(plans(BUSY), (BUSY,))
    simulation.kill("P0")
    simulation.kill("P1")
    simulation.advance(LONG_AFTER_S)
    assert {r.decision.reason for r in simulation.records} == {Reason.P_UNAVAILABLE}
    assert answered(simulation) == sum(len(plan.turns) for plan in plans(BUSY))
    assert_at_rest(simulation)


def test_when_a_decode_node_dies_its_streams_fail_and_their_conversations_end():
    simulation = made()
    simulation.start(plans(BUSY), (BUSY,))
    simulation.advance(50.0)
    flights = simulation.core.flights()
    streaming = [f for f in flights if f.watch.first_s is not None and f.placement.decode == "D0"]
    elsewhere = [f for f in flights if f.watch.first_s is not None and f.placement.decode == "D1"]
    assert len(streaming) > 2 and len(elsewhere) > 2
    turns_before = [f.conversation.turns for f in streaming]
    simulation.kill("D0")
    lost = {r.request_id for r in simulation.records if r.outcome is Outcome.FAILED}
    assert lost == {f.turn.request_id for f in streaming}
    simulation.advance(LONG_AFTER_S)
    assert [f.conversation.turns for f in streaming] == turns_before
    assert all(f.conversation.in_flight == 0 for f in streaming)
    by_id = {r.request_id: r for r in simulation.records}
    assert all(by_id[f.turn.request_id].outcome is Outcome.COMPLETED for f in elsewhere)
    assert {r.outcome for r in simulation.records if r.request_id not in lost} == {Outcome.COMPLETED}
    assert_at_rest(simulation)


def test_turns_without_a_token_yet_are_planned_again_on_the_other_decode_node():
    simulation = made()
    simulation.start(plans(BUSY), (BUSY,))
    simulation.advance(30.0)
    early: list[str] = []
    while len(early) < 2:
        simulation.advance(simulation.events.now_s + 0.01)
        on_d0 = [f for f in simulation.core.flights() if f.decoding and f.placement.decode == "D0"]
        early = [f.turn.request_id for f in on_d0 if f.watch.first_s is None]
    simulation.kill("D0")
    simulation.advance(LONG_AFTER_S)
    by_id = {r.request_id: r for r in simulation.records}
    for request_id in early:
        record = by_id[request_id]
        assert (record.outcome, record.attempts, record.placement.decode) == (Outcome.COMPLETED, 2, "D1")
        assert record.decision.reason is Reason.DECODE_FAILED
    assert_at_rest(simulation)


def test_a_first_token_that_dies_on_its_way_is_no_first_token():
    one = [ConversationPlan("c", 1.0, (TurnPlan(2000, 50, 0.0),))]
    phase = Phase("one turn", 60.0, ())
    calm = made()
    calm.run(one, (phase,))
    first = calm.records[0]
    assert first.ttft_s is not None and first.attempts == 1
    simulation = made()
    simulation.start(one, (phase,))
    on_its_way_s = 1.0 + first.ttft_s - PROFILE.first_token_ms / 2e3
    simulation.events.at(on_its_way_s, simulation.kill, first.placement.decode)
    simulation.advance(60.0)
    (again,) = simulation.records
    assert again.outcome is Outcome.COMPLETED and again.attempts == 2
    assert again.decision.reason is Reason.DECODE_FAILED and again.placement.decode != first.placement.decode
    assert again.ttft_s is not None and again.ttft_s > first.ttft_s + PROFILE.front_ms / 1e3


def test_without_a_decode_node_turns_are_refused_and_their_conversations_end():
    simulation = made()
    simulation.start(plans(BUSY), (BUSY,))
    simulation.advance(30.0)
    ended = len(simulation.records)
    in_flight = len(simulation.core.flights())
    simulation.kill("D0")
    simulation.kill("D1")
    simulation.advance(LONG_AFTER_S)
    assert len(simulation.records) == ended + in_flight, "nothing was accepted any more"
    assert {r.outcome for r in simulation.records[ended:]} == {Outcome.FAILED}
    started = [plan for plan in plans(BUSY) if plan.start_s > 30.0]
    firsts = [at_s for at_s, turn in simulation.refused_s if turn == 1]
    assert firsts == [plan.start_s for plan in started]
    assert len(simulation.refused_s) > len(firsts), "later turns were refused too"
    assert_at_rest(simulation)


def test_a_fleet_of_replicas_needs_no_table():
    simulation = ran(BUSY, simulation=made(topology="4R"))
    assert {r.decision.reason for r in simulation.records} == {Reason.REPLICA}
    assert answered(simulation) == len(simulation.records)


# -- tables that lack something ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 100, 1536])
def test_without_a_table_later_turns_go_by_what_d_lacks_and_are_served(tokens):
    policy = Policy(1, {}, Weights.from_price(0.4), without_table_tokens=tokens)
    simulation = ran(BUSY, simulation=made(policy, law="aimd"))
    simulation.advance(LONG_AFTER_S)
    later = [r for r in simulation.records if r.turn > 1]
    assert {r.decision.reason for r in later} == {Reason.NO_TABLE}
    assert all(r.went_local == (r.features.uncached_d <= tokens) for r in later)
    assert {r.went_local for r in later} == ({False, True} if tokens else {False})
    assert answered(simulation) == sum(len(plan.turns) for plan in plans(BUSY))
    assert_at_rest(simulation)


def test_a_papers_table_without_the_cell_takes_the_traditional_route_and_serves():
    key = TableKey(PROFILE.model, "2P_2D")
    exact = TABLES[key]
    empty = {key: Tables(exact.load_aware, PaperTable({}), exact.source, exact.digest)}
    simulation = ran(BUSY, simulation=made(Policy(1, empty, Weights(1, 1), mode="paper")))
    later = [r for r in simulation.records if r.turn > 1]
    assert later and {(r.decision.reason, r.decision.route) for r in later} == {
        (Reason.NO_DATA, Route.PREFILL_TRANSFER)
    }
    assert {r.outcome for r in simulation.records} == {Outcome.COMPLETED}


def test_an_artefact_without_a_papers_table_serves_in_paper_mode():
    key = TableKey(PROFILE.model, "2P_2D")
    exact = TABLES[key]
    without = {key: Tables(exact.load_aware, None, exact.source, exact.digest)}
    simulation = ran(BUSY, simulation=made(Policy(1, without, Weights(1, 1), mode="paper")))
    assert {r.decision.reason for r in simulation.records if r.turn > 1} == {Reason.NO_TABLE}
    assert {r.outcome for r in simulation.records} == {Outcome.COMPLETED}


def test_a_topology_without_a_table_of_its_own_uses_the_nearest_and_says_so():
    simulation = ran(BUSY, simulation=made(topology="3P_2D"))
    scored = [r for r in simulation.records if r.decision.reason in (Reason.SCORE, Reason.LOCAL_SLOWER)]
    assert scored and not any(r.decision.table_exact for r in scored)


# -- control -----------------------------------------------------------------------------------------------------------


def test_a_tick_runs_every_five_seconds_and_sees_what_has_ended_by_then():
    simulation = ran(BUSY, simulation=made(law="aimd"))
    assert [view.at_s for view in simulation.ticks] == [TICK_S * n for n in range(1, 13)]
    for view in simulation.ticks:
        ended = [r for r in simulation.records if r.turn > 1 and r.ended_s <= view.at_s]
        assert abs(view.later_turns - len(ended)) <= 1  # a turn may end at the very moment of a tick
    assert simulation.state.ticks == 12


def test_without_a_law_the_first_policy_stays():
    simulation = ran(BUSY)
    assert simulation.core.current.publication.version == 1
    assert {r.decision.policy_version for r in simulation.records} == {1}
    assert {view.output.price for view in simulation.ticks} == {PRICED.weights.price}


def test_a_publication_decides_the_turns_that_come_after_it():
    simulation = ran(BUSY, simulation=made(law="aimd", slos=promises(2.0, 0.005)))
    assert simulation.core.current.publication is simulation.state.publication
    versions = [r.decision.policy_version for r in sorted(simulation.records, key=lambda r: r.accepted_s)]
    assert versions == sorted(versions) and versions[0] == 1 and versions[-1] > 3


def test_each_version_is_one_price():
    prices: dict[int, set[float]] = {}

    def noting(policy: Policy, features: TurnFeatures, coin: float) -> Decision:
        prices.setdefault(policy.version, set()).add(policy.weights_for(features.model).price)
        return decide(policy, features, coin)

    ran(BUSY, simulation=made(law="aimd", slos=promises(0.3, 0.025), decider=noting))
    assert len(prices) > 2 and all(len(found) == 1 for found in prices.values())


@pytest.mark.parametrize("slos", [promises(2.0, 0.005), promises(0.001, 0.038), promises(0.001, 0.005)])
def test_an_slo_that_nothing_can_hold_leaves_the_controller_bounded_and_raises_the_warning(slos):
    steady = Phase("retrieval chat", 450.0, ((RAG, 0.4),))
    simulation = ran(steady, simulation=made(law="aimd", slos=slos))
    prices = [view.output.price for view in simulation.ticks]
    assert all(0.02 * (1 - 1e-9) <= price <= 5.0 * (1 + 1e-9) for price in prices)
    assert all(abs(log(b / a)) <= 0.25 + 1e-9 for a, b in pairwise(prices))
    relief = simulation.ticks[-1].output.feasibility.relief
    tight_ttft, tight_tpot = slos[0].threshold_s == 0.001, slos[1].threshold_s == 0.005
    assert relief is (Relief.BOTH if tight_ttft and tight_tpot else Relief.PREFILL if tight_ttft else Relief.DECODE)
    simulation.advance(LONG_AFTER_S)
    assert answered(simulation) == sum(len(plan.turns) for plan in plans(steady))


def test_without_traffic_nothing_is_published():
    quiet = Phase("nobody", 300.0, ())
    simulation = ran(quiet, simulation=made(law="aimd"))
    assert {view.output.action for view in simulation.ticks} == {Action.NO_EVIDENCE}
    assert simulation.core.current.publication.version == 1 and not simulation.records
