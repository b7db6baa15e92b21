"""Samples of which some are only lower bounds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.censored import quantile, share_above
from estimators.exceedance import Exceedance
from estimators.protocol import Estimate
from estimators.quantile import WindowedQuantile, nearest_rank

rows = st.lists(st.tuples(st.floats(0.0, 10.0), st.booleans()), min_size=1, max_size=60)
P90 = math.exp(0.5 * 1.2815516)


@settings(derandomize=True)
@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_without_censoring_these_are_the_nearest_rank_and_the_plain_share(values, q):
    plain = WindowedQuantile(q, min_samples=1)
    for value in values:
        plain.update(value, 0.0)
    ended = [(value, False) for value in values]
    assert quantile(ended, q, 0.0) == plain.estimate(0.0)
    bad = sum(value > 5.0 for value in values)
    share, exact = share_above(ended, 5.0, 0.0), Exceedance(bad, len(values)).estimate(0.0)
    assert share.value == pytest.approx(exact.value, abs=1e-12)
    assert (share.low, share.high, share.n) == (exact.low, exact.high, exact.n)


@settings(derandomize=True)
@given(rows, st.sampled_from([0.1, 0.5, 0.9]))
def test_a_turn_that_still_waits_never_makes_the_fleet_look_faster(samples, q):
    with_, without = samples, [row for row in samples if not row[1]]
    share, ended = share_above(with_, 5.0, 0.0), share_above(without, 5.0, 0.0)
    assert share.value is None or ended.value is None or share.value >= ended.value - 1e-12
    p, finished = quantile(with_, q, 0.0), quantile(without, q, 0.0)
    assert p.value is None or finished.value is None or p.value >= finished.value
    assert p.high is None or finished.high is None or p.high >= finished.high


@settings(derandomize=True)
@given(rows, st.lists(st.floats(0.0, 20.0), min_size=60, max_size=60))
def test_however_the_waiting_end_the_bounds_hold_those_of_the_end(samples, more):
    end = [(value + more[at] * still, False) for at, (value, still) in enumerate(samples)]
    for now, later in (
        (share_above(samples, 5.0, 0.0), share_above(end, 5.0, 0.0)),
        (quantile(samples, 0.9, 0.0), quantile(end, 0.9, 0.0)),
    ):
        assert now.low is None or (later.low is not None and now.low <= later.low + 1e-12)
        assert now.high is None or (later.high is not None and now.high >= later.high - 1e-12)


def test_a_stalled_fleet_has_no_quantile_and_no_bound_but_the_ages():
    stalled = quantile([(0.1, False)] * 100 + [(3.0, True)] * 100, 0.9, 0.0)
    assert (stalled.value, stalled.low, stalled.high) == (None, 3.0, None)
    assert share_above([(0.1, False)] * 100 + [(0.3, True)] * 100, 0.5, 0.0).value == pytest.approx(0.5)


def test_a_single_young_turn_says_nothing():
    young = share_above([(0.01, True)], 0.5, 0.0)
    assert (young.value, young.low, young.high) == (None, 0.0, 1.0)
    assert share_above([], 0.5, 0.0) == quantile([], 0.9, 0.0) == Estimate(None, None, None, 0, 0.0)


def test_a_third_censored_moves_the_value_least_where_the_waiting_are_taken_for_what_they_are():
    """Why Kaplan and Meier: P90 of a lognormal, seen through ages that end a third of the samples early."""
    dice, left_out, as_values, ours = np.random.default_rng(2), [], [], []
    for values, ages in zip(dice.lognormal(0, 0.5, (100, 500)), dice.exponential(2.9, (100, 500)), strict=True):
        seen, still = np.minimum(values, ages), values > ages
        left_out.append(nearest_rank(np.sort(seen[~still]).tolist(), 0.9) / P90)
        as_values.append(nearest_rank(np.sort(seen).tolist(), 0.9) / P90)
        value = quantile(list(zip(seen.tolist(), still.tolist(), strict=True)), 0.9, 0.0).value
        assert value is not None
        ours.append(value / P90)
    assert np.mean(ours) == pytest.approx(1.0, abs=0.02)
    assert np.mean(left_out) < 0.90
    assert np.mean(as_values) < 0.93


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_is_no_sample_is_refused(value):
    for estimate in (lambda: quantile([(value, True)], 0.9, 0.0), lambda: share_above([(value, False)], 0.5, 0.0)):
        with pytest.raises(ValueError, match="NaN or -inf"):
            estimate()


def test_never_is_a_sample():
    assert quantile([(1.0, False), (math.inf, False)], 0.9, 0.0).value == math.inf
    assert share_above([(1.0, False), (math.inf, False)], 5.0, 0.0).value == 0.5
