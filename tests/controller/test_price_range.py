"""The coordinate on which laws move: 0 at the highest price, 1 at the lowest, even steps in ln p."""

from math import exp, inf, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.laws.protocol import PriceRange

RANGE = PriceRange()


def test_the_ends_of_the_range_are_the_ends_of_the_coordinate():
    assert RANGE.sigma(5.0) == 0.0 and RANGE.sigma(0.02) == 1.0
    assert RANGE.price(0.0) == 5.0 and RANGE.price(1.0) == pytest.approx(0.02, rel=1e-12)


def test_prices_outside_the_range_sit_at_its_ends():
    assert RANGE.sigma(1e9) == 0.0 and RANGE.sigma(1e-9) == 1.0 and RANGE.sigma(5e-324) == 1.0


def test_the_default_start_lies_near_the_middle():
    assert RANGE.sigma(0.4) == pytest.approx(log(5 / 0.4) / log(250))
    assert 0.4 < RANGE.sigma(0.4) < 0.5


@given(st.floats(0.02, 5.0))
def test_a_price_survives_the_round_trip(price):
    assert RANGE.price(RANGE.sigma(price)) == pytest.approx(price, rel=1e-12)


@given(st.floats(0.0, 1.0), st.floats(1e-6, 10.0), st.floats(1.001, 1e6))
def test_a_coordinate_survives_the_round_trip_in_any_range(sigma, low, ratio):
    prices = PriceRange(low, low * ratio)
    assert prices.sigma(prices.price(sigma)) == pytest.approx(sigma, abs=1e-9)


@given(st.floats(0.0, 0.98))
def test_equal_steps_of_the_coordinate_are_equal_factors_of_the_price(sigma):
    assert RANGE.price(sigma + 0.02) / RANGE.price(sigma) == pytest.approx(exp(-0.02 * log(250)))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (1, 1), (2, 1), (0.1, inf), (nan, 1), (0.1, nan)])
def test_a_range_without_room_is_refused(low, high):
    with pytest.raises(ValueError, match="price range needs 0 < low < high"):
        PriceRange(low, high)
