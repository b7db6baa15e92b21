"""The rate of events over two horizons."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.rate import EventRate


def steady(rate_hz: float, until_s: float, start_s: float = 0.0) -> EventRate:
    rate = EventRate(start_s)
    for at in range(1, int(rate_hz * (until_s - start_s)) + 1):
        rate.update(1.0, start_s + at / rate_hz)
    return rate


@pytest.mark.parametrize("rate_hz", [0.5, 4.0, 20.0])
@pytest.mark.parametrize("until_s", [30.0, 300.0])
def test_a_steady_stream_is_read_at_its_rate_from_early_on(rate_hz: float, until_s: float):
    assert steady(rate_hz, until_s).rate_hz(until_s) == pytest.approx(rate_hz, rel=0.1)


def test_the_start_is_no_slower_than_the_rest():
    assert steady(10.0, 3.0).rate_hz(3.0) == pytest.approx(10.0, rel=0.15)


def test_the_first_event_right_after_the_start_is_no_burst():
    rate = EventRate(100.0)
    rate.update(1.0, 100.001)
    assert rate.rate_hz(100.001) < 1.1


def test_nothing_happened_reads_as_zero():
    assert EventRate(0.0).rate_hz(1000.0) == 0.0


def test_the_rate_falls_after_the_last_event_and_is_gone_in_time():
    rate = steady(10.0, 100.0)
    now, later, late = (rate.rate_hz(at_s) for at_s in (100.0, 110.0, 5000.0))
    assert now > later > late
    assert late < 1e-6


def test_the_result_is_the_geometric_mean_of_the_horizons():
    rate, short, long = EventRate(0.0), EventRate(0.0, (10.0,)), EventRate(0.0, (60.0,))
    for each in (rate, short, long):
        for at_s in (1.0, 40.0, 55.0, 56.0):
            each.update(2.0, at_s)
    assert rate.rate_hz(60.0) == pytest.approx(math.sqrt(short.rate_hz(60.0) * long.rate_hz(60.0)))


def test_a_step_is_seen_within_seconds():
    rate = steady(2.0, 300.0)
    for at in range(1, 301):
        rate.update(1.0, 300.0 + at / 20.0)
    assert 8.0 < rate.rate_hz(315.0) < 20.0


def test_time_that_runs_backwards_stands_still():
    rate = steady(10.0, 100.0)
    before = rate.rate_hz(100.0)
    assert rate.rate_hz(50.0) == before
    rate.update(1.0, 50.0)
    assert before < rate.rate_hz(100.0) < before * 1.02


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_an_impossible_number_of_events_is_refused(value: float):
    with pytest.raises(ValueError, match="events"):
        EventRate(0.0).update(value, 1.0)


@pytest.mark.parametrize("horizons_s", [(), (0.0,), (10.0, -1.0)])
def test_a_horizon_is_positive(horizons_s: tuple[float, ...]):
    with pytest.raises(ValueError, match="horizons"):
        EventRate(0.0, horizons_s)


@settings(derandomize=True)
@given(st.lists(st.floats(0.0, 1e9), max_size=30), st.floats(0.0, 1e9))
def test_the_rate_is_finite_and_not_negative_whatever_the_times(times: list[float], now_s: float):
    rate = EventRate(0.0)
    for at_s in times:
        rate.update(1.0, at_s)
    assert 0.0 <= rate.rate_hz(now_s) < math.inf
    assert 0.0 <= rate.estimate(now_s).n <= len(times) + 1e-9
