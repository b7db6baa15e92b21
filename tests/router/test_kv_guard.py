"""The KV guard and what it watches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision import decide
from router.kv_guard import EVICTING, MIN_TOKENS, OVERRUN, WINDOW_S, Churn, full, too_dear
from router.membership.view import node_view
from router.turn import Reason, Route
from tests.router.fleet import CAPACITY, fleet
from tests.router.samples import D0, P0, TABLE, features, key, policy

EVICTED = {"n_in": 100, "n_ctx": 4000, "uncached_d": 4100, "evicted_d": 4000}


def test_a_node_is_full_where_its_sequences_and_this_turn_pass_the_share():
    turn = features(d_kv_tokens=90_700, d_kv_capacity_tokens=100_000)  # and 4100 + 200
    assert not full(turn, 0.95) and full(turn, 0.949)


def test_an_evicted_turn_goes_local_only_where_it_saves_more_than_it_costs_others():
    busy = features(**EVICTED, p_backlog_ms=1000.0)
    saved_ms, cost, _ = TABLE.score(busy)
    assert 0 < saved_ms < cost
    cheap = decide(policy(0.02), busy, 0.5)
    assert (cheap.route, cheap.reason, cheap.propensity) == (Route.PREFILL_TRANSFER, Reason.KV_SHORT, 1.0)
    stuck = features(**EVICTED, p_backlog_ms=1000.0 + cost)
    assert decide(policy(0.02), stuck, 0.5).route is Route.APPEND_LOCAL, "it is no ban: P may be the slower by far"


def test_the_price_of_an_evicted_turn_is_the_higher_of_the_two():
    turn = features(**EVICTED, p_backlog_ms=8000.0)
    saved_ms, cost, _ = TABLE.score(turn)
    assert saved_ms > cost
    dear = decide(policy(2 * saved_ms / cost), turn, 0.5)
    assert (dear.route, dear.reason) == (Route.PREFILL_TRANSFER, Reason.SCORE)


def test_a_crowded_node_that_evicts_takes_no_local_turn_that_costs_others_more_than_it_saves():
    turn = features(p_backlog_ms=100.0, uncached_d=3000, uncached_p=3000, d_kv_tokens=65_000, d_evicted_share=0.06)
    saved_ms, cost, _ = TABLE.score(turn)
    assert 0 < saved_ms < cost
    assert decide(policy(0.02), turn, 0.5).route is Route.APPEND_LOCAL
    room = replace(turn, d_kv_tokens=66_000, d_evicted_share=0.04)
    assert decide(policy(0.02), room, 0.5).route is Route.APPEND_LOCAL, "it is crowded, and everybody finds his history"
    crowded = decide(policy(0.02), replace(room, d_evicted_share=0.06), 0.5)
    assert (crowded.route, crowded.reason) == (Route.PREFILL_TRANSFER, Reason.KV_SHORT)


def test_what_was_never_on_the_node_is_not_evicted_from_it():
    turn = features(**EVICTED | {"evicted_d": 0}, p_backlog_ms=1000.0)
    assert decide(policy(0.02), turn, 0.5).route is Route.APPEND_LOCAL


def test_exploring_spares_what_the_guard_holds_back():
    busy = features(**EVICTED, p_backlog_ms=1000.0)
    for price in (0.02, 100.0):
        assert decide(policy(price, explore=0.5), busy, 0.1).route is Route.PREFILL_TRANSFER


@given(
    saved=st.floats(-1e6, 1e6),
    cost=st.floats(0.001, 1e6),
    evicted=st.integers(0, 100_000),
    more=st.floats(0, 1e6),
)
def test_saving_more_never_makes_a_turn_too_dear_and_costing_more_never_makes_it_cheap(saved, cost, evicted, more):
    turn = features(evicted_d=evicted)
    if not too_dear(turn, saved, cost):
        assert not too_dear(turn, saved + more, cost)
    else:
        assert too_dear(turn, saved, cost + more)
    assert evicted or not too_dear(turn, saved, cost), "4300 tokens of 100000 are no crowd"


# -- what the core makes of it -----------------------------------------------------------------------------------------


def test_what_d_evicted_is_told_from_what_it_never_had():
    run = fleet("P0 D0")
    run.talk("c1", 1000)
    held = run.start("c1").features
    assert held.evicted_d == 0 and held.uncached_d < 150
    run.core.residency.drop(D0, key("c1"))
    gone = run.start("c1").features
    assert gone.uncached_d == gone.prompt_tokens and gone.evicted_d == gone.uncached_d - held.uncached_d > 1000
    run.core.node_restarted(D0)
    assert run.start("c1").features.evicted_d == 0, "another process has evicted nothing"


def test_a_template_that_drops_answers_is_no_eviction():
    run = fleet("P0 D0")
    run.talk("c1", 1000)
    known = run.core.conversations.peek(key("c1"))
    assert known is not None
    known.reuse.answers = False
    turn = run.start("c1").features
    assert turn.uncached_d > turn.n_in and turn.evicted_d == 0


def test_others_who_fill_a_node_show_in_its_churn():
    run = fleet("P0 D0")
    run.talk("c1", 5000)
    for other in range(CAPACITY // 5000):
        run.talk(f"other{other}", 5000)
    run.start("c1")
    churn = run.core.churn[D0]
    assert churn.evicted(run.now_s) > 0.9 and churn.evicted_total > 4900
    shown = {name: node_view(run.core, None, run.core.nodes[name], "", run.now_s) for name in (P0, D0)}
    assert shown[D0].evicted == round(churn.evicted(run.now_s), 3)
    assert shown[P0].evicted == shown[P0].recomputed == 0.0
    assert run.start("other0").features.d_evicted_share > EVICTING


# -- churn -------------------------------------------------------------------------------------------------------------


def test_new_tokens_alone_are_no_churn_and_history_computed_again_is():
    quiet, busy = Churn(), Churn()
    for at in range(20):
        quiet.add(features(n_in=500, uncached_d=500), True, float(at))
        busy.add(features(n_in=500, n_ctx=4500, uncached_d=5000, evicted_d=4500), True, float(at))
    assert quiet.recomputed(20.0) == 0.0 and quiet.evicted(20.0) == 0.0
    assert busy.recomputed(20.0) == pytest.approx(0.9) and busy.evicted(20.0) == pytest.approx(1.0)
    assert busy.evicted_total == 20 * 4500


def test_what_p_has_to_compute_again_counts_too():
    churn = Churn()
    churn.add(features(n_in=1000, n_ctx=9000, uncached_d=1000, uncached_p=10_000), False, 0.0)
    assert churn.recomputed(0.0) == pytest.approx(0.9) and churn.evicted(0.0) == 0.0


def test_a_node_without_later_turns_is_not_overrun_for_long():
    churn = Churn()
    churn.add(features(n_in=100, n_ctx=9900, uncached_d=10_000, evicted_d=9900), True, 5.0)
    assert churn.recomputed(5.0) > OVERRUN
    assert churn.recomputed(5.0 + 3 * WINDOW_S) == 0.0, f"3 windows leave less than {MIN_TOKENS:g} tokens"
    assert churn.recomputed(5.0 + 3 * WINDOW_S + 1e6) == 0.0


_TURN = st.tuples(st.integers(1, 50_000), st.integers(0, 50_000), st.integers(0, 50_000), st.booleans())


@given(st.lists(st.tuples(_TURN, st.floats(0, 50)), max_size=30))
def test_shares_are_shares_whatever_happens_and_time_alone_changes_none_but_to_0(turns):
    churn, now_s = Churn(), 0.0
    for (n_in, n_ctx, lost, local), passed_s in turns:
        now_s += passed_s
        evicted = min(lost, n_ctx)
        churn.add(features(n_in=n_in, n_ctx=n_ctx, uncached_d=n_in + evicted, evicted_d=evicted), local, now_s)
        assert 0 <= churn.evicted(now_s) <= 1 and 0 <= churn.recomputed(now_s) <= 1
        later = churn.recomputed(now_s + 1.0)
        assert later == 0.0 or later == pytest.approx(churn.recomputed(now_s))
        now_s += 1.0
