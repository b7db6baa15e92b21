"""The binomial tail in plain Python against scipy's."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from estimators.binomial import tail


@settings(derandomize=True, max_examples=200)
@given(st.integers(1, 20_000), st.floats(0.0, 1.0), st.sampled_from([0.0005, 0.001, 0.01, 0.05, 0.5]))
def test_the_tail_is_scipys(n: int, share: float, p: float):
    k = round(share * n)
    expected = float(stats.binom.sf(k - 1, n, p))
    assert tail(k, n, p) == pytest.approx(expected, rel=1e-8, abs=1e-290)


@pytest.mark.parametrize(("k", "n", "p"), [(10_500, 1_000_000, 0.01), (9_900, 1_000_000, 0.01), (1, 10_000_000, 1e-7)])
def test_it_holds_and_ends_for_large_numbers(k: int, n: int, p: float):
    assert tail(k, n, p) == pytest.approx(float(stats.binom.sf(k - 1, n, p)), rel=1e-6)


def test_its_ends_are_exact():
    assert tail(0, 10, 0.01) == 1.0
    assert tail(10, 10, 0.5) == pytest.approx(0.5**10)
    assert tail(0, 0, 0.01) == 1.0


@pytest.mark.parametrize(("k", "n", "p"), [(-1, 5, 0.1), (6, 5, 0.1), (1, 5, 0.0), (1, 5, 1.0), (1, 5, math.nan)])
def test_what_is_no_binomial_is_refused(k: int, n: int, p: float):
    with pytest.raises(ValueError, match="no binomial"):
        tail(k, n, p)
