"""What every control law keeps to, whichever is added: bounds, rest, direction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.laws import DEFAULT_LAW, LAWS
from controller.laws.protocol import Action, Law, Priority, Side, Sides
from tests.controller.records import counted, severities

SEVERITY = st.none() | st.floats(0.0, 5.0) | st.just(float("inf")) | st.just(1.0)
SIGMA = st.floats(0.0, 1.0)
PRIORITIES = st.sampled_from(Priority)
STRICT = st.sampled_from([Priority.BALANCED, Priority.TTFT_FIRST, Priority.TPOT_FIRST])

every_law = pytest.mark.parametrize("name", LAWS)


def settled(law: Law, sigma: float, sides: Sides, ticks: int) -> float:
    """Where the same evidence leads, tick after tick."""
    for _ in range(ticks):
        law, adjustment = law.step(sigma, sides)
        sigma = adjustment.sigma
    return sigma


def test_the_default_law_is_registered():
    assert DEFAULT_LAW in LAWS


@every_law
@given(sigma=SIGMA, priority=PRIORITIES, readings=st.lists(st.tuples(SEVERITY, SEVERITY), max_size=200))
def test_the_coordinate_stays_in_its_range_whatever_is_read(name, sigma, priority, readings):
    law = LAWS[name](priority=priority)
    for ttft, tpot in readings:
        law, adjustment = law.step(sigma, severities(ttft, tpot))
        sigma = adjustment.sigma
        assert 0.0 <= sigma <= 1.0


@every_law
@given(sigma=SIGMA, priority=PRIORITIES, ttft=st.floats(0.0, 1.0), tpot=st.floats(0.0, 1.0))
def test_it_holds_exactly_when_both_are_inside(name, sigma, priority, ttft, tpot):
    law, _ = LAWS[name](priority=priority).step(sigma, counted((0, 400), (0, 400)))
    _, adjustment = law.step(sigma, severities(ttft, tpot))
    assert adjustment.sigma == sigma and adjustment.action is Action.HOLD


@every_law
@given(sigma=SIGMA, priority=STRICT, readings=st.lists(st.tuples(SEVERITY, SEVERITY), max_size=5))
def test_with_both_upper_bounds_inside_it_never_moves(name, sigma, priority, readings):
    law = LAWS[name](priority=priority)
    for ttft, tpot in readings:
        law, _ = law.step(sigma, severities(ttft, tpot))
    kept = counted((1, 600), (0, 400))
    assert kept.ttft.kept and kept.tpot.kept
    assert law.step(sigma, kept)[1].sigma == sigma


@every_law
@given(sigma=SIGMA)
def test_economic_saves_only_while_both_promises_are_kept_for_sure(name, sigma):
    law = LAWS[name](priority=Priority.ECONOMIC)
    _, saving = law.step(sigma, counted((0, 400), (0, 400)))
    assert sigma < saving.sigma <= 1.0 or sigma == saving.sigma == 1.0
    law, _ = law.step(sigma, counted((0, 400), (0, 400)))
    assert law.step(sigma, counted((0, 100), (0, 100)))[1].sigma == sigma, "inside, but for too few turns to be sure"


@every_law
@given(sigma=SIGMA)
def test_too_little_evidence_means_hold(name, sigma):
    _, adjustment = LAWS[name]().step(sigma, severities(None, None))
    assert adjustment.sigma == sigma and adjustment.action is Action.NO_EVIDENCE


@every_law
@given(sigma=SIGMA)
def test_a_reading_that_is_not_a_number_is_no_evidence(name, sigma):
    _, adjustment = LAWS[name]().step(sigma, severities(float("nan"), float("nan")))
    assert adjustment.sigma == sigma and adjustment.action is Action.NO_EVIDENCE


@every_law
@given(sigma=SIGMA, worse=st.floats(1.2, 10.0) | st.just(float("inf")), other=st.none() | st.floats(0.0, 1.0))
def test_it_never_moves_away_from_the_side_that_is_over(name, sigma, worse, other):
    law = LAWS[name]()
    assert law.step(sigma, severities(other, worse))[1].sigma <= sigma
    assert law.step(sigma, severities(worse, other))[1].sigma >= sigma


@every_law
def test_steady_trouble_on_one_side_reaches_the_end_that_protects_it(name):
    law = LAWS[name]()
    assert settled(law, 0.5, severities(0.5, 2.0), 400) < 0.01
    assert settled(law, 0.5, severities(2.0, 0.5), 400) > 0.99


@every_law
def test_at_an_end_it_turns_round_at_once(name):
    law = LAWS[name]()
    for _ in range(1000):
        law, _ = law.step(1.0, severities(2.0, 0.5))
    assert law.step(1.0, severities(0.5, 2.0))[1].sigma < 1.0


@every_law
@pytest.mark.parametrize(
    ("priority", "way"), [(Priority.TTFT_FIRST, 1), (Priority.TPOT_FIRST, -1), (Priority.BALANCED, -1)]
)
def test_with_both_missed_the_priority_says_which_way(name, priority, way):
    law = LAWS[name](priority=priority)
    assert (law.step(0.5, severities(1.5, 2.5))[1].sigma - 0.5) * way > 0


@every_law
@pytest.mark.parametrize(
    ("priority", "first", "second"),
    [
        (Priority.TTFT_FIRST, severities(0.5, 2.0), severities(0.97, 2.0)),
        (Priority.TPOT_FIRST, severities(2.0, 0.5), severities(2.0, 0.97)),
    ],
)
def test_the_other_side_has_a_say_only_in_what_the_first_leaves(name, priority, first, second):
    law = LAWS[name](priority=priority)
    law, _ = law.step(0.5, counted((0, 400), (0, 400)))
    assert law.step(0.5, first)[1].sigma != 0.5
    assert law.step(0.5, second)[1].sigma == 0.5


@every_law
@given(sigma=SIGMA, z=st.floats(-5, 5), sd=st.floats(0.05, 3), severity=st.none() | st.floats(0, 5))
def test_the_same_evidence_gives_the_same_step(name, sigma, z, sd, severity):
    sides = Sides(Side(severity, z, sd, turns=100.0), Side(0.9, -1.0, 0.3, turns=100.0))
    assert LAWS[name]().step(sigma, sides) == LAWS[name]().step(sigma, sides)
