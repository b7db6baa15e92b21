"""The z-integral, branch by branch."""

import pytest

from controller.laws.protocol import Action, PriceRange, Side, Sides
from controller.laws.z_integral import HOME_PRICE, ZIntegral
from controller.proposal import Envelope

LAW = ZIntegral(proven=True)
QUIET = Side(0.5, -2.0, 0.5, turns=100.0)


def side(z: float, sd: float) -> Side:
    """A side of so much evidence."""
    return Side(None, z, sd, turns=100.0)


def test_a_side_that_is_missed_beyond_doubt_is_protected():
    _, adjustment = LAW.step(0.5, Sides(side(1.0, 0.4), QUIET))
    assert adjustment.action is Action.PROTECT_TTFT
    # e = 1 + .7 (room is cut there, and then counts half its deviation)
    assert adjustment.sigma == pytest.approx(min(0.5 + 0.045, 0.5 + 0.02 * 1.7 / (0.4**2 + 0.25**2) ** 0.5))
    assert LAW.step(0.5, Sides(QUIET, side(1.0, 0.4)))[1].action is Action.PROTECT_TPOT


def test_the_more_is_known_the_larger_the_step():
    vague = LAW.step(0.5, Sides(side(0.9, 0.85), QUIET))[1].sigma
    sure = LAW.step(0.5, Sides(side(0.9, 0.5), side(-2.0, 2.0)))[1].sigma
    assert vague > 0.5 and sure > 0.5
    assert LAW.step(0.5, Sides(side(0.9, 0.1), QUIET))[1].sigma == 0.5 + LAW.slew


def test_a_side_that_may_be_missed_sends_the_price_home():
    law, adjustment = LAW.step(0.9, Sides(side(0.5, 0.6), QUIET))
    assert adjustment.action is Action.RETURN and law is LAW
    assert adjustment.sigma == pytest.approx(0.9 + 0.2 * (PriceRange().sigma(HOME_PRICE) - 0.9))


def test_it_stays_where_nothing_seems_amiss_however_far_from_home():
    assert LAW.step(0.95, Sides(side(0.0, 0.6), side(-0.1, 0.6)))[1].sigma == 0.95


def test_home_follows_what_the_evidence_asks_for():
    law, sigma = LAW, LAW.home
    for _ in range(20):
        law, adjustment = law.step(sigma, Sides(side(2.0, 0.3), QUIET))
        sigma = adjustment.sigma
    assert sigma == 1.0 and law.home > 0.95
    assert law.step(0.5, Sides(side(0.5, 0.6), QUIET))[1].sigma > 0.5, "home is there now"


def test_a_price_that_is_not_proven_goes_home_until_both_are_kept_for_sure():
    fresh = ZIntegral()
    quiet = Sides(side(-0.1, 0.6), side(-0.1, 0.6))
    law, adjustment = fresh.step(0.95, quiet)
    assert adjustment.action is Action.RETURN and not law.proven
    kept = Side(0.5, -2.0, 0.5, 400.0, 0.0, 0.9)
    law, adjustment = fresh.step(0.95, Sides(kept, kept))
    assert law.proven and adjustment.sigma == 0.95
    assert law.step(0.95, quiet)[1].action is Action.HOLD


def test_what_it_has_learnt_outlives_it_and_nonsense_does_not():
    law, _ = ZIntegral(proven=True).step(0.5, Sides(side(2.0, 0.3), QUIET))
    assert ZIntegral().remembering(law.memory) == law
    assert ZIntegral().remembering({"home": 7.0, "else": 1.0}) == ZIntegral()


def test_a_step_against_an_end_teaches_nothing():
    law, adjustment = LAW.step(1.0, Sides(side(2.0, 0.3), QUIET))
    assert law is LAW and adjustment.sigma == 1.0 and adjustment.action is Action.HOLD


def test_its_slew_is_within_what_the_envelope_lets_through():
    prices = PriceRange()
    assert LAW.slew * 5.5214609 <= Envelope().max_ln_step + 1e-3 and prices.high / prices.low == 250


@pytest.mark.parametrize("wrong", [{"q": 0}, {"slew": 0}, {"slew": 2}, {"pull": -1}, {"learn": 1.5}, {"home": 2}])
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValueError, match="the z-integral needs"):
        ZIntegral(**wrong)
