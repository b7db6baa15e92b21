"""The policies that a scenario compares, and the exact rules of those that are fixed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.laws import DEFAULT_LAW, LAWS
from router.core import Decider
from router.decision import decide
from router.features import TurnFeatures
from router.policy import WITHOUT_TABLE_TOKENS, Policy, Weights
from router.turn import Reason, Route
from tests.controller.records import FEATURES
from trimtab.contenders import DYNAMO, PROTOTYPE, THRESHOLDS, contender, contenders, threshold

ALL = contenders({})
POLICY = ALL["price_0.4"].policy


def local(rule: Decider, **features: object) -> bool:
    decision = rule(POLICY, replace(FEATURES, **features), 0.0)  # type: ignore[arg-type]
    assert decision.reason is Reason.RULE and decision.propensity == 1.0
    return decision.route is Route.APPEND_LOCAL


def test_they_are_the_controller_constants_the_papers_table_the_ends_and_fixed_rules():
    assert list(ALL) == [
        "controller",
        "price_0.4",
        "price_0.03",
        "price_2.9",
        "controller_start_0.03",
        "controller_start_2.9",
        "paper_table",
        "x0",
        "x1",
        "prototype",
        "dynamo",
        "threshold_1024",
        "threshold_1536",
        "threshold_2048",
        "threshold_4096",
    ]
    assert all(name == contender.name for name, contender in ALL.items())


def test_only_the_controllers_have_a_law():
    moved = {name: contender.law for name, contender in ALL.items() if contender.law is not None}
    assert moved == dict.fromkeys(("controller", "controller_start_0.03", "controller_start_2.9"), LAWS[DEFAULT_LAW]())


@pytest.mark.parametrize(
    ("name", "price"),
    [("controller", 0.4), ("price_0.4", 0.4), ("controller_start_0.03", 0.03), ("controller_start_2.9", 2.9)],
)
def test_prices_start_where_their_names_say(name, price):
    assert ALL[name].policy.weights.price == pytest.approx(price)
    assert ALL[name].has_price


def test_the_ends_are_pinned_and_the_papers_table_has_weights_one_and_one():
    assert ALL["x0"].policy.pin_x == 0.0 and ALL["x1"].policy.pin_x == 1.0
    assert ALL["paper_table"].policy.mode == "paper" and ALL["paper_table"].policy.weights == Weights(1, 1)
    without_price = {name for name, contender in ALL.items() if not contender.has_price}
    assert without_price == {"paper_table", "x0", "x1", "prototype", "dynamo", *(f"threshold_{t}" for t in THRESHOLDS)}


def test_the_prototype_goes_local_below_512_new_tokens():
    assert local(PROTOTYPE, n_in=511, uncached_d=90_000)
    assert not local(PROTOTYPE, n_in=512, uncached_d=512)


def test_dynamo_goes_local_below_2048_uncached_tokens_that_are_less_than_seven_tenths_of_the_prompt():
    assert local(DYNAMO, uncached_d=2047, n_ctx=10_000, n_in=2047)
    assert not local(DYNAMO, uncached_d=2048, n_ctx=10_000, n_in=2048)
    assert local(DYNAMO, uncached_d=699, n_ctx=900, n_in=100)
    assert not local(DYNAMO, uncached_d=701, n_ctx=900, n_in=100)


@given(tokens=st.sampled_from(THRESHOLDS), uncached=st.integers(1, 8192), n_in=st.integers(1, 8192))
def test_a_threshold_looks_at_uncached_tokens_on_d_alone(tokens, uncached, n_in):
    assert local(threshold(tokens), uncached_d=uncached, n_in=n_in) == (uncached < tokens)


def test_the_named_thresholds_are_those_of_their_names():
    for tokens in THRESHOLDS:
        rule = ALL[f"threshold_{tokens}"].decider
        assert local(rule, uncached_d=tokens - 1) and not local(rule, uncached_d=tokens)


@pytest.mark.parametrize("name", ["prototype", "dynamo", "threshold_1024"])
@pytest.mark.parametrize(
    "given_",
    [
        replace(FEATURES, turn=1, n_ctx=0),
        replace(FEATURES, prefill=None),
        replace(FEATURES, replica=True),
    ],
    ids=["first turn", "no prefill node", "replica"],
)
def test_what_no_rule_may_decide_is_decided_as_by_any_router(name, given_: TurnFeatures):
    rule = ALL[name].decider
    assert rule(POLICY, given_, 0.0) == decide(POLICY, given_, 0.0)


def test_all_share_the_tables_that_they_are_given():
    assert all(contender.policy.tables == {} for contender in ALL.values())
    assert isinstance(POLICY, Policy) and POLICY.version == 1


def test_a_number_in_the_name_makes_a_policy_that_is_not_listed():
    assert contender("price_0.7", {}).policy.weights == Weights.from_price(0.7)
    started = contender("controller_start_2", {})
    assert started.policy.weights == Weights.from_price(2.0) and started.law == LAWS[DEFAULT_LAW]()
    assert contender("x0.25", {}).policy.pin_x == 0.25
    paper = contender("paper_table_1_3", {}).policy
    assert (paper.mode, paper.weights) == ("paper", Weights(1, 3))
    assert local(contender("threshold_300", {}).decider, uncached_d=299)
    assert not local(contender("threshold_300", {}).decider, uncached_d=300)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [(name, WITHOUT_TABLE_TOKENS) for name in ("controller", "price_0.4", "controller_start_2")]
    + [(name, 0) for name in ("paper_table", "paper_table_1_3", "shorter_queue")],
)
def test_without_a_table_the_score_goes_by_tokens_and_rivals_that_need_one_go_through_p(name, tokens):
    policy = contender(name, {}).policy
    assert policy.without_table_tokens == tokens
    decision = decide(policy, FEATURES, 0.5)
    assert decision.reason is Reason.NO_TABLE and (decision.route is Route.APPEND_LOCAL) == (tokens > 0)


@pytest.mark.parametrize("name", ALL)
def test_a_listed_policy_is_found_by_its_name(name):
    found = contender(name, {})
    assert (found.name, found.policy, found.law) == (name, ALL[name].policy, ALL[name].law)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("price_", "unknown policy 'price_'; known: controller, .*price_P, controller_start_P"),
        ("x1.5", "unknown policy"),
        ("threshold_1.5", "unknown policy"),
        ("price_0", "a price is positive"),
        ("controller_start_0", "a price is positive"),
        ("paper_table_0_0", "weights"),
    ],
)
def test_what_is_no_policy_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        contender(name, {})
