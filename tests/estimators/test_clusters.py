"""The design effect of conversations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.clusters import PRIOR_CONVERSATIONS, Clusters
from estimators.exceedance import Exceedance

conversations = st.lists(
    st.integers(0, 20).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=30
)


@settings(derandomize=True, max_examples=60)
@given(conversations)
def test_the_sums_give_the_ratio_estimators_variance_over_the_binomial_one(rows):
    known = Clusters.of(rows)
    bad, valid = np.array([row for row in rows if row[1]] or [(0, 0)], dtype=float).T
    if len(valid) < 2 or not 0 < bad.sum() < valid.sum():
        assert known.observed_design_effect is None
        return
    p = bad.sum() / valid.sum()
    between = ((bad - p * valid) ** 2).sum() * len(valid) / (len(valid) - 1)
    assert known.observed_design_effect == pytest.approx(between / (p * (1 - p) * valid.sum()), abs=1e-9)


@settings(derandomize=True)
@given(conversations, conversations)
def test_sums_of_different_conversations_add(rows, more):
    assert Clusters.of(rows) + Clusters.of(more) == Clusters.of(rows + more)


@settings(derandomize=True)
@given(conversations)
def test_the_design_effect_is_never_below_one(rows):
    assert Clusters.of(rows).design_effect >= 1.0


def test_turns_that_are_alone_have_none():
    assert Clusters.of([(0, 1)] * 990 + [(1, 1)] * 10).design_effect == pytest.approx(1.0, abs=0.01)
    assert Clusters().design_effect == 1.0


def test_conversations_that_are_slow_as_a_whole_count_as_one_turn_each():
    known = Clusters.of([(10, 10)] * 20 + [(0, 10)] * 180)
    assert known.design_effect == pytest.approx(10.0, rel=0.05)


def test_without_a_miss_only_conversations_are_independent():
    quick = Clusters.of([(0, 10)] * 298)
    assert quick.design_effect == 10.0
    high = Exceedance(quick.bad, quick.valid, quick.design_effect).estimate(0.0).high
    enough = Exceedance(0.0, 2990.0, 10.0).estimate(0.0).high
    assert high is not None and enough is not None and enough <= 0.01 < high


def test_the_prior_fades_with_the_conversations_that_miss():
    dice = np.random.default_rng(3)
    few, many = (
        Clusters.of((int(bad), 10) for bad in dice.binomial(10, 0.02, conversations)) for conversations in (30, 30_000)
    )
    for known in (few, many):
        observed = known.observed_design_effect
        assert observed is not None
        weight = PRIOR_CONVERSATIONS / (PRIOR_CONVERSATIONS + known.with_misses)
        assert known.design_effect == pytest.approx(max(1.0, weight * 10.0 + (1.0 - weight) * observed))
    assert few.design_effect > 2.0 > 1.1 > many.design_effect


def test_taking_turns_for_independent_or_trusting_few_misses_gives_bounds_that_are_too_narrow():
    """Why there is a design effect, and why it has a prior: 100 conversations, 1 % misses, correlation .3."""
    dice, spread, runs = np.random.default_rng(5), 1 / 0.3 - 1, 1000
    held = {"independent": 0, "observed": 0, "ours": 0}
    for misses in dice.binomial(10, dice.beta(0.01 * spread, 0.99 * spread, (runs, 100))).tolist():
        known = Clusters.of((bad, 10) for bad in misses)
        effects = (1.0, max(1.0, known.observed_design_effect or 1.0), known.design_effect)
        for name, effect in zip(held, effects, strict=True):
            high = Exceedance(known.bad, known.valid, effect).estimate(0.0).high
            held[name] += high is not None and high >= 0.01
    assert held["independent"] < 0.85 * runs
    assert held["observed"] < 0.90 * runs
    assert held["ours"] >= 0.95 * runs


@pytest.mark.parametrize("sums", [(1, 2, 1, 1, 1, 1, 1), (1, 0, 1, 2, 1, 1, 4), (-1,), (math.nan,), (1, 0, math.inf)])
def test_impossible_sums_cannot_be_made(sums):
    with pytest.raises(ValueError, match="no sums"):
        Clusters(*map(float, sums))
