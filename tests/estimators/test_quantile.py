"""The one definition of P99, its window and its bounds."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from estimators.protocol import Estimate
from estimators.quantile import WindowedQuantile, bound_ranks, fewest_samples, nearest_rank, rank

quantiles = st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999])


def filled(values, q=0.99, min_samples=1, **more) -> WindowedQuantile:
    window = WindowedQuantile(q, min_samples=min_samples, **more)
    for value in values:
        window.update(value, 0.0)
    return window


@pytest.mark.parametrize(
    ("n", "q", "expected"),
    [(1, 0.99, 1), (100, 0.99, 99), (101, 0.99, 100), (20, 0.95, 19), (3, 0.5, 2), (100, 0.07, 7)],
)
def test_the_rank_is_the_ceiling_of_q_times_n(n: int, q: float, expected: int):
    assert rank(n, q) == expected


@settings(derandomize=True)
@given(st.integers(1, 100_000), st.integers(1, 999))
def test_the_rank_is_right_for_every_percentile_written_in_tenths(n: int, permille: int):
    assert rank(n, permille / 1000) == math.ceil(Fraction(permille, 1000) * n)


@settings(derandomize=True)
@given(st.lists(st.floats(0.0, 100.0), min_size=1), quantiles)
def test_at_least_a_share_q_of_the_values_is_at_most_the_quantile(values: list[float], q: float):
    value = nearest_rank(sorted(values), q)
    assert value in values
    assert sum(each <= value for each in values) >= q * len(values) - 1e-9
    assert sum(each < value for each in values) < q * len(values)


@pytest.mark.parametrize(("values", "q"), [([], 0.99), ([1.0], 0.0), ([1.0], 1.0)])
def test_there_is_no_quantile_of_nothing_and_none_outside_zero_to_one(values: list[float], q: float):
    with pytest.raises(ValueError, match="no rank"):
        nearest_rank(values, q)


def test_below_the_minimum_of_samples_nothing_is_resolved():
    assert filled([1.0] * 19, min_samples=20).estimate(5.0) == Estimate(None, None, None, 19, 5.0)
    assert filled([1.0] * 20, min_samples=20).estimate(5.0).value == 1.0


def test_the_window_holds_the_last_slices_and_the_open_one():
    window = WindowedQuantile(0.5, slices=3, min_samples=1)
    for tick in range(1, 6):
        window.update(float(tick), 5.0 * tick)
        window.roll(5.0 * tick)
    assert (window.estimate(25.0).n, window.estimate(25.0).value) == (3, 4.0)
    window.update(100.0, 26.0)
    assert window.estimate(26.0).n == 4


def test_samples_are_gone_once_their_slice_is():
    window = filled([9.0] * 50)
    for tick in range(1, 5):
        window.roll(float(tick))
    assert window.estimate(4.0) == Estimate(None, None, None, 0, 4.0)


def test_rolling_twice_at_one_time_or_back_in_time_closes_no_second_slice():
    window = filled([1.0], slices=1)
    window.roll(5.0)
    window.roll(5.0)
    window.roll(4.0)
    assert window.estimate(5.0).n == 1


def test_turns_that_still_wait_count_with_their_age():
    window = filled([0.1] * 98)
    assert window.estimate(0.0).value == 0.1
    assert window.estimate(0.0, extra=[7.0, 8.0]).value == 7.0
    assert window.estimate(0.0, extra=[7.0, 8.0]).n == 100


def test_a_stalled_fleet_does_not_look_fast():
    assert WindowedQuantile(0.99, min_samples=20).estimate(60.0, extra=[30.0] * 20).value == 30.0


def test_turns_that_still_wait_leave_the_upper_bound_open_where_it_would_rest_on_them():
    finished = filled([float(at) for at in range(1000)])
    high = finished.estimate(0.0).high
    with_waiting = finished.estimate(0.0, extra=[5.0] * 3)
    assert high is not None
    assert with_waiting.high is not None
    assert with_waiting.high > high
    assert finished.estimate(0.0, extra=[5.0] * 40).high is None


@settings(derandomize=True)
@given(st.lists(st.floats(0.0, 10.0), max_size=400), st.lists(st.floats(0.0, 10.0), max_size=40), quantiles)
def test_turns_that_still_wait_never_lower_the_upper_bound(values: list[float], ages: list[float], q: float):
    ended, waiting = filled(values, q).estimate(0.0).high, filled(values, q).estimate(0.0, ages).high
    assert waiting is None or (ended is not None and waiting >= ended)


@pytest.mark.parametrize(("n", "resolved"), [(298, False), (299, True), (300, True)])
def test_a_p99_has_no_upper_bound_below_299_samples(n: int, resolved: bool):
    high = filled([float(at) for at in range(n)]).estimate(0.0).high
    assert (high is not None) is resolved
    assert high is None or high == n - 1


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("n", [1, 20, 299, 1000, 12_345, 100_000])
def test_the_bounds_are_the_tightest_ranks_that_the_binomial_allows(n: int, q: float):
    low, high = bound_ranks(n, q)
    below = stats.binom(n, q)
    if high is not None:
        assert below.cdf(high - 1) >= 0.95
        assert below.cdf(high - 2) < 0.95
    else:
        assert below.cdf(n - 1) < 0.95
    if low is not None:
        assert below.sf(low - 1) >= 0.95
        assert below.sf(low) < 0.95
    else:
        assert below.sf(0) < 0.95


def test_each_bound_holds_nineteen_times_in_twenty_for_any_shape():
    dice = np.random.default_rng(1)
    truth = float(np.exp(0.5 * stats.norm.ppf(0.99)))
    runs, held_low, held_high = 400, 0, 0
    for _ in range(runs):
        estimate = filled(dice.lognormal(0.0, 0.5, 600).tolist()).estimate(0.0)
        assert estimate.low is not None
        assert estimate.high is not None
        held_low += estimate.low <= truth
        held_high += estimate.high >= truth
    assert held_low / runs > 0.93
    assert held_high / runs > 0.93


def test_never_is_a_sample_and_less_than_everything_is_none():
    assert filled([1.0, math.inf]).estimate(0.0).value == math.inf
    with pytest.raises(ValueError, match="not a sample"):
        filled([-math.inf])
    with pytest.raises(ValueError, match="not an age"):
        filled([1.0]).estimate(0.0, extra=[math.nan])


@pytest.mark.parametrize("bad", [{"q": 0.0}, {"q": 1.0}, {"q": 0.5, "slices": 0}, {"q": 0.5, "cap_per_slice": 1}])
def test_a_window_that_can_hold_nothing_cannot_be_made(bad):
    with pytest.raises(ValueError, match="no window"):
        WindowedQuantile(**bad)


@settings(derandomize=True)
@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=300), st.integers(2, 40), quantiles)
def test_a_full_slice_counts_every_sample_and_keeps_its_largest_exactly(values: list[float], cap: int, q: float):
    n = len(values)
    estimate = filled(values, q, cap_per_slice=cap).estimate(0.0)
    exact = nearest_rank(sorted(values), q)
    assert estimate.n == n
    assert estimate.value is not None
    assert exact <= estimate.value <= max(values)
    if n <= cap or n - rank(n, q) < cap // 2:
        assert estimate.value == exact


@settings(derandomize=True)
@given(st.lists(st.floats(0.0, 100.0), min_size=30, max_size=300), st.integers(2, 40), quantiles)
def test_what_is_thinned_gives_no_lower_bound_that_an_exact_window_would_not(values: list[float], cap: int, q: float):
    exact, thinned = (filled(values, q, cap_per_slice=kept).estimate(0.0) for kept in (1000, cap))
    assert exact.low is not None or thinned.low is None
    assert thinned.low is None or thinned.low <= (exact.low or 0.0)
    assert exact.high is None or thinned.high is None or thinned.high >= exact.high


def test_memory_is_bounded_whatever_comes():
    window = filled((float(at * 7919 % 100_003) for at in range(100_003)), cap_per_slice=2048)
    assert len(window._open.weighted()) <= 2048
    assert window.estimate(0.0).value == nearest_rank(range(100_003), 0.99)


@pytest.mark.parametrize(
    ("q", "confidence", "n"),
    [(0.99, 0.95, 299), (0.99, 0.99, 459), (0.9, 0.95, 29), (0.5, 0.95, 5), (0.999, 0.95, 2995)],
)
def test_so_many_samples_are_the_fewest_with_an_upper_bound(q: float, confidence: float, n: int):
    assert fewest_samples(q, confidence) == n
    assert q**n <= 1.0 - confidence < q ** (n - 1)
    assert bound_ranks(n, q, confidence)[1] == n
    assert bound_ranks(n - 1, q, confidence)[1] is None


@pytest.mark.parametrize(("q", "confidence"), [(0.0, 0.95), (1.0, 0.95), (0.9, 0.0), (0.9, 1.0), (math.nan, 0.95)])
def test_no_number_of_samples_bounds_what_is_no_quantile(q: float, confidence: float):
    with pytest.raises(ValueError, match="no number"):
        fewest_samples(q, confidence)


def test_a_window_may_ask_for_more_confidence():
    values = [float(at) for at in range(400)]
    assert filled(values).estimate(0.0).high is not None
    assert filled(values, confidence=0.99).estimate(0.0).high is None
