"""What a price has done: turning points, and the sign of the answer."""

from __future__ import annotations

from math import inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.moves import CYCLE_TICKS, EVERY_TICKS, MAX_REVERSALS, MOVES, SWING, Moves, balance, reversals
from slos.reduce import Binding, SloReading
from tests.controller.records import TPOT, TTFT


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        ([], 0),
        ([0.0], 0),
        ([0.0, 0.2, 0.4, 0.6], 0),
        ([0.0, 0.2, 0.0], 1),
        ([0.0, -0.2, 0.0], 1),
        ([0.0, 0.1, 0.0, 0.1, 0.0, 0.1], 0),
        ([0.0, 0.2, 0.0, 0.2, 0.0], 3),
        ([0.0, 0.1, 0.2, 0.1, 0.0, 0.1, 0.2], 2),
        ([0.0, 0.2, 0.1, 0.2, 0.1, 0.2], 0),
    ],
)
def test_a_turning_point_counts_after_a_swing_of_some_size(levels, found):
    assert reversals(levels, 0.15) == found


@given(st.lists(st.floats(-3, 3), max_size=30))
def test_no_more_turning_points_than_ticks_and_the_same_upside_down(levels):
    assert reversals(levels) <= max(0, len(levels) - 2)
    assert reversals([-level for level in levels]) == reversals(levels)


def test_a_price_that_goes_to_and_fro_is_cycling_and_one_that_goes_somewhere_is_not():
    to_and_fro = Moves()
    for at in range(MAX_REVERSALS + 3):
        assert not to_and_fro.cycling
        to_and_fro = to_and_fro.after(SWING * 1.1 * (at % 2), None)
    assert to_and_fro.cycling
    away = Moves()
    for at in range(40):
        away = away.after(0.2 * at, None)
    assert not away.cycling and len(away.levels) == CYCLE_TICKS + 1


def test_the_balance_is_of_both_sides_and_finite():
    assert balance(Binding(SloReading(TTFT, 2.0), SloReading(TPOT, 0.08))) == pytest.approx(log(2))
    assert balance(Binding(SloReading(TTFT, 2.0), None)) is None
    never = balance(Binding(SloReading(TTFT, inf), SloReading(TPOT, 0.04)))
    assert never is not None and -20 < never < 0


def driven(answer: float, seed: int, ticks: int = 600, noise: float = 0.05, drift: float = 0.0) -> bool:
    """Whether the wrong sign was ever found on a fleet whose balance answers to ln p with this slope, while the price
    goes up and down by chance."""
    dice = np.random.default_rng(seed)
    moves, level, found = Moves(), 0.0, False
    for tick in range(ticks):
        if tick % EVERY_TICKS == 1:
            level += float(dice.choice((-0.2, 0.2)))
        moves = moves.after(level, answer * level + drift * tick + float(dice.normal(0, noise)))
        found = found or moves.wrong
    return found


def test_a_fleet_that_answers_the_wrong_way_is_found_out():
    assert all(driven(+1.0, seed) for seed in range(20))


def test_a_fleet_that_answers_as_it_should_never_is():
    assert not any(driven(-1.0, seed) for seed in range(20))
    assert not any(driven(-1.0, seed, drift=0.01) for seed in range(20)), "nor while its load grows"


def test_a_price_without_any_effect_is_taken_for_a_wrong_sign_as_rarely_as_the_level_says():
    tests = sum(driven(0.0, seed, ticks=EVERY_TICKS * (MOVES + 4)) for seed in range(300))
    assert tests <= 8  # 300 tests at 1 %; nine or more have a chance of less than .4 %


def test_moves_in_one_direction_say_nothing():
    moves = Moves()
    for tick in range(300):
        moves = moves.after(-0.05 * tick, -0.1 * tick)  # an overload: the price falls and TTFT grows all the same
        assert not moves.wrong
    assert len(moves.answered) == MOVES


def test_a_gap_in_the_readings_starts_the_notes_anew():
    moves = Moves().after(0.0, 0.0)
    for _ in range(EVERY_TICKS):
        moves = moves.after(0.0, None)
    assert moves.notes == ()
