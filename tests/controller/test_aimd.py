"""AIMD on the price, branch by branch."""

from math import inf, log

import pytest

from controller.laws.aimd import Aimd
from controller.laws.protocol import Action, Adjustment, PriceRange, Sides
from controller.proposal import Envelope
from tests.controller.records import severities

LAW = Aimd()
S = 0.5


def step(sigma: float, sides: Sides) -> Adjustment:
    """One tick; it keeps no memory."""
    law, adjustment = LAW.step(sigma, sides)
    assert law is LAW
    return adjustment


def test_tpot_over_its_slo_backs_off_by_a_factor():
    assert step(S, severities(0.5, 1.2)) == Adjustment(0.96 * S, Action.PROTECT_TPOT)


def test_ttft_over_its_slo_gains_a_fixed_step():
    assert step(S, severities(1.2, 0.5)) == Adjustment(S + 0.02, Action.PROTECT_TTFT)


def test_both_inside_holds():
    assert step(S, severities(0.99, 0.2)) == Adjustment(S, Action.HOLD)


def test_exactly_at_the_slo_is_inside():
    assert step(S, severities(1.0, 1.0)) == Adjustment(S, Action.HOLD)


def test_with_both_over_the_relatively_worse_one_wins():
    assert step(S, severities(1.5, 1.6)).action is Action.PROTECT_TPOT
    assert step(S, severities(1.6, 1.5)).action is Action.PROTECT_TTFT


def test_with_both_over_alike_tpot_wins():
    assert step(S, severities(1.5, 1.5)).action is Action.PROTECT_TPOT
    assert step(S, severities(inf, inf)).action is Action.PROTECT_TPOT


def test_without_evidence_on_either_side_nothing_moves():
    assert step(S, severities(None, None)) == Adjustment(S, Action.NO_EVIDENCE)


@pytest.mark.parametrize(
    ("ttft", "tpot", "action"),
    [
        (1.2, None, Action.PROTECT_TTFT),
        (0.8, None, Action.HOLD),
        (None, 1.2, Action.PROTECT_TPOT),
        (None, 0.8, Action.HOLD),
    ],
)
def test_one_side_with_evidence_is_enough_to_act_on(ttft, tpot, action):
    assert step(S, severities(ttft, tpot)).action is action


def test_the_gain_stops_at_the_end_of_the_range():
    assert step(0.99, severities(2.0, 0.5)).sigma == 1.0
    assert step(1.0, severities(2.0, 0.5)).sigma == 1.0


def test_the_clipped_state_leaves_the_end_at_once():
    sigma = 1.0
    for _ in range(1000):
        sigma = step(sigma, severities(2.0, 0.5)).sigma
    assert step(sigma, severities(0.5, 2.0)).sigma == 0.96


def test_its_largest_step_stays_below_the_slew_limit():
    assert (1 - LAW.back_off) * log(PriceRange().high / PriceRange().low) < Envelope().max_ln_step


@pytest.mark.parametrize(("back_off", "gain"), [(0, 0.02), (1, 0.02), (1.1, 0.02), (0.96, 0), (0.96, 1), (0.96, -1)])
def test_settings_that_cannot_settle_are_refused(back_off, gain):
    with pytest.raises(ValueError, match="AIMD needs back_off and gain inside"):
        Aimd(back_off, gain)
