"""The share of turns that miss an SLO."""

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from estimators.exceedance import Exceedance
from estimators.protocol import Estimate

counts = st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(("bad", "valid"), [(0, 299), (1, 473), (2, 628), (3, 773), (5, 1049)])
def test_this_many_turns_are_the_fewest_that_prove_a_p99(bad: int, valid: int):
    enough, short = Exceedance(bad, valid).estimate(0.0), Exceedance(bad, valid - 1).estimate(0.0)
    assert enough.high is not None
    assert enough.high <= 0.01
    assert short.high is not None
    assert short.high > 0.01


@settings(derandomize=True, deadline=None)
@given(counts)
def test_the_bounds_are_those_of_the_exact_binomial_test(pair: tuple[int, int]):
    bad, valid = pair
    estimate = Exceedance(bad, valid).estimate(3.0)
    test = stats.binomtest(bad, valid)
    low = stats.binomtest(bad, valid, alternative="greater").proportion_ci(0.95, "exact").low
    high = stats.binomtest(bad, valid, alternative="less").proportion_ci(0.95, "exact").high
    assert estimate.value == test.statistic
    assert estimate.low == pytest.approx(low, abs=1e-9)
    assert estimate.high == pytest.approx(high, abs=1e-9)


def test_without_turns_nothing_is_resolved():
    assert Exceedance(0, 0).estimate(7.0) == Estimate(None, None, None, 0.0, 7.0)


def test_a_design_effect_widens_the_bounds_as_fewer_turns_would_and_leaves_the_share():
    bursty, fewer = Exceedance(40, 4000, design_effect=4.0).estimate(0.0), Exceedance(10, 1000).estimate(0.0)
    assert bursty == fewer
    assert bursty.value == Exceedance(40, 4000).estimate(0.0).value


@settings(derandomize=True)
@given(st.floats(0.0, 1.0), st.floats(1e-3, 1e5), st.floats(1.0, 50.0))
def test_discounted_counts_give_bounds_around_the_share(share: float, valid: float, design_effect: float):
    estimate = Exceedance(share * valid, valid, design_effect).estimate(0.0)
    assert estimate.value is not None
    assert estimate.low is not None
    assert estimate.high is not None
    assert 0.0 <= estimate.low <= estimate.value + 1e-9
    assert estimate.value - 1e-9 <= estimate.high <= 1.0


@pytest.mark.parametrize("epsilon", [0.001, 0.01, 0.5])
def test_the_log_odds_are_zero_without_data_and_at_the_promise(epsilon: float):
    assert Exceedance(0, 0).log_odds_over(epsilon) == pytest.approx(0.0, abs=1e-12)
    assert Exceedance(1000 * epsilon, 1000).log_odds_over(epsilon) == pytest.approx(0.0, abs=1e-12)


def test_the_log_odds_rise_with_misses_and_with_the_evidence_for_them():
    few, many = Exceedance(3, 100).log_odds_over(0.01), Exceedance(300, 10_000).log_odds_over(0.01)
    limit = math.log(0.03 / 0.97) - math.log(0.01 / 0.99)
    assert Exceedance(1, 200).log_odds_over(0.01) < 0.0 < few < many < limit
    assert many == pytest.approx(limit, rel=0.01)


def test_the_variance_of_the_log_odds_follows_the_design_effect():
    plain = Exceedance(10, 1000).log_odds_variance(0.01)
    assert plain == pytest.approx(1 / 10.5 + 1 / 1039.5)
    assert Exceedance(10, 1000, 3.0).log_odds_variance(0.01) == pytest.approx(3 * plain)


@pytest.mark.parametrize(
    "made", [(-1, 5, 1.0), (6, 5, 1.0), (1, math.inf, 1.0), (math.nan, 5, 1.0), (1, 5, 0.5), (1, 5, math.nan)]
)
def test_impossible_counts_cannot_be_made(made: tuple[float, float, float]):
    with pytest.raises(ValueError, match=r"turns|design effect"):
        Exceedance(*made)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, math.nan])
def test_a_promise_of_none_or_all_has_no_log_odds(epsilon: float):
    with pytest.raises(ValueError, match="epsilon"):
        Exceedance(1, 5).log_odds_over(epsilon)


def test_the_other_estimators_and_the_slos_need_neither_numpy_nor_scipy():
    modules = "estimators.quantile, estimators.rate, estimators.length, slos.files, slos.counts, slos.reduce"
    code = f"import sys, {modules}; sys.exit('numpy' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
