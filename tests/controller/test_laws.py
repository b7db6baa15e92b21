"""What every control law keeps to, whichever is added: bounds, rest, direction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.laws import DEFAULT_LAW, LAWS
from controller.laws.protocol import Action
from slos.reduce import Binding, SloReading
from tests.controller.records import TPOT, TTFT, severities

SEVERITY = st.none() | st.floats(0.0, 5.0) | st.just(float("inf")) | st.just(1.0)
SIGMA = st.floats(0.0, 1.0)

every_law = pytest.mark.parametrize("name", LAWS)


def test_the_default_law_is_registered():
    assert DEFAULT_LAW in LAWS


@every_law
@given(sigma=SIGMA, readings=st.lists(st.tuples(SEVERITY, SEVERITY), max_size=200))
def test_the_coordinate_stays_in_its_range_whatever_is_read(name, sigma, readings):
    law = LAWS[name]()
    for ttft, tpot in readings:
        sigma = law.step(sigma, severities(ttft, tpot)).sigma
        assert 0.0 <= sigma <= 1.0


@every_law
@given(sigma=SIGMA, ttft=st.floats(0.0, 1.0), tpot=st.floats(0.0, 1.0))
def test_it_holds_exactly_when_both_are_inside(name, sigma, ttft, tpot):
    adjustment = LAWS[name]().step(sigma, severities(ttft, tpot))
    assert adjustment.sigma == sigma and adjustment.action is Action.HOLD


@every_law
@given(sigma=SIGMA)
def test_too_little_evidence_means_hold(name, sigma):
    adjustment = LAWS[name]().step(sigma, severities(None, None))
    assert adjustment.sigma == sigma and adjustment.action is Action.NO_EVIDENCE


@every_law
@given(sigma=SIGMA)
def test_a_reading_that_is_not_a_number_is_no_evidence(name, sigma):
    nan = float("nan")
    adjustment = LAWS[name]().step(sigma, Binding(SloReading(TTFT, nan), SloReading(TPOT, nan)))
    assert adjustment.sigma == sigma and adjustment.action is Action.NO_EVIDENCE


@every_law
@given(sigma=SIGMA, worse=st.floats(1.001, 10.0) | st.just(float("inf")), other=st.none() | st.floats(0.0, 1.0))
def test_it_never_moves_away_from_the_side_that_is_over(name, sigma, worse, other):
    law = LAWS[name]()
    assert law.step(sigma, severities(other, worse)).sigma <= sigma
    assert law.step(sigma, severities(worse, other)).sigma >= sigma


@every_law
def test_steady_trouble_on_one_side_reaches_the_end_that_protects_it(name):
    law = LAWS[name]()
    low = high = 0.5
    for _ in range(400):
        low = law.step(low, severities(0.5, 2.0)).sigma
        high = law.step(high, severities(2.0, 0.5)).sigma
    assert low < 0.01 and high > 0.99
