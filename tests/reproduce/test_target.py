"""Findings: what the error is against, and when a target holds."""

from __future__ import annotations

import pytest

from trimtab.reproduce.target import Finding, Target, Unit, Verdict


def target(unit: Unit = Unit.MS, **more) -> Target:
    return Target("figure-0/x", "x", unit, "Figure 0", **more)


def test_an_error_is_against_what_was_measured_where_something_was():
    found = Finding(target(paper=100.0), trimtab=110.0, measured=88.0)
    assert found.against == "measured"
    assert found.error == pytest.approx(0.25)


def test_an_error_is_against_the_paper_where_nothing_was_measured():
    found = Finding(target(paper=100.0), trimtab=110.0)
    assert found.against == "paper" and found.error == pytest.approx(0.1)


@pytest.mark.parametrize("unit", [Unit.SHARE, Unit.CHANGE, Unit.COUNT])
def test_errors_of_shares_changes_and_counts_are_differences(unit):
    assert Finding(target(unit, paper=-0.5), trimtab=-0.6).error == pytest.approx(-0.1)
    assert Finding(target(unit, paper=0.0), trimtab=0.1).error == pytest.approx(0.1)


def test_without_anything_to_compare_with_there_is_no_error():
    for found in (Finding(target(), 1.0), Finding(target(paper=1.0), None), Finding(target(paper=0.0), 1.0)):
        assert found.error is None


def test_a_limit_is_on_the_size_of_the_error():
    held = target(paper=100.0, limit=0.08)
    assert Finding(held, 92.5).verdict is Verdict.HOLDS
    assert Finding(held, 91.5).verdict is Verdict.MISSES


def test_bounds_are_on_the_value():
    within = target(Unit.SHARE, at_least=0.2, at_most=0.4)
    assert [Finding(within, v).verdict for v in (0.1, 0.2, 0.4, 0.5)] == [
        Verdict.MISSES,
        Verdict.HOLDS,
        Verdict.HOLDS,
        Verdict.MISSES,
    ]


def test_a_target_without_limit_or_value_is_shown():
    assert Finding(target(paper=1.0), 9.0).verdict is Verdict.SHOWN
    assert Finding(target(limit=0.1), 9.0).verdict is Verdict.SHOWN
    assert Finding(target(at_most=1.0), None).verdict is Verdict.SHOWN


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.MS, 8.0715, "8.07"),
        (Unit.MS, 143.72, "143.7"),
        (Unit.MS, 3028.4, "3,028"),
        (Unit.SHARE, 0.922, "92.2%"),
        (Unit.CHANGE, -0.733, "-73.3%"),
        (Unit.COUNT, 17.0, "17"),
        (Unit.RATIO, 2.216, "2.22"),
        (Unit.MS, None, "–"),
    ],
)
def test_values_are_written_for_people(unit, value, text):
    assert unit.text(value) == text
