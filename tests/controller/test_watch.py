"""An operator's change under watch: what is far over, and whom it is blamed on."""

from __future__ import annotations

import pytest

from controller.laws.protocol import PriceRange
from controller.watch import WATCH_TICKS, Misses, Watch, added, misses
from slos.counts import Count
from tests.controller.records import TPOT, TTFT

CHANGE = Watch(None, PriceRange(), False, "0.4 -> 4")


@pytest.mark.parametrize(
    ("bad", "valid", "far"),
    [
        (4, 20, False),
        (5, 45, False),
        (5, 20, True),
        (8, 100, False),
        (12, 100, True),
        (50, 1000, False),
        (80, 1000, True),
    ],
)
def test_far_over_is_what_chance_does_not_explain_at_five_times_what_is_allowed(bad, valid, far):
    assert Misses(0.01, valid, bad).far_over is far


def test_turns_that_ended_in_the_first_tick_were_decided_before():
    first = CHANGE.after({"tpot": Misses(0.01, 50, 50)})
    assert first is not None and not first.failed
    second = first.after({"tpot": Misses(0.01, 50, 50)})
    assert second is not None and second.failed


def test_counts_add_up_over_ticks_and_the_watch_ends_after_a_minute():
    watch: Watch | None = CHANGE
    for tick in range(WATCH_TICKS):
        assert watch is not None and not watch.failed, tick
        watch = watch.after({"tpot": Misses(0.01, 20, 0 if tick < 3 else 1)})
    assert watch is not None and watch.misses is not None and watch.misses["tpot"].bad == 9
    assert watch.after({}) is None


def test_what_was_judged_between_two_counts_is_of_the_slos_that_drive_the_model():
    before, now = {"tpot": Count(10, 1)}, {"tpot": Count(30, 4), "later-ttft": Count(5, 5), "other": Count(9, 9)}
    found = misses((TTFT, TPOT), "m", before, now)
    assert {name: (each.valid, each.bad) for name, each in found.items()} == {"tpot": (20, 3), "later-ttft": (5, 5)}
    assert found["tpot"].epsilon == pytest.approx(0.01)
    assert added(found, found, 0.5)["tpot"].bad == 4.5
