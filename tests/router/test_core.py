"""The router without its sockets: what a turn books, what a failure changes, and what is left at the end."""

from __future__ import annotations

import pytest

from router.blocks import Removed, Stored, session_of
from router.connectors.protocol import LegReply, Purpose
from router.core import MAX_ATTEMPTS, UNKNOWN_WORK_MS, Waiting
from router.decision import Decision
from router.placement import NoNode
from router.policy import Publication, Weights
from router.residency import Source
from router.reuse import Verdict
from router.turn import Reason, Route
from slos.counts import Count
from slos.objective import Outcome
from tests.router.fleet import LEASE_S, fleet
from tests.router.samples import D0, D1, LATENCY, MODEL, P0, P1, R0, key, policy

LOCAL, TRANSFER = Route.APPEND_LOCAL, Route.PREFILL_TRANSFER
NOTHING = (0, 0, 0, 0)


# -- a turn without trouble --------------------------------------------------------------------------------------------


def test_a_first_turn_goes_through_p_and_then_to_d():
    run = fleet()
    flight = run.start(new_tokens=3000)
    assert flight.leg is not None
    assert (flight.leg.purpose, flight.leg.node) == (Purpose.PREFILL, P0)
    leg = run.reply(flight)
    assert (leg.purpose, leg.node, leg.kv_transfer_params) == (Purpose.DECODE, D0, {"from": P0})
    record = run.finish(flight)
    assert (record.decision.reason, record.placement.realised) == (Reason.FIRST_TURN, TRANSFER)


def test_a_later_turn_whose_context_d_holds_goes_to_d_alone():
    run = fleet()
    run.talk(new_tokens=3000)
    flight = run.start(new_tokens=60)
    assert flight.leg is not None
    assert (flight.leg.purpose, flight.leg.node, flight.leg.not_after_s) == (Purpose.DECODE, D0, None)
    assert (flight.decision.route, flight.decision.reason) == (LOCAL, Reason.SCORE)


def test_a_later_turn_knows_its_context_and_what_each_side_lacks():
    run = fleet()
    run.talk(new_tokens=3000)  # 50 tokens of answer: D0 holds 3049, P0 the prompt
    features = run.start(new_tokens=60).features
    assert (features.turn, features.n_ctx, features.n_in, features.prompt_tokens) == (2, 3050, 60, 3110)
    assert features.uncached_d == 3110 - 3040  # 190 whole blocks
    assert features.uncached_p == 3110 - 2992
    assert (features.prefill, features.decode, features.resident, features.replica) == (P0, D0, True, False)
    assert (features.model, features.topology, features.d_kv_capacity_tokens) == (MODEL, "2P_2D", 100_000)


def test_turns_are_numbered_in_order():
    run = fleet()
    assert [run.talk().turn for _ in range(4)] == [1, 2, 3, 4]
    assert run.talk("other").turn == 1


def test_a_turn_that_knows_its_own_number_and_history_is_believed():
    run = fleet()
    run.talk()
    flight = run.start(new_tokens=40, number=5, history_tokens=2000)
    assert (flight.number, flight.features.n_ctx, flight.features.prompt_tokens) == (5, 2000, 2040)
    run.finish(flight)
    assert run.talk().turn == 6


def test_a_conversation_that_this_router_has_not_seen_begins_with_the_history_of_its_request():
    features = fleet().start(new_tokens=40, history_tokens=2000).features
    assert (features.turn, features.n_ctx, features.prompt_tokens, features.uncached_d) == (1, 2000, 2040, 2040)


def test_a_retry_of_an_answered_turn_does_not_set_the_conversation_back():
    run = fleet()
    for _ in range(3):
        run.talk()
    run.finish(run.start(number=2, history_tokens=150))
    assert run.talk().turn == 4


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CLIENT_GONE, Outcome.CLIENT_ERROR])
def test_a_turn_that_was_not_answered_is_no_turn(outcome: Outcome):
    run = fleet()
    run.talk()
    flight = run.start()
    record = run.core.end(flight, run.now_s, outcome)
    assert (record.turn, record.outcome) == (2, outcome)
    again = run.start()
    assert (again.number, again.features.n_ctx) == (2, 150)


def test_two_turns_at_once_are_two_tries_of_the_same_turn():
    run = fleet()
    first, second = run.start(), run.start()
    run.finish(first)
    run.finish(second)
    assert (first.number, second.number) == (1, 1)
    assert run.talk().turn == 2


def test_new_conversations_spread_over_the_decode_nodes():
    run = fleet()
    homes = [run.talk(f"c{at}", new_tokens=1000).placement.decode for at in range(6)]
    assert homes[:2] == [D0, D1]
    assert homes.count(D0) == 3


def test_a_conversation_on_a_replica_stays_there_and_is_local():
    run = fleet("P0 R0")
    assert run.talk().placement.decode == R0
    record = run.talk()
    assert (record.decision.reason, record.placement.prefill) == (Reason.REPLICA, None)


def test_a_request_that_a_transfer_cannot_serve_is_local_even_on_its_first_turn():
    record = fleet().talk(local_only=True)
    assert (record.decision.reason, record.placement.prefill) == (Reason.LOCAL_ONLY, None)


# -- what is booked where ----------------------------------------------------------------------------------------------


def test_a_transfer_is_first_work_for_p_then_for_its_link_and_then_nothing():
    run = fleet()
    flight = run.start(new_tokens=3000)
    p, d = run.core.load[P0], run.core.load[D0]
    assert p.prefill.ms(0.0) == pytest.approx(LATENCY.prefill_ms(3000, 3000))
    assert (run.load(P0), run.load(D0)) == ((1, 0, 0, 0), NOTHING)
    run.reply(flight)
    assert p.link.ms(0.0) == pytest.approx(LATENCY.transfer_ms(3000))
    assert (run.load(P0), run.load(D0)) == ((0, 1, 0, 0), (0, 0, 1, 3256))
    run.core.first_token(flight, run.now_s)
    assert (run.load(P0), run.load(D0)) == (NOTHING, (0, 0, 1, 3256))
    run.finish(flight)
    assert (d.sequences, d.kv_tokens, run.load(D0)) == (0, 0, NOTHING)


def test_a_local_turn_is_work_for_d_until_its_first_token():
    run = fleet()
    run.talk(new_tokens=3000)
    flight = run.start(new_tokens=60)
    assert run.core.load[D0].prefill.ms(run.now_s) == pytest.approx(LATENCY.prefill_ms(70, 3110))
    assert run.load(D0) == (1, 0, 1, 3110 + flight.features.n_out)
    run.core.first_token(flight, run.now_s)
    assert run.load(D0)[0] == 0
    assert (run.load(P0), run.load(P1)) == (NOTHING, NOTHING)


def test_without_a_table_a_prompt_is_a_second_and_a_millisecond_a_token():
    run = fleet(held=policy(tables={}))
    run.start("c1", 3000)
    assert run.core.load[P0].prefill.ms(0.0) == UNKNOWN_WORK_MS + 3000
    assert run.start("c2", 10).placement.prefill == P1


def test_the_next_turn_sees_the_work_before_it():
    run = fleet("P0 D0")
    run.talk(new_tokens=3000)
    waiting = run.start("other", 5000)
    decoding = run.start(new_tokens=60)
    features = run.start("third", 100).features
    assert features.p_backlog_ms == pytest.approx(LATENCY.prefill_ms(5000, 5000))
    assert features.d_backlog_ms == pytest.approx(LATENCY.prefill_ms(70, 3110))
    assert (features.d_batch, features.d_kv_tokens) == (1, decoding.booked_tokens)
    run.reply(waiting)
    assert run.start("fourth").features.link_backlog_ms == pytest.approx(LATENCY.transfer_ms(5000))


def test_prompts_spread_over_p_nodes():
    run = fleet()
    assert [run.start(f"c{at}", 3000).placement.prefill for at in range(4)] == [P0, P1, P0, P1]


def test_a_transfer_that_moves_to_a_roomier_d_books_the_link_for_all_that_this_one_lacks():
    run = fleet(held=policy(pin_x=0.0), capacity=20_000)
    run.talk("c1", 3000)
    run.start("blocker", 100)
    run.core.load[D0].kv_tokens = 19_000
    flight = run.start("c1", 100)
    assert (flight.features.decode, flight.placement.decode) == (D0, D1)
    run.reply(flight)
    assert flight.placement.prefill is not None
    link = run.core.load[flight.placement.prefill].link
    assert link.ms(run.now_s) == pytest.approx(LATENCY.transfer_ms(3150))


def test_the_expected_answer_follows_the_conversation_and_max_tokens_caps_it():
    run = fleet()
    assert run.start("new").features.n_out == 256
    for _ in range(4):
        run.finish(run.start("brief"), output_tokens=10)
    assert run.start("brief").features.n_out < 40
    assert run.start("new", max_tokens=7).features.n_out == 7


# -- what a failure changes --------------------------------------------------------------------------------------------


def test_a_turn_whose_p_fails_goes_to_the_other_p_and_then_local():
    run = fleet()
    flight = run.start()
    leg = run.reply(flight, status=500)
    assert (leg.purpose, leg.node) == (Purpose.PREFILL, P1)
    assert (flight.decision.route, flight.decision.reason) == (TRANSFER, Reason.PREFILL_FAILED)
    assert run.load(P0) == NOTHING
    leg = run.reply(flight, status=503)
    assert (leg.purpose, leg.node) == (Purpose.DECODE, D0)
    assert (flight.decision.route, flight.decision.reason) == (LOCAL, Reason.PREFILL_FAILED)
    record = run.finish(flight)
    assert (record.attempts, record.placement.realised, record.outcome) == (3, LOCAL, Outcome.COMPLETED)
    assert all(run.load(node) == NOTHING for node in run.core.nodes)


def test_a_p_that_does_not_answer_at_all_is_a_p_that_failed():
    run = fleet()
    flight = run.start()
    leg = run.fail(flight)
    assert (leg.node, flight.decision.reason, flight.attempts) == (P1, Reason.PREFILL_FAILED, 2)


def test_a_p_that_failed_one_turn_is_asked_again_by_the_next():
    run = fleet("P0 D0")
    run.reply(run.start(), status=500)
    assert run.start("other").placement.prefill == P0


def test_a_reply_that_comes_too_late_for_its_lease_is_planned_again_on_any_p():
    run = fleet("P0 D0")
    flight = run.start()
    run.now_s = 20.0
    leg = run.reply(flight, age_s=LEASE_S + 0.1)
    assert (leg.purpose, leg.node) == (Purpose.PREFILL, P0)
    assert (flight.decision.reason, flight.attempts) == (Reason.PREFILL_FAILED, 2)
    assert (run.load(P0), run.load(D0)) == ((1, 0, 0, 0), NOTHING)
    assert flight.features.uncached_p < 100, "P0 has the prompt already"
    assert run.reply(flight, age_s=LEASE_S).purpose is Purpose.DECODE


def test_a_turn_whose_lease_always_runs_out_goes_local_on_its_last_attempt():
    run = fleet("P0 D0")
    flight = run.start()
    run.now_s = 60.0
    for _ in range(MAX_ATTEMPTS - 2):
        assert run.reply(flight, age_s=50.0).purpose is Purpose.PREFILL
    leg = run.reply(flight, age_s=50.0)
    assert (leg.purpose, leg.node, flight.attempts) == (Purpose.DECODE, D0, MAX_ATTEMPTS)
    assert (flight.decision.route, flight.decision.reason) == (LOCAL, Reason.PREFILL_FAILED)
    assert run.load(P0) == NOTHING
    record = run.finish(flight)
    assert (record.outcome, record.placement.realised) == (Outcome.COMPLETED, LOCAL)
    assert all(run.load(node) == NOTHING for node in run.core.nodes)


def test_after_so_many_attempts_a_turn_is_given_up():
    run = fleet("P0 D0 D1 D2 D3 D4")
    flight = run.start()
    for _ in range(MAX_ATTEMPTS - 1):
        run.to_decode(flight)
        run.fail(flight)
    assert flight.sent.purpose is Purpose.DECODE, "the last one needs no P"
    with pytest.raises(NoNode, match=f"gave up after {MAX_ATTEMPTS} attempts"):
        run.fail(flight)
    record = run.core.end(flight, run.now_s, Outcome.FAILED)
    assert record.attempts == MAX_ATTEMPTS
    assert all(run.load(node) == NOTHING for node in run.core.nodes)
    assert run.core.flights() == []


def test_a_d_that_fails_before_the_first_token_loses_the_turn_to_another_d():
    run = fleet()
    run.talk(new_tokens=3000)
    flight = run.start(new_tokens=60)
    leg = run.fail(flight)
    assert flight.decision.reason is Reason.DECODE_FAILED
    assert (flight.features.decode, flight.features.resident) == (D1, False)
    assert flight.features.uncached_d == 3110
    assert run.core.residency.held(D0, key()) == 0, "nobody knows what it still holds"
    assert run.load(D0) == NOTHING
    assert leg.node in (P0, P1, D1)
    record = run.finish(flight)
    assert (record.placement.decode, record.attempts) == (D1, 2)
    assert run.start().features.decode == D1


def test_a_d_that_fails_after_a_transfer_does_not_make_p_suspect():
    run = fleet("P0 D0 D1")
    flight = run.start()
    run.reply(flight)
    leg = run.fail(flight)
    assert (leg.purpose, leg.node, flight.placement.decode) == (Purpose.PREFILL, P0, D1)
    assert (run.load(P0), run.load(D0)) == ((1, 0, 0, 0), NOTHING)


def test_when_every_d_has_failed_there_is_no_node():
    run = fleet()
    flight = run.start()
    run.reply(flight)
    run.fail(flight)
    run.reply(flight)
    with pytest.raises(NoNode):
        run.fail(flight)
    record = run.core.end(flight, run.now_s, Outcome.FAILED)
    assert (record.outcome, record.attempts) == (Outcome.FAILED, 2)
    assert all(run.load(node) == NOTHING for node in run.core.nodes)


def test_a_stream_that_breaks_leaves_nothing_and_the_belief_in_its_cache_is_gone():
    run = fleet()
    run.talk(new_tokens=3000)
    flight = run.start(new_tokens=60)
    run.core.first_token(flight, run.now_s)
    record = run.core.end(flight, run.now_s, Outcome.FAILED, output_tokens=12)
    assert (record.output_tokens, record.ttft_s) == (12, 0.0)
    assert run.core.residency.held(D0, key()) == 0
    assert run.load(D0) == NOTHING


def test_a_client_that_leaves_while_p_works_does_not_touch_ds_cache():
    run = fleet(held=policy(pin_x=0.0))
    run.talk(new_tokens=3000)
    flight = run.start()
    run.core.end(flight, run.now_s, Outcome.CLIENT_GONE)
    assert run.core.residency.held(D0, key()) == 3049
    assert all(run.load(node) == NOTHING for node in run.core.nodes)


def test_a_turn_that_nobody_can_decode_is_refused_and_leaves_nothing():
    run = fleet("P0 D0")
    run.core.node_down(D0)
    with pytest.raises(NoNode):
        run.accept()
    assert run.core.flights() == []
    assert run.core.conversations.open(key(), 0.0).in_flight == 0
    assert run.load(P0) == NOTHING
    assert run.core.counts.snapshot()["success"] == Count(valid=1, bad=1), "an outage spends the success budget"
    assert run.core.counts.snapshot()["tpot"] == Count(excluded=1), "it has no latency"


def test_without_p_nodes_turns_are_local_and_say_why():
    run = fleet("D0")
    assert run.talk().decision.reason is Reason.P_UNAVAILABLE
    assert run.talk().decision.reason is Reason.P_UNAVAILABLE


# -- nodes come and go -------------------------------------------------------------------------------------------------


def test_the_topology_counts_usable_nodes_by_role():
    run = fleet("P0 P1 D0 D1 R0")
    assert run.core.topology == "2P_2D_1R"
    run.core.node_down(P1)
    run.core.node_down(R0)
    assert run.core.topology == "1P_2D"
    run.core.node_down(P0)
    assert run.core.topology == "2D"
    run.core.node_up(P1)
    assert run.core.topology == "1P_2D"


def test_another_topologys_table_is_used_while_a_node_is_down():
    run = fleet()
    run.talk(new_tokens=3000)
    run.core.node_down(P1)
    decision = run.start().decision
    assert (decision.reason, decision.table_exact) == (Reason.SCORE, False)


def test_a_d_that_goes_down_takes_its_conversations_homes_and_its_cache_with_it():
    run = fleet()
    run.talk("c1", 3000)
    run.talk("c2", 3000)
    run.core.node_down(D0)
    assert (run.core.residency.held(D0, key("c1")), run.core.residency.held(D1, key("c2"))) == (0, 3049)
    moved, stayed = run.start("c1").features, run.start("c2").features
    assert (moved.decode, moved.resident, moved.uncached_d) == (D1, False, 3150)
    assert (stayed.decode, stayed.resident) == (D1, True)


def test_a_node_that_comes_back_is_empty_and_takes_part_again():
    run = fleet()
    run.talk("c1", 3000)
    run.core.node_down(D0)
    run.core.node_up(D0)
    features = run.start("c1", 60).features
    assert (features.decode, features.resident, features.uncached_d) == (D0, False, 3110)


def test_a_p_that_goes_down_keeps_no_backlog_and_no_homes_change():
    run = fleet()
    run.talk("c1", 3000)
    run.start("c2", 3000)
    run.start("c3", 3000)
    run.core.node_down(P0)
    assert run.core.load[P0].prefill.ms(run.now_s) == 0.0
    assert run.core.residency.held(P0, key("c1")) == 0
    assert run.start("c1").features.resident


def test_the_late_end_of_a_turn_on_a_node_that_went_down_and_came_back_leaves_no_debt():
    run = fleet("P0 D0")
    flight = run.start()
    run.reply(flight)
    run.core.node_down(D0)
    run.core.node_up(D0)
    fresh = run.start("other")
    run.reply(fresh)
    run.core.end(flight, run.now_s, Outcome.FAILED)
    assert run.load(D0) == (0, 0, 1, fresh.booked_tokens)
    assert run.core.residency.held(D0, key("other")) == fresh.booked_tokens


def test_an_engine_that_had_evicted_is_believed_and_so_is_all_that_was_older():
    run = fleet("P0 D0")
    run.talk("old", 1000)
    run.talk("c1", 1000)
    run.talk("new", 1000)
    run.finish(run.start("c1"), cached_tokens=0)
    assert run.core.residency_misses == 1
    held = {name: run.core.residency.held(D0, key(name)) for name in ("old", "c1", "new")}
    assert held == {"old": 0, "c1": 1199, "new": 1049}


def test_a_hit_as_large_as_believed_is_no_miss():
    run = fleet("P0 D0")
    run.talk("old", 1000)
    run.talk("c1", 1000)
    flight = run.start("c1")
    run.finish(flight, cached_tokens=flight.features.prompt_tokens - flight.features.uncached_d)
    assert run.core.residency_misses == 0
    assert run.core.residency.held(D0, key("old")) == 1049


def test_on_a_transferred_turn_the_cached_tokens_are_ps_and_say_nothing_about_d():
    run = fleet("P0 D0", policy(pin_x=0.0))
    run.talk("c1", 1000)
    run.finish(run.start("c1"), cached_tokens=0)
    assert run.core.residency_misses == 0


def test_a_p_that_had_evicted_is_believed_too():
    run = fleet("P0 D0", policy(pin_x=0.0))
    run.talk("old", 1000)
    run.talk("c1", 1000)
    run.talk("new", 1000)
    flight = run.start("c1")
    assert flight.features.uncached_p < 200
    params = {"from": P0}
    run.core.next_leg(flight, LegReply(200, flight.features.prompt_tokens, 0, params, run.now_s), run.now_s)
    run.finish(flight)
    held = {name: run.core.residency.held(P0, key(name)) for name in ("old", "c1", "new")}
    assert held == {"old": 0, "c1": 1150, "new": 1000}
    assert run.core.residency.checks[P0, Source.LEDGER, Verdict.EVICTED] == 1
    assert run.core.residency_misses == 0, "it is not D's"


def test_a_p_that_does_not_say_what_it_had_teaches_nothing():
    run = fleet("P0 D0", policy(pin_x=0.0))
    run.talk("old", 1000)
    run.talk("c1", 1000)
    flight = run.start("c1")
    run.core.next_leg(flight, LegReply(200, flight.features.prompt_tokens, None, {}, run.now_s), run.now_s)
    assert run.core.residency.held(P0, key("old")) == 1000
    assert not run.core.residency.checks


def test_an_answer_that_comes_back_changed_is_no_eviction_and_is_not_believed_in_again():
    run = fleet("P0 D0")
    run.talk("old", 1000)
    run.talk("c1", 1000)
    run.finish(run.start("c1"), cached_tokens=992)  # the prompt of turn 1, without its answer
    assert run.core.residency.checks[D0, Source.LEDGER, Verdict.CHANGED] == 1
    assert run.core.residency.held(D0, key("old")) == 1049, "nothing was evicted"
    features = run.start("c1").features
    assert (features.n_ctx, features.uncached_d) == (1200, 1300 - 1136), "the prompt of 1150 tokens is held, in blocks"


def test_a_models_new_conversations_begin_with_what_its_others_taught():
    run = fleet("P0 D0")
    run.talk("c1", 1000)
    run.finish(run.start("c1"), cached_tokens=992)
    run.talk("c2", 1000)
    features = run.start("c2").features
    assert features.uncached_d == features.prompt_tokens - 992


def test_a_prompt_that_never_repeats_does_not_empty_the_ledger_again_and_again():
    run = fleet("P0 D0")
    run.talk("c1", 1000)
    run.finish(run.start("c1"), cached_tokens=0)
    run.talk("other", 1000)
    run.finish(run.start("c1"), cached_tokens=0)
    run.finish(run.start("c1"), cached_tokens=0)
    assert run.core.residency.held(D0, key("other")) == 1049
    assert run.core.residency.checks[D0, Source.LEDGER, Verdict.EVICTED] == 1


def test_misses_teach_that_others_use_the_node_and_idle_conversations_are_believed_less():
    run = fleet("P0 D0")
    run.talk("c1", 1000)
    run.talk("c2", 1000)
    run.now_s += 60.0
    run.finish(run.start("c1"), cached_tokens=0)
    assert run.core.residency.ledger(D0).foreign_hz > 500
    run.talk("c3", 1000)
    run.now_s += 5.0
    run.start("other")
    assert run.core.residency.held(D0, key("c3")) == 1049
    run.now_s += 400.0
    run.start("another")
    assert run.core.residency.held(D0, key("c3")) == 0


def test_a_node_that_restarted_holds_nothing_and_stays_in_use():
    run = fleet("P0 D0")
    run.talk("c1", 1000)
    run.core.node_restarted(D0)
    features = run.start("c1").features
    assert (features.resident, features.uncached_d) == (False, features.prompt_tokens)
    assert run.core.topology == "1P_1D"


def test_kv_that_others_use_counts_for_the_guard_and_the_ledger_but_not_on_p():
    run = fleet("P0 D0")
    for node in (P0, D0):
        run.core.nodes[node].introduced = True
        run.core.node_usage(node, 0.97)
    assert run.core.load[P0].kv_in_use_tokens == 0
    run.core.node_usage(D0, 0.0)
    run.talk("c1", 1000)
    run.core.node_usage(D0, 0.949)
    flight = run.start("c1", 200)
    assert (flight.features.d_kv_tokens, flight.decision.reason) == (94_900, Reason.KV_GUARD)
    assert run.core.residency.held(D0, key("c1")) == 1049
    run.core.node_usage(D0, 0.965)
    assert run.core.residency.held(D0, key("c1")) == 0


def test_usage_that_is_the_routers_own_is_nobody_elses():
    run = fleet("P0 D0")
    run.core.nodes[D0].introduced = True
    flight = run.start("c1", 3000)
    run.reply(flight)
    run.core.node_usage(D0, (flight.booked_tokens + 1500) / 100_000)
    assert run.core.load[D0].others_kv_tokens == 0, "rounding"
    run.core.node_usage(D0, (flight.booked_tokens + 5000) / 100_000)
    assert run.core.load[D0].others_kv_tokens == 5000


def test_a_node_whose_events_are_followed_says_itself_what_it_holds():
    run = fleet("P0 D0")
    blocks = run.core.residency.follow(D0)
    session = session_of(key("c1"))
    flight = run.start("c1", 1000)
    run.reply(flight)
    blocks.take(0, [Stored(None, range(65), 16, session)])
    run.finish(flight)
    assert run.core.residency.held(D0, key("c1")) == 1040
    blocks.take(1, [Removed([64, 63])])
    flight = run.start("c1")
    assert flight.features.uncached_d == flight.features.prompt_tokens - 1008
    run.finish(flight, cached_tokens=0)
    assert run.core.residency.checks[D0, Source.EVENTS, Verdict.EVICTED] == 1
    assert run.core.residency.ledger(D0).foreign_hz == 0.0, "what the events got wrong teaches the ledger nothing"


def test_what_p_stores_of_a_prompt_before_it_replies_is_not_what_it_was_believed_to_have():
    run = fleet("P0 D0", policy(pin_x=0.0))
    blocks = run.core.residency.follow(P0)
    for at, new_tokens in enumerate((1000, 500)):
        flight = run.start("c1", new_tokens)
        had = 64 * at
        blocks.take(at, [Stored(had - 1 if had else None, range(had, 64 + 33 * at), 16, session_of(key("c1")))])
        run.finish(flight)
    assert run.core.residency.held(P0, key("c1")) == 97 * 16
    assert run.core.residency.checks == {(P0, Source.EVENTS, Verdict.HIT): 1}


# -- policy ------------------------------------------------------------------------------------------------------------


def test_a_turn_keeps_the_decision_of_the_policy_it_was_accepted_under():
    run = fleet()
    run.talk(new_tokens=3000)
    flight = run.start(new_tokens=60)
    run.core.current.swap(Publication(2, {"main": policy(weights=Weights(0, 1), version=8)}))
    assert run.finish(flight).decision.policy_version == 7
    record = run.talk(new_tokens=60)
    assert (record.decision.route, record.decision.policy_version) == (TRANSFER, 8)


def test_a_decode_nodes_turns_act_on_its_arm():
    arms = {"main": policy(), "canary": policy(pin_x=0.0, version=8)}
    run = fleet(arms=arms, node_arm={D1: "canary"})
    for name in ("c1", "c2"):
        run.talk(name, 3000)
    assert [run.talk(name).decision.policy_version for name in ("c1", "c2")] == [7, 8]


def test_the_whole_fleets_rate_is_used_where_it_is_known_and_the_routers_own_elsewhere():
    assert fleet(fleet_qps=12.5).start().features.qps == 12.5
    run = fleet()
    for at in range(50):
        run.now_s = at / 4
        run.accept(f"c{at}")
    assert run.accept().features.qps == pytest.approx(4.0, rel=0.2)


def test_another_decider_decides():
    def local(held, features, coin):
        return Decision(LOCAL, Reason.RULE, 1.0, held.version)

    record = fleet(decider=local).talk()
    assert (record.decision.reason, record.went_local) == (Reason.RULE, True)


# -- what is reported --------------------------------------------------------------------------------------------------


def test_turns_wait_until_their_first_token_and_are_reported_with_their_age():
    run = fleet()
    first = run.start("c1")
    run.now_s = 3.0
    second = run.start("c2", streaming=False)
    run.now_s = 5.0
    assert run.core.waiting(5.0) == [Waiting(MODEL, 1, True, 5.0), Waiting(MODEL, 1, False, 2.0)]
    run.reply(first)
    run.core.first_token(first, 5.0)
    assert run.core.waiting(6.0) == [Waiting(MODEL, 1, False, 3.0)]
    run.core.end(second, 6.0, Outcome.CLIENT_GONE)
    assert run.core.waiting(7.0) == []
    assert run.core.flights() == [first]


def test_a_record_holds_what_happened():
    run = fleet()
    run.talk(new_tokens=3000)
    run.now_s = 10.0
    flight = run.start(new_tokens=60)
    run.now_s = 10.25
    run.core.first_token(flight, run.now_s)
    run.now_s = 12.25
    flight.watch.token(run.now_s)
    record = run.core.complete(flight, 12.5, 3111, 41, 3040)
    assert (record.request_id, record.model, record.turn, record.streaming) == ("r2", MODEL, 2, True)
    assert (record.accepted_s, record.ended_s, record.e2e_s, record.waited_s) == (10.0, 12.5, 2.5, 2.5)
    assert record.ttft_s == 0.25
    assert record.tpot_s == pytest.approx(0.05)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (3111, 41, 3040)
    assert (record.attempts, record.outcome, record.went_local) == (1, Outcome.COMPLETED, True)
    assert (record.features, record.decision, record.placement) == (
        flight.features,
        flight.decision,
        flight.placement,
    )
    assert run.core.residency.held(D0, key()) == 3151  # the last token has no KV yet


def test_every_ended_turn_is_counted_by_every_slo():
    run = fleet()
    run.talk("c1")
    run.talk("c1")  # good TTFT, good TPOT
    slow = run.start("c1")
    run.now_s += 2.5
    run.finish(slow, output_tokens=2)  # bad TTFT, bad TPOT
    run.core.end(run.start("c2"), run.now_s, Outcome.FAILED)
    run.core.end(run.start("c1"), run.now_s, Outcome.CLIENT_GONE)
    assert run.core.counts.snapshot() == {
        "later-ttft": Count(valid=2, bad=1, excluded=3),
        "tpot": Count(valid=4, bad=2, excluded=1),
        "success": Count(valid=4, bad=1, excluded=1),
    }


def test_a_flight_is_in_flight_until_it_has_ended():
    run = fleet()
    flight = run.start()
    assert run.core.is_in_flight(flight)
    run.finish(flight)
    assert not run.core.is_in_flight(flight)
    assert not run.core.is_in_flight(fleet().start()), "the same request id on another core is another turn"
