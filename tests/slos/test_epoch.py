"""A calendar that neither skips nor repeats slices when somebody sets the clock."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slos.epoch import JUMP_S, SLEW, STOOD_S, Epoch

WALL_S = 1.8e9


def walk(epoch: Epoch, steps: int, wall_minus_mono: float, step_s: float = 5.0, begin_s: float = 0.0) -> list[float]:
    return [epoch.at(begin_s + at * step_s, wall_minus_mono + begin_s + at * step_s) for at in range(1, steps + 1)]


def test_it_is_the_wall_clock_while_that_is_right():
    assert walk(Epoch(WALL_S, 0.0), 3, WALL_S) == [WALL_S + 5.0, WALL_S + 10.0, WALL_S + 15.0]


@pytest.mark.parametrize("jump_s", [-1800.0, -30.0, 30.0, 1800.0])
def test_a_correction_is_caught_up_slowly_and_never_backwards(jump_s: float):
    epoch = Epoch(WALL_S, 0.0)
    seen = walk(epoch, 6000, WALL_S + jump_s)
    steps = [after - before for before, after in pairwise(seen)]
    assert all(5.0 * (1.0 - SLEW) - 1e-6 <= step <= 5.0 * (1.0 + SLEW) + 1e-6 for step in steps)
    assert seen[-1] == pytest.approx(WALL_S + jump_s + 30_000.0)
    assert epoch.jumps == 0


@pytest.mark.parametrize("jump_s", [-40 * 86_400.0, 3 * 86_400.0])
def test_a_jump_of_days_is_believed_once_it_has_stood(jump_s: float):
    epoch = Epoch(WALL_S, 0.0)
    seen = walk(epoch, 200, WALL_S + jump_s)
    standing = int(STOOD_S / 5.0)
    assert seen[standing - 1] == pytest.approx(WALL_S + STOOD_S), "until then it is as if nothing had happened"
    assert seen[-1] == pytest.approx(WALL_S + jump_s + 1000.0) and epoch.jumps == 1


def test_a_jump_that_is_taken_back_has_never_been():
    epoch = Epoch(WALL_S, 0.0)
    walk(epoch, 100, WALL_S + 1e6)
    assert walk(epoch, 100, WALL_S, begin_s=500.0)[-1] == pytest.approx(WALL_S + 1000.0)


def test_a_restart_goes_on_from_the_last_slice_that_was_stored():
    assert Epoch(WALL_S, 0.0, WALL_S + 600.0).at(0.0, WALL_S) == WALL_S + 600.0
    assert Epoch(WALL_S, 0.0, WALL_S - 600.0).at(0.0, WALL_S) == WALL_S
    assert Epoch(WALL_S, 0.0, WALL_S + 2 * JUMP_S).at(0.0, WALL_S) == WALL_S, "that one was wrong"


@given(st.lists(st.tuples(st.floats(0.0, 600.0), st.floats(-3000.0, 3000.0)), max_size=50))
def test_whatever_small_errors_the_clock_has_time_goes_forward(steps: list[tuple[float, float]]):
    epoch, mono_s, before_s = Epoch(WALL_S, 0.0), 0.0, WALL_S
    for step_s, error_s in steps:
        mono_s += step_s
        now_s = epoch.at(mono_s, WALL_S + mono_s + error_s)
        assert now_s >= before_s
        before_s = now_s
