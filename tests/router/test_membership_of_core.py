"""Nodes that join, drain, leave, fail and slow down, as the core sees them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from router.breaker import FAILURES, OPEN_S, BreakerState
from router.core import Flight, RouterCore
from router.pace import DWELL_S, RETRY_S
from router.placement import SLOW_START_S, Node, NoNode
from router.turn import NodeId, Reason, Role
from slos.objective import Outcome
from tests.router.fleet import CAPACITY, Fleet, fleet
from tests.router.samples import D0, D1, P0, P1

D2 = NodeId("D2")


def home(engines: Fleet, conversation: str = "c1") -> NodeId | None:
    return next(c.decode_node for c in engines.core.conversations if c.key.id == conversation)


# -- join, drain, leave ------------------------------------------------------------------------------------------------


def test_a_drained_node_gets_no_new_turns_its_streams_end_and_its_conversations_move_with_their_next_turn():
    engines = fleet("P0 D0 D1")
    engines.talk("c1")
    before = home(engines)
    assert before is not None
    running = engines.start("c1")
    engines.to_decode(running)
    engines.core.drain_node(before, True)
    assert not engines.core.is_idle(before)
    assert engines.finish(running).placement.decode == before, "what runs there ends there"
    assert engines.core.is_idle(before)
    moved = engines.talk("c1")
    assert moved.placement.decode != before
    assert moved.decision.reason is Reason.NODE_DRAINED
    assert engines.core.moves == {Reason.NODE_DRAINED: 1}
    for at in range(10):
        assert engines.talk(f"new{at}").placement.decode != before
    engines.core.drain_node(before, False)
    assert engines.talk("c1").placement.decode == moved.placement.decode, "it stays where it went"


def test_a_node_that_leaves_takes_everything_about_it_along_and_one_of_its_name_begins_empty():
    engines = fleet("P0 D0 D1")
    engines.talk("c1")
    gone = home(engines)
    assert gone is not None
    engines.core.drain_node(gone, True)
    engines.core.remove_node(gone)
    assert gone not in engines.core.nodes and gone not in engines.core.load
    engines.core.add_node(Node(gone, Role.DECODE, CAPACITY))
    assert engines.core.residency.ledger(gone).own_tokens == 0
    assert home(engines) is None
    assert engines.core.topology == "1P_2D"


def test_the_topology_follows_joins_drains_and_leaves():
    core = fleet("P0 D0").core
    core.add_node(Node(D1, Role.DECODE, CAPACITY))
    assert core.topology == "1P_2D"
    core.drain_node(D0, True)
    assert core.topology == "1P_1D"
    core.remove_node(D0)
    assert core.topology == "1P_1D"


def test_a_conversation_whose_node_died_says_so_and_one_that_finds_it_again_does_not():
    engines = fleet("P0 D0 D1")
    engines.talk("c1")
    dead = home(engines)
    assert dead is not None
    engines.core.node_down(dead)
    assert engines.talk("c1").decision.reason is Reason.NODE_GONE
    assert engines.core.moves == {Reason.NODE_GONE: 1}
    alone = fleet("P0 D0")
    alone.talk("c1")
    alone.core.node_down(D0)
    alone.core.node_up(D0)
    assert alone.talk("c1").decision.reason is not Reason.NODE_GONE
    assert not alone.core.moves


# -- slow start --------------------------------------------------------------------------------------------------------


def share_of(engines: Fleet, node: NodeId, seconds: float, rate_hz: float = 2.0, **turn: object) -> float:
    """Of the conversations that begin within that time, the share that the node gets."""
    placed: Counter[NodeId] = Counter()
    end_s, step_s = engines.now_s + seconds, 1 / rate_hz
    while engines.now_s < end_s:
        at_s = engines.now_s
        placed[engines.talk(f"s{at_s}", 1000, **turn).placement.decode] += 1
        engines.now_s = at_s + step_s
    return placed[node] / placed.total()


@pytest.mark.parametrize("named", [False, True])
def test_a_node_that_came_up_just_now_takes_its_share_of_new_conversations_by_and_by(named: bool):
    engines = fleet("P0 P1 D0 D1 D2")
    engines.now_s = 1000.0
    share_of(engines, D2, 60.0, named=named)  # the others are at work
    engines.core.node_down(D2)
    share_of(engines, D2, 60.0, named=named)
    engines.core.node_up(D2, engines.now_s)
    shares = [share_of(engines, D2, SLOW_START_S / 3, named=named) for _ in range(3)]
    share_of(engines, D2, SLOW_START_S, named=named)
    settled = share_of(engines, D2, 60.0, named=named)
    assert shares[0] < 0.6, f"no herd: {shares}"
    assert shares[0] < settled or not named
    assert settled == pytest.approx(1 / 3, abs=0.12)
    ahead = [engines.core.residency.live_tokens(node, engines.now_s) for node in (D0, D1, D2)]
    assert max(ahead) < 1.35 * sum(ahead) / 3


def test_nodes_that_all_came_up_together_share_evenly_from_the_first_moment():
    engines = fleet("P0 D0 D1")
    engines.now_s = 50.0
    for node in (D0, D1):
        engines.core.node_up(node, 50.0)
    assert share_of(engines, D0, 10.0) == pytest.approx(0.5, abs=0.1)


# -- breakers ----------------------------------------------------------------------------------------------------------


def open_breaker(core: RouterCore, node: NodeId, now_s: float = 0.0) -> None:
    assert [core.node_failed(node, "status", now_s) for _ in range(FAILURES)][-1]


def test_a_conversation_leaves_a_node_whose_breaker_is_open_and_says_why():
    engines = fleet("P0 D0 D1")
    engines.talk("c1")
    bad = home(engines)
    assert bad is not None
    open_breaker(engines.core, bad)
    moved = engines.talk("c1")
    assert moved.placement.decode != bad and moved.decision.reason is Reason.BREAKER_OPEN
    assert engines.core.openings == {(bad, "status"): 1}
    assert engines.core.breaker(bad, 0.0) == (BreakerState.OPEN, "status")


def test_half_open_lets_one_turn_through_and_its_answer_closes_it():
    engines = fleet("P0 D0 D1")
    open_breaker(engines.core, D0)
    engines.now_s = OPEN_S
    trials = [engines.start(f"c{at}") for at in range(6)]
    assert Counter(f.placement.decode for f in trials) == {D0: 1, D1: 5}
    (trial,) = (f for f in trials if f.placement.decode == D0)
    engines.finish(trial)
    assert engines.core.breaker(D0, engines.now_s)[0] is BreakerState.CLOSED
    assert D0 in {engines.start(f"later{at}").placement.decode for at in range(4)}


def test_a_trial_whose_client_leaves_makes_room_for_another():
    engines = fleet("P0 D0 D1")
    open_breaker(engines.core, D0)
    engines.now_s = OPEN_S
    trial = next(f for f in (engines.start(f"c{at}") for at in range(2)) if f.placement.decode == D0)
    engines.core.end(trial, engines.now_s, Outcome.CLIENT_GONE)
    assert D0 in {engines.start(f"later{at}").placement.decode for at in range(2)}


def test_a_prefill_node_whose_breaker_is_open_gets_no_prompts_until_its_trial():
    engines = fleet("P0 P1 D0")
    open_breaker(engines.core, P0)
    assert {engines.start(f"c{at}").placement.prefill for at in range(6)} == {P1}
    engines.now_s = OPEN_S
    assert [engines.start(f"d{at}").placement.prefill for at in range(6)].count(P0) == 1


@pytest.mark.parametrize(("names", "node"), [("P0 D0 D1", P0), ("P0 P1 D0", D0), ("P0 D0 R0", D0)])
def test_the_last_node_of_its_role_is_never_kept_out(names: str, node: NodeId):
    core = fleet(names).core
    assert not any(core.node_failed(node, "status", 0.0) for _ in range(5 * FAILURES))
    assert core.breaker(node, 0.0)[0] is BreakerState.CLOSED


def test_a_node_that_becomes_the_last_is_let_in_with_its_breaker_open():
    engines = fleet("P0 D0 D1")
    open_breaker(engines.core, D0)
    engines.core.node_down(D1)
    assert engines.start("c1").placement.decode == D0


def test_two_nodes_that_fail_together_are_never_both_kept_out():
    engines = fleet("P0 D0 D1")
    for _ in range(3 * FAILURES):
        engines.core.node_failed(D0, "status", 0.0)
        engines.core.node_failed(D1, "status", 0.0)
    states = {engines.core.breaker(node, 0.0)[0] for node in (D0, D1)}
    assert states == {BreakerState.OPEN, BreakerState.CLOSED}
    engines.start("c1")


def test_a_turn_that_failed_everywhere_else_may_try_a_node_with_an_open_breaker():
    engines = fleet("P0 D0 D1")
    open_breaker(engines.core, D0)
    flight = engines.start("c1")
    engines.to_decode(flight)
    engines.fail(flight)
    assert flight.placement.decode == D0


def test_a_prefill_that_hands_over_nothing_of_use_counts_as_a_failure_of_its_node():
    engines = fleet("P0 P1 D0")
    for at in range(2 * FAILURES):
        flight = engines.start(f"c{at}")
        if flight.placement.prefill == P0:
            engines.reply(flight, status=503)
        engines.finish(flight)
    assert engines.core.openings[P0, "handover"] == 1


def suspected(engines: Fleet, conversation: str, times: int) -> Flight:
    """A turn that so many nodes have failed."""
    flight = engines.start(conversation)
    for _ in range(times):
        leg = engines.to_decode(flight)
        engines.core.suspect(flight, leg.node, "error")
        try:
            engines.fail(flight)
        except NoNode:
            engines.core.end(flight, engines.now_s, Outcome.FAILED)
    return flight


def test_a_turn_that_no_node_can_answer_opens_no_breaker_however_often_it_is_sent():
    engines = fleet("P0 D0 D1 D2")
    for at in range(10 * FAILURES):
        engines.now_s += 1.0  # so that the budget of retries is no limit
        assert len(suspected(engines, f"c{at}", 3).failed) == 3
    assert not engines.core.openings


def test_a_node_is_to_blame_once_another_one_answers_the_turn_that_it_failed():
    engines = fleet("P0 D0 D1")
    for at in range(4 * FAILURES):
        engines.now_s += 1.0
        flight = engines.start(f"c{at}")
        if engines.to_decode(flight).node == D0:
            engines.core.suspect(flight, D0, "error")
            engines.fail(flight)
            engines.to_decode(flight)
            assert flight.failed, "nobody has answered it yet"
            engines.core.first_token(flight, engines.now_s)
            assert not flight.failed
        engines.finish(flight)
    assert engines.core.openings[D0, "error"] >= 1


def test_prefill_nodes_that_all_fail_what_is_answered_without_them_are_spared():
    engines = fleet("P0 P1 D0")
    for at in range(6 * FAILURES):
        engines.now_s += 1.0
        flight = engines.start(f"c{at}")
        for _ in range(2):
            engines.reply(flight, status=500)
        assert flight.placement.prefill is None
        engines.finish(flight)
    assert not engines.core.openings


@pytest.mark.parametrize("how", ["node_restarted", "node_down"])
def test_another_process_begins_with_a_closed_breaker(how: str):
    core = fleet("P0 D0 D1").core
    open_breaker(core, D0)
    getattr(core, how)(D0)
    assert core.breaker(D0, 0.0)[0] is BreakerState.CLOSED


# -- slow nodes --------------------------------------------------------------------------------------------------------


def stream(engines: Fleet, seconds: int, pace_s: dict[NodeId, float], conversations: int) -> list[dict[str, NodeId]]:
    """Every second each conversation has a turn that streams for a second at its node's pace; homes by second."""
    homes = []
    for _ in range(seconds):
        flights = [engines.start(f"c{at}") for at in range(conversations)]
        begun_s = engines.now_s
        for flight in flights:
            engines.to_decode(flight)
            engines.core.first_token(flight, begun_s)
        engines.now_s = begun_s + 1.0
        for flight in flights:
            flight.watch.token(engines.now_s, max(1, round(1.0 / pace_s[flight.placement.decode])))
        engines.core.sample_pace(engines.now_s)
        for flight in flights:
            engines.core.complete(flight, engines.now_s, flight.features.prompt_tokens, 20, None)
        homes.append({f"c{at}": flights[at].placement.decode for at in range(conversations)})
    return homes


def moves_of(homes: list[dict[str, NodeId]]) -> Counter[str]:
    return Counter(c for a, b in pairwise(homes) for c in a if a[c] != b[c])


def test_conversations_leave_a_node_that_is_ten_times_slower_and_say_why():
    engines = fleet("P0 D0 D1 D2")
    even = stream(engines, 10, {D0: 0.02, D1: 0.02, D2: 0.02}, 9)
    assert not moves_of(even)
    homes = stream(engines, 15, {D0: 0.2, D1: 0.02, D2: 0.02}, 9)
    assert D0 not in homes[-1].values()
    assert set(moves_of(homes).values()) == {1}
    assert engines.core.moves == {Reason.NODE_SLOW: 3}


def test_a_node_that_is_twice_as_slow_is_no_reason_to_go():
    engines = fleet("P0 D0 D1 D2")
    homes = stream(engines, 30, {D0: 0.04, D1: 0.02, D2: 0.02}, 9)
    assert not moves_of(homes) and not engines.core.pace.slow(D0)


def test_whichever_node_is_slow_when_no_conversation_moves_twice_within_its_dwell():
    engines = fleet("P0 D0 D1")
    homes = []
    for turn in range(20):
        slow = (D0, D1)[turn % 2]
        homes += stream(engines, 6, {D0: 0.02, D1: 0.02, slow: 0.4}, 4)
    seconds = len(homes)
    assert max(moves_of(homes).values()) <= seconds // DWELL_S + 1


def test_a_slow_node_is_tried_again_after_a_while():
    engines = fleet("P0 D0 D1")
    stream(engines, 10, {D0: 0.5, D1: 0.02}, 4)
    assert engines.core.pace.slow(D0)
    stream(engines, round(RETRY_S) + 1, {D0: 0.02, D1: 0.02}, 4)
    assert not engines.core.pace.slow(D0)
    assert D0 in {engines.start(f"new{at}").placement.decode for at in range(4)}


def test_a_stall_shows_while_it_lasts():
    engines = fleet("P0 D0 D1")
    stuck = engines.start("c0")
    other = engines.start("c1")
    for flight in (stuck, other):
        engines.to_decode(flight)
        engines.core.first_token(flight, 0.0)
    assert stuck.placement.decode != other.placement.decode
    for second in range(1, 6):
        other.watch.token(float(second), 50)
        engines.core.sample_pace(float(second))
    assert engines.core.pace.slow(stuck.placement.decode)


def test_where_all_nodes_are_slow_nobody_moves():
    engines = fleet("P0 D0 D1")
    homes = stream(engines, 20, {D0: 0.5, D1: 0.5}, 4)
    assert not moves_of(homes)


# -- turns of one conversation at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
def test_first_turns_of_one_conversation_at_once_go_to_one_decode_node_and_leave_none_bound_if_all_fail(named: bool):
    engines = fleet("P0 P1 D0 D1")
    flights = [engines.start("c1", named=named) for _ in range(50)]
    assert len({flight.placement.decode for flight in flights}) == 1
    engines.reply(flights[0], status=500)
    for flight in flights:
        engines.core.end(flight, 1.0, Outcome.FAILED)
    assert home(engines) is None
