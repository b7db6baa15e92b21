"""Stamps: an answer that was long on its way is known by its engine's own clock, whatever that shows."""

from __future__ import annotations

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.stamps import KEPT, Stamps, date_s


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20), st.floats(0.0, 100.0))
def test_it_is_never_later_than_the_answer_left_and_two_seconds_early_at_most(skew_s, quick_s, late_s):
    """`skew_s`: how far the engine's clock is ahead. One answer before was on its way for no time."""
    stamps, now_s = Stamps(), 1000.0
    stamps.left_s(now_s + skew_s - 0.5, now_s)  # a header half a second behind its clock
    for gap_s in quick_s:
        now_s += gap_s
        stamps.left_s(floor(now_s + skew_s), now_s)
    found = stamps.left_s(floor(now_s + skew_s), now_s + late_s)
    assert now_s - 2.0 - 1e-6 <= found <= now_s + 1e-6


def test_a_clock_that_was_stepped_is_believed_again_in_the_end():
    stamps = Stamps()
    stamps.left_s(100.0, 100.0)
    for at in range(KEPT - 1):
        assert stamps.left_s(100.0 + at, 130.0 + at) == 99.0 + at
    assert stamps.left_s(500.0, 530.0) == 529.0


@pytest.mark.parametrize("header", [None, "", "yesterday", "Mon, 99 Nov 2026 03:00:00 GMT"])
def test_no_date_is_none(header):
    assert date_s(header) is None


def test_a_date_is_read():
    assert date_s("Thu, 01 Jan 1970 00:01:00 GMT") == 60.0
