"""Misses over the last ticks, by conversation, and with turns that still wait."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.clusters import Clusters
from estimators.exceedance import Exceedance
from estimators.exceedance_window import WindowedExceedance


def filled(values, limit=0.5, **more) -> WindowedExceedance:
    window = WindowedExceedance(limit, **more)
    for at, value in enumerate(values):
        window.update(value, float(at))
    return window


def test_single_turns_are_counted_as_they_are():
    assert filled([0.1] * 297 + [0.5, 0.6, math.inf]).estimate(9.0) == Exceedance(2, 300).estimate(9.0)


def test_a_conversation_is_one_over_all_ticks_of_the_window():
    window = WindowedExceedance(0.5)
    for tick in range(3):
        for name in ("a", "b", "c"):
            window.update(0.9 if name == "a" else 0.1, 5.0 * tick, name)
        window.roll(5.0 * tick)
    assert window.clusters() == Clusters.of([(3, 3), (0, 3), (0, 3)])


def test_what_is_older_than_the_window_is_gone():
    window = filled([0.9] * 5, slices=1)
    for tick in (1.0, 2.0):
        window.roll(tick)
    assert window.estimate(2.0).n == 0


def test_a_turn_that_waits_past_the_limit_is_a_miss_and_a_younger_one_may_become_one():
    calm, late, young = (filled([0.1] * 400).estimate(0.0, ages) for ages in ((), [0.7] * 8, [0.3] * 8))
    assert late == Exceedance(8, 408).estimate(0.0)
    assert calm.value == young.value == 0.0
    assert young.low == 0.0
    assert calm.high is not None and young.high is not None and late.high is not None
    assert young.high == late.high > 2.0 * calm.high


def test_a_stalled_fleet_does_not_look_fast():
    stalled = WindowedExceedance(0.5).estimate(1.0, [0.2] * 50)
    assert (stalled.value, stalled.low, stalled.high) == (None, 0.0, 1.0)
    assert WindowedExceedance(0.5).estimate(1.0, [0.8] * 50).value == 1.0


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=80))
def test_more_conversations_than_fit_are_summed_up_and_none_is_lost(rows):
    small, large = WindowedExceedance(0.5, cap=3), WindowedExceedance(0.5)
    for name, slow in rows:
        for window in (small, large):
            window.update(float(slow), 0.0, f"c{name}")
    few, all_ = small.clusters(), large.clusters()
    assert (few.valid, few.bad) == (all_.valid, all_.bad)
    assert few.conversations >= all_.conversations
    assert len(small._open.counts) <= 3


@pytest.mark.parametrize(
    "bad", [{"limit": math.nan}, {"slices": 0}, {"cap": 0}, {"confidence": 1.0}, {"confidence": math.nan}]
)
def test_a_window_that_can_hold_nothing_cannot_be_made(bad):
    with pytest.raises(ValueError, match="no window"):
        WindowedExceedance(**{"limit": 1.0, **bad})


def test_what_is_no_age_is_refused():
    with pytest.raises(ValueError, match="not an age"):
        WindowedExceedance(0.5).estimate(0.0, [math.nan])
