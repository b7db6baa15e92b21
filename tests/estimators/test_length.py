"""The expected length of the next reply."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.length import DEFAULT_TOKENS, MAX_APPS, MAX_MODELS, LengthEstimator, LengthState


def after(estimator: LengthEstimator, replies: list[int], model: str = "m") -> LengthState | None:
    state = None
    for tokens in replies:
        state = estimator.update(model, state, tokens)
    return state


def test_before_any_data_256_tokens_are_expected():
    assert LengthEstimator().expected_tokens("m", None) == pytest.approx(256.0)


def test_max_tokens_caps_the_expectation_and_nonsense_does_not():
    estimator = LengthEstimator()
    assert estimator.expected_tokens("m", None, max_tokens=64) == 64.0
    assert estimator.expected_tokens("m", None, max_tokens=4096) == pytest.approx(256.0)
    assert estimator.expected_tokens("m", None, max_tokens=0) == pytest.approx(256.0)


def test_a_new_conversation_is_expected_to_be_like_the_others_of_its_model():
    estimator = LengthEstimator()
    for _ in range(200):
        estimator.update("short", None, 20)
        estimator.update("long", None, 2000)
    assert estimator.expected_tokens("short", None) == pytest.approx(20, rel=0.1)
    assert estimator.expected_tokens("long", None) == pytest.approx(2000, rel=0.1)


def test_one_odd_first_reply_does_not_speak_for_the_model():
    estimator = LengthEstimator()
    estimator.update("m", None, 8000)
    assert estimator.expected_tokens("m", None) < 1000


def test_a_conversation_draws_away_from_its_model_with_each_reply_but_never_all_the_way():
    estimator = LengthEstimator()
    for _ in range(1000):
        estimator.update("m", None, 100)
    states = [LengthState(math.log(1000), replies) for replies in (1, 2, 3, 4, 400)]
    expected = [estimator.expected_tokens("m", state) for state in states]
    assert all(before < later for before, later in pairwise(expected[:4]))
    assert expected[3] == expected[4] < 1000


def test_a_conversation_that_changes_its_habits_is_followed():
    estimator = LengthEstimator()
    state = after(estimator, [100] * 10)
    for _ in range(5):
        state = estimator.update("m", state, 1000)
    assert state is not None
    assert math.exp(state.mean_ln_tokens) > 800


def test_the_state_is_a_value_that_the_estimator_does_not_keep():
    estimator = LengthEstimator()
    state = after(estimator, [100, 200])
    copy = LengthState(state.mean_ln_tokens, state.replies) if state else None
    estimator.update("m", state, 900)
    assert state == copy


def test_further_models_share_one_average_so_that_memory_is_bounded():
    estimator = LengthEstimator()
    for at in range(10 * MAX_MODELS):
        estimator.update(f"model-{at}", None, 10)
    assert len(estimator._models) <= MAX_MODELS + 1
    assert estimator.expected_tokens("never seen", None) < 20


def test_an_empty_reply_counts_as_one_token():
    assert after(LengthEstimator(), [0]) == LengthState(0.0, 1)


@settings(derandomize=True)
@given(st.lists(st.integers(0, 100_000), max_size=30), st.none() | st.integers(1, 5000))
def test_the_expectation_lies_within_what_was_seen_or_assumed(replies: list[int], max_tokens: int | None):
    estimator = LengthEstimator()
    expected = estimator.expected_tokens("m", after(estimator, replies), max_tokens)
    seen = [max(1, tokens) for tokens in replies] + [DEFAULT_TOKENS]
    assert min(min(seen), max_tokens or math.inf) * 0.999 <= expected <= max(seen) * 1.001
    assert max_tokens is None or expected <= max_tokens


def test_an_application_draws_away_from_its_model_by_its_replies():
    estimator = LengthEstimator()
    for _ in range(500):
        estimator.update("m", None, 1000)
    seen = [estimator.expected_tokens("m", None, app="terse")]
    assert seen == [estimator.expected_tokens("m", None)]
    for replies in (1, 10, 200):
        for _ in range(replies):
            estimator.update("m", None, 10, "terse")
        seen.append(estimator.expected_tokens("m", None, app="terse"))
    assert seen[0] > seen[1] > seen[2] > seen[3] > 10
    assert seen[1] > 500 and seen[3] < 15
    assert estimator.expected_tokens("m", None) > 100
    assert estimator.expected_tokens("other", None, app="terse") == estimator.expected_tokens("other", None)


def test_without_an_application_nothing_changes():
    named, plain = LengthEstimator(), LengthEstimator()
    state = None
    for tokens in (10, 400, 30):
        state = named.update("m", state, tokens, "app")
        plain.update("m", None, tokens)
    assert named.expected_tokens("m", state) == plain.expected_tokens("m", state)


def test_further_applications_have_their_models_average():
    estimator = LengthEstimator()
    for at in range(MAX_APPS + 5):
        estimator.update("m", None, 10, f"app-{at}")
    assert len(estimator._apps) == MAX_APPS
    assert estimator.expected_tokens("m", None, app=f"app-{MAX_APPS + 1}") == estimator.expected_tokens("m", None)


def test_merging_keeps_within_the_bounds_and_forgets_no_model_altogether():
    first, second = LengthEstimator(), LengthEstimator()
    for at in range(MAX_MODELS):
        first.update(f"a{at:02}", None, 10, "app")
        second.update(f"b{at:02}", None, 1000, "app")
    both = first.merged(second)
    assert len(both._models) == MAX_MODELS + 1 and len(both._apps) <= MAX_APPS
    assert both.expected_tokens("a00", None) == first.expected_tokens("a00", None)
    assert both.expected_tokens("b00", None) > 500


@pytest.mark.parametrize(
    "state",
    [
        {"models": [["m", math.nan, 1]], "apps": []},
        {"models": [["m", 3.0, 0]], "apps": []},
        {"models": [[f"m{at}", 3.0, 1] for at in range(MAX_MODELS + 2)], "apps": []},
    ],
)
def test_what_is_no_average_is_not_restored(state):
    with pytest.raises(ValueError, match="no state of a LengthEstimator"):
        LengthEstimator.restore(state)
