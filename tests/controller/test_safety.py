"""The safety states one by one: what leads into each, what it lets the price do, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from math import log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cells import WINDOW_TICKS
from controller.moves import EVERY_TICKS, MOVES, Moves
from controller.safety import (
    DAMPED_TICKS,
    HOME_TICKS,
    MUTE_TICKS,
    RETRY_TICKS,
    STALE_TICKS,
    Safety,
    Signs,
    State,
    Why,
    foremost,
)

GOOD = Signs(0.4, 0.4, turns=20, in_flight=True)
MUTE = replace(GOOD, turns=0)
PRICE, HOME = 2.0, 0.4


def after(safety: Safety, *signs: Signs) -> Safety:
    for each in signs:
        safety = safety.after(each)
    return safety


def states(safety: Safety, *signs: Signs) -> list[State]:
    return [(safety := safety.after(each)).state for each in signs]


RUNNING = after(Safety(), *[GOOD] * 5)


def test_a_process_that_starts_is_offline_and_active_with_the_first_router():
    assert (Safety().state, Safety().reason) == (State.OFFLINE, Why.STARTING) and not Safety().may_move
    running = Safety().after(GOOD)
    assert (running.state, running.reason, running.since_tick) == (State.ACTIVE, Why.RUNNING, 1) and running.may_move
    assert RUNNING.since_tick == 1, "since is when it became so"


def test_without_a_router_it_is_offline_and_what_comes_back_settles_first():
    gone = RUNNING.after(replace(MUTE, routers=False))
    assert (gone.state, gone.reason) == (State.OFFLINE, Why.NO_ROUTERS) and gone.target_price is None
    back = states(gone, *[GOOD] * (WINDOW_TICKS + 1))
    assert back == [State.HOLD] * WINDOW_TICKS + [State.ACTIVE]


def test_without_a_router_for_long_the_price_stays_for_nobody_would_follow():
    gone = after(RUNNING, *[replace(MUTE, routers=False, price=PRICE)] * 100)
    assert gone.state is State.OFFLINE and gone.target_price is None


def test_a_model_without_a_table_is_offline():
    assert RUNNING.after(replace(GOOD, table=False)).reason is Why.NO_TABLE


@pytest.mark.parametrize(("sign", "reason"), [({"law": False}, Why.NO_LAW), ({"observing": True}, Why.OBSERVING)])
def test_without_a_law_or_observing_it_is_a_shadow(sign, reason):
    shadow = RUNNING.after(replace(GOOD, **sign))
    assert (shadow.state, shadow.reason) == (State.SHADOW, reason) and not shadow.may_move


def test_a_pin_holds_and_a_window_after_it_too():
    pinned = after(RUNNING, *[replace(GOOD, pinned=True)] * 4)
    assert (pinned.state, pinned.reason, pinned.may_move) == (State.PINNED, Why.PINNED, False)
    assert states(pinned, *[GOOD] * 4) == [State.HOLD] * WINDOW_TICKS + [State.ACTIVE]
    assert pinned.after(GOOD).reason is Why.SETTLING


def test_a_stall_holds_for_a_window():
    stalled = RUNNING.after(replace(GOOD, stalled=True))
    assert (stalled.state, stalled.reason) == (State.HOLD, Why.STALLED)
    assert states(stalled, *[GOOD] * 3) == [State.HOLD] * (WINDOW_TICKS - 1) + [State.ACTIVE]


def test_an_operators_weights_settle_and_where_they_are_held_stay():
    assert RUNNING.after(replace(GOOD, changed=True)).reason is Why.SETTLING
    held = after(RUNNING, *[replace(GOOD, held=True)] * 50)
    assert (held.state, held.reason) == (State.HOLD, Why.SET_BY_HAND)
    assert held.after(GOOD).state is State.ACTIVE, "what was read was measured at this price"


def test_a_change_that_was_taken_back_is_told_for_a_window():
    reverted = RUNNING.after(replace(GOOD, reverted=True, held=True))
    assert (reverted.state, reverted.reason) == (State.HOLD, Why.REVERTED)
    assert states(reverted, *[GOOD] * 3) == [State.HOLD, State.HOLD, State.ACTIVE]


def test_turns_in_flight_and_none_that_ends_hold_the_price_after_three_ticks():
    found = states(RUNNING, *[MUTE] * MUTE_TICKS)
    assert found == [State.ACTIVE] * (MUTE_TICKS - 1) + [State.HOLD]
    mute = after(RUNNING, *[MUTE] * MUTE_TICKS)
    assert mute.reason is Why.NO_SAMPLES and mute.target_price is None
    back = states(mute, *[GOOD] * (WINDOW_TICKS + 1))
    assert back == [State.HOLD] * WINDOW_TICKS + [State.ACTIVE], "a window first"


def test_an_idle_fleet_is_not_mute():
    assert set(states(RUNNING, *[replace(MUTE, in_flight=False)] * 100)) == {State.ACTIVE}


def test_a_lull_that_chance_explains_is_none():
    slow = Safety()
    for tick in range(200):  # a turn every fifty seconds
        slow = slow.after(MUTE if tick % 10 else replace(GOOD, turns=1))
        assert slow.state is State.ACTIVE, tick
    assert slow.pace == pytest.approx(0.1, rel=0.1)


def test_ticks_without_any_report_are_no_sign_of_silence():
    assert set(states(RUNNING, *[replace(MUTE, heard=False)] * 50)) == {State.ACTIVE}


def test_a_fleet_that_never_answered_is_not_held_for_that():
    assert set(states(Safety(), *[MUTE] * 50)) == {State.ACTIVE}


def test_after_twelve_ticks_the_price_goes_home_in_six_steps_and_stays():
    safety, price, seen = RUNNING, PRICE, []
    for _ in range(STALE_TICKS + 1 + 20):
        safety = safety.after(replace(MUTE, price=price, home_price=HOME))
        if safety.target_price is not None:
            price = safety.target_price
        seen.append((safety.state, price))
    way = [at for state, at in seen if state is State.FALLBACK_HOME]
    assert [state for state, _ in seen].index(State.FALLBACK_HOME) == STALE_TICKS, "the thirteenth tick"
    steps = [log(b / a) for a, b in zip([PRICE, *way], way, strict=False)]
    assert steps[:HOME_TICKS] == pytest.approx([log(HOME / PRICE) / HOME_TICKS] * HOME_TICKS)
    assert set(way[HOME_TICKS - 1 :]) == {HOME} and safety.reason is Why.STALE


def test_the_first_turn_that_ends_stops_the_way_home():
    stale = after(RUNNING, *[replace(MUTE, price=PRICE)] * (STALE_TICKS + 3))
    assert stale.state is State.FALLBACK_HOME
    back = stale.after(replace(GOOD, price=1.5))
    assert (back.state, back.reason, back.target_price) == (State.HOLD, Why.SETTLING, None)


def wrong(safety: Safety) -> Safety:
    """Ticks until the fleet was found to answer with the wrong sign."""
    level, tick, dice = 0.0, 0, Random(1)
    while safety.reason is not Why.WRONG_SIGN:
        assert tick < 5 * EVERY_TICKS * MOVES
        level += dice.choice((-0.1, 0.1)) if tick % (2 * EVERY_TICKS) == EVERY_TICKS else 0.0
        safety = safety.after(replace(GOOD, price=0.4 * 2.718**level, home_price=HOME, balance=level))
        tick += 1
    return safety


def test_a_wrong_sign_sends_the_price_home_for_ten_minutes_and_then_the_law_has_another_try():
    found = wrong(RUNNING)
    assert found.state is State.FALLBACK_HOME and found.target_price is not None
    at_home = after(found, *[replace(GOOD, home_price=HOME)] * (RETRY_TICKS - 1))
    assert at_home.reason is Why.WRONG_SIGN and at_home.target_price == HOME
    assert states(at_home, *[GOOD] * 4) == [State.HOLD] * WINDOW_TICKS + [State.ACTIVE]


def test_a_price_that_cycles_takes_half_steps_for_thirty_ticks():
    safety, seen = RUNNING, []
    for tick in range(12):
        safety = safety.after(replace(GOOD, price=0.4 * (1.4 if tick % 2 else 1.0)))
        seen.append(safety.gain)
    assert 0.5 in seen and safety.reason is Why.LIMIT_CYCLE and safety.may_move
    calm = after(safety, *[GOOD] * DAMPED_TICKS)
    assert calm.gain == 1.0 and calm.reason is Why.RUNNING


def test_resume_forgets_what_was_waited_for():
    for safety in (wrong(RUNNING), after(RUNNING, *[replace(GOOD, pinned=True)] * 2), after(RUNNING, *[MUTE] * 20)):
        assert safety.resumed().after(GOOD).state is State.ACTIVE


def test_the_model_that_is_worst_off_is_told_first():
    pinned, home = RUNNING.after(replace(GOOD, pinned=True)), after(RUNNING, *[MUTE] * 20)
    assert foremost([RUNNING, pinned, home]) is home and foremost([RUNNING, pinned]) is pinned
    assert foremost([]) == Safety()


SIGNS = st.builds(
    Signs,
    price=st.sampled_from((0.0, 0.02, 0.4, 5.0, float("inf"))) | st.floats(0.02, 5.0),
    home_price=st.just(HOME),
    turns=st.integers(0, 50),
    in_flight=st.booleans(),
    heard=st.booleans(),
    balance=st.none() | st.floats(-5, 5),
    routers=st.booleans(),
    table=st.booleans(),
    law=st.booleans(),
    observing=st.booleans(),
    pinned=st.booleans(),
    held=st.booleans(),
    stalled=st.booleans(),
    changed=st.booleans(),
    reverted=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SIGNS, max_size=40))
def test_from_any_state_good_samples_lead_back_to_the_law(signs):
    safety = after(Safety(), *signs)
    back = RETRY_TICKS + WINDOW_TICKS + 1 if safety.retry else WINDOW_TICKS + 1
    assert after(safety, *[GOOD] * back).state is State.ACTIVE


@settings(max_examples=60, deadline=None)
@given(st.lists(SIGNS, max_size=40))
def test_only_one_state_lets_the_law_move_and_only_one_has_a_target(signs):
    safety = Safety()
    for each in signs:
        safety = safety.after(each)
        assert safety.may_move == (safety.state is State.ACTIVE)
        assert safety.target_price is None or safety.state is State.FALLBACK_HOME
        assert (each.pinned and not each.observing) == (safety.state is State.PINNED)
        assert safety.state is State.ACTIVE or safety.moves == Moves()
        assert 0 < safety.gain <= 1 and safety.since_tick <= safety.ticks
