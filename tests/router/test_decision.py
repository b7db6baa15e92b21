"""The decision of one turn: which question is asked first, what the answer is called, and how likely it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision import Decision, decide
from router.features import TurnFeatures
from router.paper_table import PaperTable
from router.policy import Policy, TableKey, Weights
from router.turn import Reason, Route
from tests.router.samples import MODEL, TABLE, TOPOLOGY, features, policy, tables

LOCAL, TRANSFER = Route.APPEND_LOCAL, Route.PREFILL_TRANSFER
PAPER = policy(mode="paper", tables={TableKey(MODEL, TOPOLOGY): tables(paper=PaperTable({}))})
FULL = {"d_kv_tokens": 99_000}
SLOW_LOCAL = {"d_backlog_ms": 1e6}
MUCH = {"uncached_d": 1537}
LOST = {"uncached_d": 4100, "evicted_d": 4000, "p_backlog_ms": 1000.0}


def taken(policy: Policy, turn: TurnFeatures, coin: float = 0.5) -> tuple[Route, Reason]:
    decision = decide(policy, turn, coin)
    return decision.route, decision.reason


@pytest.mark.parametrize(
    ("changes", "policy", "expected"),
    [
        ({"replica": True, "prefill": None, "turn": 1, **FULL}, policy(pin_x=0.0), (LOCAL, Reason.REPLICA)),
        ({"local_only": True, "turn": 1, **FULL}, policy(pin_x=0.0), (LOCAL, Reason.LOCAL_ONLY)),
        ({"prefill": None, "turn": 1, **FULL}, policy(pin_x=0.0), (LOCAL, Reason.P_UNAVAILABLE)),
        ({"turn": 1, **FULL}, policy(pin_x=1.0), (TRANSFER, Reason.FIRST_TURN)),
        ({**FULL}, policy(pin_x=1.0, tables={}), (LOCAL, Reason.PINNED)),
        ({**FULL}, policy(tables={}), (TRANSFER, Reason.KV_GUARD)),
        ({"replica": True, **MUCH}, policy(tables={}), (LOCAL, Reason.REPLICA)),
        ({"local_only": True, **MUCH}, policy(tables={}), (LOCAL, Reason.LOCAL_ONLY)),
        ({"prefill": None, **MUCH}, policy(tables={}), (LOCAL, Reason.P_UNAVAILABLE)),
        ({"turn": 1}, policy(tables={}), (TRANSFER, Reason.FIRST_TURN)),
        ({}, policy(pin_x=0.0, tables={}), (TRANSFER, Reason.PINNED)),
        ({}, policy(tables={}), (LOCAL, Reason.NO_TABLE)),
        ({**MUCH}, policy(tables={}), (TRANSFER, Reason.NO_TABLE)),
        ({}, policy(tables={}, without_table_tokens=0), (TRANSFER, Reason.NO_TABLE)),
        ({**SLOW_LOCAL}, policy(100.0, tables={}, explore=0.5), (LOCAL, Reason.NO_TABLE)),
        ({"model": "other"}, policy(), (LOCAL, Reason.NO_TABLE)),
        ({"model": "other", **MUCH}, policy(), (TRANSFER, Reason.NO_TABLE)),
        ({}, policy(mode="paper"), (LOCAL, Reason.NO_TABLE)),
        ({**MUCH}, policy(mode="paper"), (TRANSFER, Reason.NO_TABLE)),
        ({}, PAPER, (TRANSFER, Reason.NO_DATA)),
        ({**SLOW_LOCAL}, policy(explore=0.5), (TRANSFER, Reason.LOCAL_SLOWER)),
        ({**LOST}, policy(0.02), (TRANSFER, Reason.KV_SHORT)),
        ({**LOST, **SLOW_LOCAL}, policy(0.02), (TRANSFER, Reason.LOCAL_SLOWER)),
        ({}, policy(0.4), (LOCAL, Reason.SCORE)),
        ({}, policy(100.0), (TRANSFER, Reason.SCORE)),
        ({}, policy(0.4, explore=0.5), (TRANSFER, Reason.EXPLORED)),
        ({}, policy(100.0, explore=0.5), (LOCAL, Reason.EXPLORED)),
    ],
)
def test_the_first_question_with_an_answer_decides(changes, policy: Policy, expected: tuple[Route, Reason]):
    coin = 0.4 if expected[1] in (Reason.EXPLORED, Reason.LOCAL_SLOWER) else 0.5
    assert taken(policy, features(**changes), coin) == expected


def test_the_score_is_equation_1_with_absolute_deltas():
    turn = features()
    saved_ms, cost, cell = TABLE.score(turn)
    at_par = saved_ms / cost
    assert taken(policy(at_par * 0.999), turn) == (LOCAL, Reason.SCORE)
    assert taken(policy(at_par * 1.001), turn) == (TRANSFER, Reason.SCORE)
    decision = decide(policy(), turn, 0.5)
    assert (decision.saved_ms, decision.cost, decision.cell) == (saved_ms, cost, cell)
    assert (decision.policy_version, decision.table_exact) == (7, True)


@pytest.mark.parametrize("tokens", [1, 100, 1536, 5000])
def test_without_a_table_a_turn_goes_local_if_d_lacks_at_most_so_many_tokens_of_the_prompt(tokens: int):
    rule = policy(tables={}, without_table_tokens=tokens)
    # 5100 prompt tokens: what counts is what D lacks of them, not what is new.
    assert taken(rule, features(n_ctx=1, n_in=5099, uncached_d=tokens)) == (LOCAL, Reason.NO_TABLE)
    assert taken(rule, features(n_ctx=5099, n_in=1, uncached_d=tokens + 1)) == (TRANSFER, Reason.NO_TABLE)
    for coin in (0.0, 0.5, 0.999):
        decision = decide(rule, features(uncached_d=tokens), coin)
        assert (decision.propensity, decision.policy_version) == (1.0, 7)
        assert (decision.cell, decision.saved_ms, decision.cost) == ("", None, None), "nothing was predicted"


def test_a_turn_that_some_table_can_decide_does_not_ask_for_tokens():
    for rule in (policy(0.4, without_table_tokens=0), policy(0.4, without_table_tokens=10**6)):
        assert taken(rule, features()) == (LOCAL, Reason.SCORE)
        assert taken(replace(rule, mode="paper", tables=PAPER.tables), features()) == (TRANSFER, Reason.NO_DATA)


def test_a_score_of_exactly_zero_is_not_local():
    saved_ms, cost, _ = TABLE.score(features())
    assert taken(policy(weights=Weights(cost, saved_ms)), features()) == (TRANSFER, Reason.SCORE)


def test_only_the_ratio_of_the_weights_matters():
    for pair in ((1.0, 0.4), (2.0, 0.8), (1e-9, 4e-10), (1e9, 4e8)):
        assert taken(policy(weights=Weights(*pair)), features()) == taken(policy(0.4), features())


def test_a_models_own_weights_decide_its_turns():
    assert taken(policy(100.0, model_weights={MODEL: Weights(1, 0)}), features()) == (LOCAL, Reason.SCORE)
    assert taken(policy(100.0, model_weights={"other": Weights(1, 0)}), features()) == (TRANSFER, Reason.SCORE)


def test_a_saving_of_exactly_nothing_is_no_trade_off():
    saved_ms = TABLE.score(features()).saved_ms
    even = features(d_backlog_ms=saved_ms)
    assert TABLE.score(even).saved_ms == 0.0
    assert taken(policy(weights=Weights(1, 0)), even) == (TRANSFER, Reason.LOCAL_SLOWER)


def test_kv_memory_is_guarded_at_95_percent_of_the_prompt_and_its_answer():
    # 4100 prompt + 200 expected of 100 000: 90 700 others leave the guard exactly full.
    assert taken(policy(), features(d_kv_tokens=90_700)) == (LOCAL, Reason.SCORE)
    assert taken(policy(), features(d_kv_tokens=90_701)) == (TRANSFER, Reason.KV_GUARD)
    assert taken(policy(kv_guard=1.0), features(d_kv_tokens=95_700)) == (LOCAL, Reason.SCORE)


def test_the_nearest_topologys_table_decides_and_is_marked():
    decision = decide(policy(), features(topology="1P_2D"), 0.5)
    assert (decision.reason, decision.table_exact) == (Reason.SCORE, False)
    assert not decide(PAPER, features(topology="1P_2D"), 0.5).table_exact


@pytest.mark.parametrize("pin_x", [0.0, 0.25, 0.5, 1.0])
def test_a_pin_sends_that_share_of_turns_local(pin_x: float):
    coins = [step / 1000 for step in range(1000)]
    routes = [decide(policy(pin_x=pin_x), features(), coin).route for coin in coins]
    assert routes.count(LOCAL) == round(1000 * pin_x)


@pytest.mark.parametrize("pin_x", [0.0, 0.3, 1.0])
def test_a_pinned_turns_propensity_is_the_share_of_its_side(pin_x: float):
    for coin in (0.0, 0.2, 0.29, 0.31, 0.7, 0.999):
        decision = decide(policy(pin_x=pin_x), features(), coin)
        assert decision.propensity == pytest.approx(pin_x if decision.route is LOCAL else 1 - pin_x)


@pytest.mark.parametrize("explore", [0.01, 0.2, 0.5])
def test_exploration_takes_the_other_side_on_its_share_of_coins(explore: float):
    decisions = [decide(policy(explore=explore), features(), step / 1000) for step in range(1000)]
    explored = [d for d in decisions if d.reason is Reason.EXPLORED]
    assert len(explored) == round(1000 * explore)
    assert {(d.route, d.propensity) for d in explored} == {(TRANSFER, explore)}
    assert {(d.route, d.propensity) for d in decisions if d.reason is Reason.SCORE} == {(LOCAL, 1 - explore)}


turns = st.builds(
    features,
    turn=st.integers(1, 3),
    n_ctx=st.integers(0, 60_000),
    n_in=st.integers(1, 5000),
    n_out=st.integers(1, 2000),
    uncached_d=st.integers(1, 20_000),
    uncached_p=st.integers(1, 20_000),
    p_backlog_ms=st.floats(0, 1000),
    d_backlog_ms=st.floats(0, 1000),
    d_batch=st.integers(0, 100),
    d_kv_tokens=st.integers(0, 100_000),
    prefill=st.sampled_from(["P0", None]),
    replica=st.booleans(),
    local_only=st.booleans(),
    topology=st.sampled_from([TOPOLOGY, "1P_2D"]),
    model=st.sampled_from([MODEL, "other"]),
)
policies = st.builds(
    policy,
    price=st.floats(0.0, 100.0),
    mode=st.sampled_from(["load_aware", "paper"]),
    pin_x=st.one_of(st.none(), st.floats(0, 1)),
    explore=st.floats(0, 0.5),
    without_table_tokens=st.integers(0, 20_000),
)


@given(policy=policies, turn=turns, coins=st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=6))
def test_the_routes_a_turn_can_take_have_propensities_that_add_up_to_1(policy, turn, coins):
    split = policy.explore if policy.pin_x is None else policy.pin_x
    # Both sides of the one place where the coin can matter, and some more.
    coins += [coin for coin in (0.0, split * 0.999, split, 0.999999) if coin < 1]
    decisions = [decide(policy, turn, coin) for coin in coins]
    by_route = {decision.route: decision.propensity for decision in decisions}
    for decision in decisions:
        assert isinstance(decision.reason, Reason)
        assert decision.propensity == by_route[decision.route], "a route is as likely whatever the coin"
        assert decision.propensity > 0
        assert decision.policy_version == policy.version
    assert sum(by_route.values()) == pytest.approx(1.0)


@given(policy=policies, turn=turns, coin=st.floats(0, 1, exclude_max=True))
def test_deciding_twice_is_deciding_once(policy, turn, coin):
    assert decide(policy, turn, coin) == decide(policy, replace(turn), coin)


def test_a_decision_is_certain_and_exact_unless_said_otherwise():
    plain = Decision(LOCAL, Reason.SCORE, 1.0, 1)
    assert (plain.cell, plain.saved_ms, plain.cost, plain.table_exact) == ("", None, None, True)
