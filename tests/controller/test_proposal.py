"""From a wanted price to a candidate policy: slew limit, envelope, and what is left alone."""

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.laws.protocol import PriceRange
from controller.proposal import Envelope, propose
from router.policy import Policy, Weights

ENVELOPE = Envelope()
POLICY = Policy(7, {}, Weights.from_price(0.4))


def price_of(policy: Policy | None, model: str = "m") -> float:
    assert policy is not None
    return policy.weights_for(model).price


def test_a_small_step_is_taken_whole():
    proposal = propose(POLICY, {"m": 0.44}, ENVELOPE, "why")
    assert price_of(proposal) == pytest.approx(0.44)
    assert proposal is not None and proposal.version == 8 and proposal.provenance == "why"


def test_a_large_step_is_cut_to_the_slew_limit_in_both_directions():
    assert price_of(propose(POLICY, {"m": 5.0}, ENVELOPE, "")) == pytest.approx(0.4 * exp(0.25))
    assert price_of(propose(POLICY, {"m": 0.02}, ENVELOPE, "")) == pytest.approx(0.4 * exp(-0.25))


def test_the_envelope_ends_every_walk():
    policy = POLICY
    for _ in range(100):
        policy = propose(policy, {"m": 1e6}, ENVELOPE, "") or policy
    assert price_of(policy) == pytest.approx(5.0)
    for _ in range(100):
        policy = propose(policy, {"m": 1e-6}, ENVELOPE, "") or policy
    assert price_of(policy) == pytest.approx(0.02)


def test_a_price_that_an_operator_set_outside_the_envelope_is_brought_inside_when_the_law_moves_it():
    outside = replace(POLICY, weights=Weights.from_price(100.0))
    assert price_of(propose(outside, {"m": 4.5}, ENVELOPE, "")) == pytest.approx(5.0)


@given(st.floats(0.02, 5.0), st.floats(1e-3, 1e3), st.floats(0.01, 2.0))
def test_no_proposal_leaves_the_envelope_or_the_slew_limit(price, wanted, max_ln_step):
    envelope = Envelope(PriceRange(), max_ln_step)
    limited = envelope.limited(price, wanted)
    assert 0.02 <= limited <= 5.0
    assert abs(log(limited / price)) <= max_ln_step + 1e-9
    assert (limited - price) * (wanted - price) >= 0 or limited == pytest.approx(price)


def test_the_published_pair_sums_to_two():
    proposal = propose(POLICY, {"m": 0.44}, ENVELOPE, "")
    assert proposal is not None
    weights = proposal.weights_for("m")
    assert weights.w_ttft + weights.w_tpot == pytest.approx(2.0)


def test_other_models_keep_their_weights():
    mine = replace(POLICY, model_weights={"other": Weights(1, 3)})
    proposal = propose(mine, {"m": 0.44}, ENVELOPE, "")
    assert proposal is not None
    assert proposal.weights_for("other") == Weights(1, 3)
    assert proposal.weights_for("third") == POLICY.weights == proposal.weights


def test_two_models_move_in_one_proposal():
    proposal = propose(POLICY, {"a": 0.44, "b": 0.36}, ENVELOPE, "")
    assert price_of(proposal, "a") == pytest.approx(0.44) and price_of(proposal, "b") == pytest.approx(0.36)


def test_a_pinned_policy_is_left_alone():
    assert propose(replace(POLICY, pin_x=0.5), {"m": 0.44}, ENVELOPE, "") is None


@pytest.mark.parametrize("weights", [Weights(1, 0), Weights(0, 1)])
def test_an_operators_weights_without_a_finite_price_are_left_alone(weights):
    assert propose(replace(POLICY, weights=weights), {"m": 0.44}, ENVELOPE, "") is None
    both = replace(POLICY, model_weights={"m": weights})
    proposal = propose(both, {"m": 0.44, "n": 0.44}, ENVELOPE, "")
    assert proposal is not None and proposal.weights_for("m") == weights
    assert price_of(proposal, "n") == pytest.approx(0.44)


def test_nothing_to_change_means_no_proposal():
    assert propose(POLICY, {}, ENVELOPE, "") is None
    assert propose(POLICY, {"m": POLICY.weights.price}, ENVELOPE, "") is None
    at_the_end = replace(POLICY, model_weights={"m": Weights.from_price(6.0)})
    at_the_end = propose(at_the_end, {"m": 9.0}, ENVELOPE, "") or at_the_end
    assert price_of(at_the_end) == pytest.approx(5.0)


def test_the_exploration_floor_comes_with_the_envelope():
    proposal = propose(POLICY, {}, Envelope(explore=0.02), "")
    assert proposal is not None and proposal.explore == 0.02 and proposal.weights == POLICY.weights


def test_the_policy_proposed_from_is_not_changed():
    before = (POLICY.version, POLICY.sha256, dict(POLICY.model_weights))
    propose(POLICY, {"m": 0.44}, ENVELOPE, "")
    assert (POLICY.version, POLICY.sha256, POLICY.model_weights) == before
