"""The verdict on one slice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from slos.counts import Count
from slos.slices import SliceVerdict, judge_slice

OK, BREACH, UNKNOWN = SliceVerdict.OK, SliceVerdict.BREACH, SliceVerdict.UNKNOWN


@pytest.mark.parametrize(
    ("valid", "bad", "verdict"),
    [
        (0, 0, UNKNOWN),
        (99, 99, UNKNOWN),
        (100, 0, OK),
        (100, 1, OK),
        (100, 3, OK),  # as many by chance in 8 of 100 slices
        (100, 4, BREACH),
        (600, 6, OK),
        (600, 10, OK),
        (600, 11, BREACH),
        (1240, 76, BREACH),
    ],
)
def test_a_slice_is_broken_beyond_chance_and_unknown_with_too_few_turns(valid: int, bad: int, verdict: SliceVerdict):
    assert judge_slice(Count(valid, bad), 0.01, 100).verdict is verdict


def test_excluded_turns_do_not_make_a_slice_known():
    assert judge_slice(Count(50, 0, 5000), 0.01, 100).verdict is UNKNOWN


@given(st.integers(1, 3000), st.data(), st.sampled_from([0.001, 0.01, 0.05, 0.3]))
def test_the_chance_is_that_of_the_exact_test(valid: int, data, epsilon: float):
    bad = data.draw(st.integers(0, valid))
    found = judge_slice(Count(valid, bad), epsilon, 1)
    exact = stats.binomtest(bad, valid, epsilon, alternative="greater").pvalue
    assert found.p_value == pytest.approx(exact, rel=1e-6, abs=1e-12)


def test_a_service_just_inside_is_rarely_called_broken_and_one_far_outside_nearly_always():
    def share_broken(slow: float) -> float:
        return sum(
            float(stats.binom.pmf(bad, 600, slow))
            for bad in range(601)
            if judge_slice(Count(600, bad), 0.01, 100).verdict is BREACH
        )

    assert share_broken(0.009) < 0.05
    assert share_broken(0.05) > 0.99


def test_a_confidence_of_nothing_or_everything_is_refused():
    with pytest.raises(ValueError, match="confidence"):
        judge_slice(Count(100, 0), 0.01, 100, 1.0)
