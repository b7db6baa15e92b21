"""A decode leg with a prefill beside it: what is booked, what P's reply changes, and who is blamed."""

from __future__ import annotations

from router.connectors.mooncake import MooncakeConnector
from router.connectors.protocol import ConnectorOptions, Leg, LegReply, Purpose
from router.core import Flight, RouterCore
from router.current import Current
from router.placement import Node
from router.policy import Publication
from router.turn import NodeId, Reason, Role
from slos.objective import Outcome
from tests.router.fleet import CAPACITY, SLOS, Fleet
from tests.router.samples import policy

P0, P1, D0, D1 = (NodeId(name) for name in ("P0", "P1", "D0", "D1"))
NOTHING = (0, 0, 0, 0)


def fleet(names: str = "P0 P1 D0 D1") -> Fleet:
    nodes = [
        Node(NodeId(name), Role.PREFILL if name[0] == "P" else Role.DECODE, CAPACITY, engine_id=f"engine of {name}")
        for name in names.split()
    ]
    addresses = {node.id: f"http://{node.id}:8998" for node in nodes}
    connector = MooncakeConnector(ConnectorOptions(addresses=addresses))
    return Fleet(RouterCore(Current(Publication(1, {"main": policy(pin_x=0.0)})), nodes, connector, SLOS))


def reply(run: Fleet, flight: Flight, reason: str = "length", status: int = 200) -> Leg:
    answer = LegReply(status, flight.features.prompt_tokens, 0, None, run.now_s, reason)
    return run.core.next_leg(flight, answer, run.now_s)


def both(leg: Leg) -> tuple[NodeId, NodeId]:
    assert leg.purpose is Purpose.DECODE and leg.beside is not None
    return leg.node, leg.beside.node


def at_rest(run: Fleet) -> bool:
    return all(run.load(node) == NOTHING for node in run.core.nodes)


def test_both_are_booked_from_the_start_and_p_until_its_own_reply():
    run = fleet()
    flight = run.start()
    leg = flight.sent
    assert both(leg) == (D0, P0)
    assert run.load(P0)[0] == 1 and run.load(D0)[2] == 1
    assert reply(run, flight) is leg
    assert run.load(P0)[0] == 0 and run.load(D0)[2] == 1
    assert run.core.residency.held(P0, flight.conversation.key) > 0
    record = run.finish(flight)
    assert (record.outcome, record.attempts, record.placement.prefill) == (Outcome.COMPLETED, 1, P0)
    assert at_rest(run)


def test_ps_reply_after_ds_first_token_ends_ps_load_and_is_not_judged():
    run = fleet()
    flight = run.start()
    leg = flight.sent
    run.core.first_token(flight, run.now_s)
    assert run.load(P0)[0] == 1, "P is not done"
    assert reply(run, flight, "stop") is leg
    assert run.load(P0) == NOTHING
    assert run.finish(flight).attempts == 1 and at_rest(run)


def test_a_turn_that_ends_before_ps_reply_leaves_nothing_booked():
    run = fleet()
    flight = run.start()
    run.finish(flight)
    assert at_rest(run)


def test_a_p_that_keeps_nothing_for_d_is_avoided_and_the_next_name_is_another():
    run = fleet()
    flight = run.start()
    first = flight.sent
    second = reply(run, flight, "stop")
    assert both(second)[1] == P1
    assert first.beside is not None and second.beside is not None
    assert first.beside.kv_transfer_params != second.beside.kv_transfer_params
    assert (flight.decision.reason, flight.attempts) == (Reason.PREFILL_FAILED, 2)
    assert run.load(P0) == NOTHING and run.load(D0)[2] + run.load(D1)[2] == 1
    third = reply(run, flight, status=500)
    assert (third.purpose, third.beside, third.kv_transfer_params) == (Purpose.DECODE, None, None)
    assert run.finish(flight).attempts == 3 and at_rest(run)


def test_a_p_that_fails_is_avoided_and_d_keeps_the_turn_and_what_it_holds():
    run = fleet()
    run.talk()
    flight = run.start()
    beside = flight.sent.beside
    before = flight.belief
    assert beside is not None and before is not None and before.tokens > 0
    again = run.core.leg_failed(flight, run.now_s, beside)
    assert (again.node, again.beside and again.beside.node) == (D0, P1)
    assert flight.decision.reason is Reason.PREFILL_FAILED
    assert flight.belief is not None and flight.belief.tokens == before.tokens
    run.finish(flight)
    assert at_rest(run)


def test_a_d_that_fails_is_avoided_and_p_is_asked_again():
    run = fleet()
    run.talk()
    flight = run.start()
    again = run.core.leg_failed(flight, run.now_s, flight.sent)
    assert again.node == D1 and again.beside is not None
    assert flight.decision.reason is Reason.DECODE_FAILED
    assert run.core.residency.held(D0, flight.conversation.key) == 0, "nobody knows what it still holds"
    run.finish(flight)
    assert at_rest(run)


def test_both_are_avoided_where_either_may_have_failed_the_other():
    run = fleet()
    flight = run.start()
    beside = flight.sent.beside
    assert beside is not None
    assert both(run.core.leg_failed(flight, run.now_s, flight.sent, beside)) == (D1, P1)
    assert flight.decision.reason is Reason.DECODE_FAILED


def test_a_p_that_has_not_told_its_engine_id_gets_no_leg():
    run = fleet()
    run.core.nodes[P0].engine_id = ""
    flight = run.start()
    assert both(flight.sent)[1] == P1
    run.core.nodes[P1].engine_id = ""
    other = run.start("other").sent
    assert (other.purpose, other.beside, other.kv_transfer_params) == (Purpose.DECODE, None, None)
