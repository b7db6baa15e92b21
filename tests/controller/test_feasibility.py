"""The flag that no price will do: half a minute to raise it, a minute to clear it, and the side that needs help."""

import pytest

from controller.feasibility import CLEAR, NEAR_END, RAISE, Feasibility, Relief
from controller.laws.protocol import Sides
from tests.controller.records import counted, severities

BOTH_OVER, TTFT_OVER, TPOT_OVER = severities(1.5, 1.5), severities(1.5, 0.5), severities(0.5, 1.5)
INSIDE, NOTHING = severities(0.5, 0.5), severities(None, None)


def watched(watch: Feasibility, sigma: float, sides: Sides, ticks: int) -> Feasibility:
    for _ in range(ticks):
        watch = watch.after(sigma, sides, sides)
    return watch


def test_both_over_for_half_a_minute_raises_the_flag_and_not_before():
    almost = watched(Feasibility(), 0.5, BOTH_OVER, RAISE - 1)
    assert almost.relief is None
    assert almost.after(0.5, BOTH_OVER, BOTH_OVER).relief is Relief.BOTH


@pytest.mark.parametrize(
    ("sigma", "sides", "relief"),
    [
        (1.0, TTFT_OVER, Relief.PREFILL),
        (1 - NEAR_END, TTFT_OVER, Relief.PREFILL),
        (0.0, TPOT_OVER, Relief.DECODE),
        (NEAR_END, TPOT_OVER, Relief.DECODE),
        (0.5, BOTH_OVER, Relief.BOTH),
        (0.0, BOTH_OVER, Relief.BOTH),
        (1.0, severities(1.5, None), Relief.PREFILL),
        (0.0, severities(None, 1.5), Relief.DECODE),
        (1.0, severities(float("inf"), 0.5), Relief.PREFILL),
    ],
)
def test_the_flag_names_the_side_that_needs_capacity(sigma, sides, relief):
    assert watched(Feasibility(), sigma, sides, RAISE).relief is relief


@pytest.mark.parametrize(
    ("sigma", "sides"),
    [
        (0.5, TTFT_OVER),
        (0.5, TPOT_OVER),
        (0.0, TTFT_OVER),  # the price has far to go yet
        (1.0, TPOT_OVER),
        (0.0, severities(1.0, 1.0)),
        (0.5, INSIDE),
    ],
)
def test_trouble_that_the_price_can_still_mend_raises_nothing(sigma, sides):
    assert watched(Feasibility(), sigma, sides, 10 * RAISE).relief is None


def test_an_operators_bounds_are_ends_too():
    watch = Feasibility()
    for _ in range(RAISE):
        watch = watch.after(0.3, TPOT_OVER, TPOT_OVER, (0.3, 0.7))
    assert watch.relief is Relief.DECODE
    assert watched(Feasibility(), 0.3, TPOT_OVER, RAISE).relief is None


def test_a_single_tick_without_trouble_starts_the_count_anew():
    watch = watched(Feasibility(), 0.5, BOTH_OVER, RAISE - 1).after(0.5, INSIDE, INSIDE)
    assert watched(watch, 0.5, BOTH_OVER, RAISE - 1).relief is None
    assert watched(watch, 0.5, BOTH_OVER, RAISE).relief is Relief.BOTH


def test_the_flag_clears_after_a_minute_without_trouble_and_not_before():
    raised = watched(Feasibility(), 0.5, BOTH_OVER, RAISE)
    almost = watched(raised, 0.5, INSIDE, CLEAR - 1)
    assert almost.relief is Relief.BOTH
    assert almost.after(0.5, INSIDE, INSIDE).relief is None


def test_trouble_within_the_minute_keeps_the_flag():
    watch = watched(Feasibility(), 0.5, BOTH_OVER, RAISE)
    for _ in range(5):
        watch = watched(watch, 0.5, INSIDE, CLEAR - 1).after(0.5, BOTH_OVER, BOTH_OVER)
        assert watch.relief is Relief.BOTH


def test_a_raised_flag_follows_the_side():
    raised = watched(Feasibility(), 1.0, TTFT_OVER, RAISE)
    assert raised.after(0.0, TPOT_OVER, TPOT_OVER).relief is Relief.DECODE


def test_no_evidence_changes_nothing():
    for watch in (Feasibility(), Feasibility(5, 0), Feasibility(20, 0, Relief.BOTH), Feasibility(0, 7, Relief.DECODE)):
        assert watch.after(0.0, NOTHING, NOTHING) == watch == watch.after(1.0, NOTHING, NOTHING)


@pytest.mark.parametrize(
    ("sigma", "trouble", "silent"),
    [
        (1.0, TTFT_OVER, severities(None, 0.5)),
        (1.0, TTFT_OVER, severities(None, 1.5)),
        (0.0, TPOT_OVER, severities(0.5, None)),
        (0.5, BOTH_OVER, severities(None, 1.5)),
        (0.5, BOTH_OVER, severities(1.5, None)),
    ],
)
def test_a_tick_without_evidence_on_the_side_that_was_short_changes_nothing(sigma, trouble, silent):
    half = watched(Feasibility(), sigma, trouble, RAISE // 2)
    assert half.after(sigma, silent, silent) == half
    raised = watched(half.after(sigma, silent, silent), sigma, trouble, RAISE // 2)
    assert raised.relief is not None
    assert watched(raised, sigma, silent, 10 * RAISE) == raised


@pytest.mark.parametrize("inside", [severities(0.5, None), severities(None, 0.5)])
def test_one_side_inside_refutes_that_both_are_over(inside):
    raised = watched(Feasibility(), 0.5, BOTH_OVER, RAISE)
    assert watched(raised, 0.5, inside, CLEAR).relief is None


def test_with_an_slo_on_one_side_alone_the_flag_comes_and_goes():
    raised = watched(Feasibility(), 1.0, severities(1.5, None), RAISE)
    assert raised.relief is Relief.PREFILL
    assert watched(raised, 1.0, severities(0.5, None), CLEAR).relief is None


def test_one_side_missed_for_sure_does_not_make_up_for_another_that_may_be_chance():
    sure, doubtful = counted((30, 1000), (30, 1000)), counted((60, 1000), (12, 1000))
    assert watched(Feasibility(), 0.5, sure, RAISE).relief is Relief.BOTH
    assert watched(Feasibility(), 0.5, doubtful, 10 * RAISE).relief is None


@pytest.mark.parametrize("now", [severities(1.5, 0.9), severities(0.9, 1.5), INSIDE])
def test_an_overload_that_is_over_raises_nothing_and_clears_what_it_raised(now):
    remembered = BOTH_OVER
    watch = Feasibility()
    for _ in range(10 * RAISE):
        watch = watch.after(0.5, remembered, now)
    assert watch.relief is None
    watch = watched(Feasibility(), 0.5, BOTH_OVER, RAISE)
    for _ in range(CLEAR):
        watch = watch.after(0.5, remembered, now)
    assert watch.relief is None


def test_the_flag_does_not_outlive_a_minute_in_which_nobody_asks():
    watch = watched(Feasibility(), 0.5, BOTH_OVER, RAISE)
    for _ in range(CLEAR - 1):
        watch = watch.unasked()
    assert watch.relief is Relief.BOTH and watch.unasked().relief is None
    assert watched(watch.unasked(), 0.5, BOTH_OVER, RAISE - 1).relief is None
