"""The laws that every estimator with update and estimate obeys."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.protocol import Estimator
from estimators.quantile import WindowedQuantile
from estimators.rate import EventRate

ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "quantile": lambda: WindowedQuantile(0.99, min_samples=5),
    "thinned quantile": lambda: WindowedQuantile(0.5, min_samples=1, cap_per_slice=4),
    "rate": lambda: EventRate(start_s=0.0),
}
every_estimator = pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS.keys())
samples = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 1000.0)), max_size=40)


@every_estimator
def test_without_samples_there_is_no_evidence_and_no_bound(make):
    nothing = make().estimate(5.0)
    assert nothing.n == 0
    assert not nothing.value
    assert nothing.low is None
    assert nothing.high is None
    assert nothing.asof_s == 5.0


@every_estimator
def test_a_sample_that_is_not_a_number_is_refused_and_leaves_no_trace(make):
    estimator = make()
    with pytest.raises(ValueError, match="nan"):
        estimator.update(math.nan, 1.0)
    assert estimator.estimate(1.0) == make().estimate(1.0)


@every_estimator
@settings(derandomize=True)
@given(rows=samples)
def test_asking_changes_nothing(make, rows):
    asked, silent = make(), make()
    for value, now_s in rows:
        asked.update(value, now_s)
        silent.update(value, now_s)
        assert asked.estimate(now_s) == asked.estimate(now_s)
    assert asked.estimate(2000.0) == silent.estimate(2000.0)


@every_estimator
@settings(derandomize=True)
@given(rows=samples)
def test_whatever_the_order_of_times_the_value_lies_between_its_bounds(make, rows):
    estimator = make()
    for value, now_s in rows:
        estimator.update(value, now_s)
        estimate = estimator.estimate(now_s)
        assert estimate.n >= 0
        if estimate.value is not None:
            assert math.isfinite(estimate.value)
            assert estimate.low is None or estimate.low <= estimate.value
            assert estimate.high is None or estimate.high >= estimate.value


@every_estimator
def test_two_estimators_share_no_state(make):
    first, second = make(), make()
    for at in range(50):
        first.update(1.0, float(at))
    assert second.estimate(50.0).n == 0
