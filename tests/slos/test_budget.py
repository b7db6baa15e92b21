"""What is left of a budget, by hand."""

from dataclasses import replace

import pytest

from slos.allowance import Budget, Method
from slos.budget import burn, error_budget, exhausted_in_s
from slos.counts import Count
from slos.history import History
from slos.objective import Signal, Slo

DAY_S = 86_400.0
SLO = Slo("ttft", Signal.TTFT, 0.99, 0.5)
BY_SLICES = replace(SLO, budget=Budget(method=Method.SLICES, good_slices=0.99))
NOW = 6_000_000
WEEKS = 8_064
"""Slices in 28 days."""


def history(slices: int = WEEKS, each: Count | None = None, **other: Count) -> History:
    """So many closed slices before NOW, all alike; `other`: by name `s5` those that are not, counted back from NOW."""
    made = History(300.0, 28 * DAY_S)
    for at in range(NOW - slices, NOW):
        made.put(at, each or Count(600, 3))
    for name, count in other.items():
        made.put(NOW - int(name[1:]), count)
    return made


def test_four_full_weeks_at_half_the_allowed_share_leave_half():
    budget = error_budget(SLO, history(), NOW)
    assert budget.left == pytest.approx(0.5) and budget.measured == 1.0
    assert budget.bad_left == WEEKS * 3 and budget.elapsed_s == 28 * DAY_S


def test_a_quiet_bad_hour_weighs_as_its_requests_and_not_as_its_hours():
    # 20 h at 600 a slice, then an hour of 30 a slice that is all bad: 360 bad turns of 144,360.
    made = history(240, Count(600, 0), **{f"s{at}": Count(30, 30) for at in range(1, 13)})
    budget = error_budget(SLO, made, NOW)
    assert budget.spent == 360
    rest = 28 * DAY_S / budget.elapsed_s
    assert budget.allowed == pytest.approx(0.01 * ((240 - 12) * 600 + 360) * rest)
    assert (
        error_budget(
            BY_SLICES, history(240, Count(600, 0), **{f"s{at}": Count(300, 300) for at in range(1, 13)}), NOW
        ).left
        < 0.9
    )


def test_a_young_budget_expects_more_of_the_same_and_is_not_gone_after_two_bad_turns():
    budget = error_budget(SLO, history(2, Count(100, 1)), NOW)
    assert budget.spent == 2 and budget.left > 0.999


def test_an_overspent_budget_is_below_zero_and_says_by_how_much():
    budget = error_budget(SLO, history(WEEKS, Count(600, 9)), NOW)
    assert budget.left == pytest.approx(-0.5) and budget.bad_left == -WEEKS * 3
    assert exhausted_in_s(SLO, budget, 1.5) == 0.0


def test_by_slices_unknown_ones_count_for_nothing_and_lower_the_coverage():
    thin = {f"s{at}": Count(10, 10) for at in range(1, 4033)}
    bad = {f"s{at}": Count(600, 7) for at in range(4033, 4053)}
    budget = error_budget(BY_SLICES, history(WEEKS, Count(600, 3), **thin, **bad), NOW)
    assert budget.spent == 20 and budget.measured == pytest.approx(0.5)
    assert budget.allowed == pytest.approx(40.32) and budget.left == pytest.approx(1 - 20 / 40.32)


def test_nothing_counted_is_nothing_spent():
    budget = error_budget(SLO, History(300.0, 28 * DAY_S), NOW)
    assert not budget.known and budget.left == 1.0 and exhausted_in_s(SLO, budget, 100.0) is None


def test_burn_is_the_share_over_the_allowed_one():
    made = history(WEEKS, Count(600, 3), **{f"s{at}": Count(600, 60) for at in range(1, 13)})
    assert burn(SLO, made, NOW, 3600.0).rate == pytest.approx(10.0)
    assert burn(SLO, made, NOW, 6 * 3600.0).rate == pytest.approx((12 * 60 + 60 * 3) / (72 * 6))
    assert burn(SLO, made, NOW, 300.0, Count(100, 2)).rate == pytest.approx(2.0)
    assert burn(SLO, made, NOW + 500, 3600.0).rate is None, "an hour without turns says nothing"


def test_a_burn_over_more_than_was_seen_is_what_was_really_spent():
    seen = burn(SLO, history(3, Count(600, 60)), NOW, 3 * DAY_S)
    assert seen.rate == pytest.approx(10.0)
    assert seen.spent == pytest.approx(10.0 * 4 / 864)


def test_by_slices_burn_is_the_share_of_bad_slices():
    made = history(WEEKS, Count(600, 3), s1=Count(600, 600), s2=Count(5, 5))
    assert burn(BY_SLICES, made, NOW, 3600.0).rate == pytest.approx(1 / 11 / 0.01)
    assert burn(BY_SLICES, made, NOW, 300.0, Count(600, 7)).rate == pytest.approx(100.0)
    assert burn(BY_SLICES, made, NOW, 300.0, Count(50, 50)).rate is None


@pytest.mark.parametrize(("rate", "seconds"), [(None, None), (0.5, None), (1.0, None), (2.0, 7 * DAY_S), (14.0, DAY_S)])
def test_the_end_is_in_sight_where_more_is_spent_than_comes_back(rate: float | None, seconds: float | None):
    assert exhausted_in_s(SLO, error_budget(SLO, history(), NOW), rate) == (
        None if seconds is None else pytest.approx(seconds)
    )
