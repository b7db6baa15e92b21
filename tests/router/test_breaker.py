"""The circuit breaker: what opens it, what closes it, and what it never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.breaker import FAILURES, MAX_OPEN_S, OPEN_S, Breaker, BreakerState


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed("status", at_s)
    return breaker


def test_five_failures_in_a_row_open_it_and_four_do_not():
    breaker = Breaker()
    assert [breaker.failed("timeout", 0.0) for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    assert breaker.state(0.0) is BreakerState.OPEN
    assert not breaker.admits(OPEN_S - 0.01)


def test_an_answer_ends_the_row():
    breaker = Breaker()
    for _ in range(20):
        for _ in range(FAILURES - 1):
            breaker.failed("status", 0.0)
        assert not breaker.answered(0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_half_open_lets_one_turn_through_at_a_time():
    breaker = opened()
    now_s = OPEN_S
    assert breaker.state(now_s) is BreakerState.HALF_OPEN and breaker.admits(now_s)
    breaker.claim("r1", now_s)
    breaker.claim("r2", now_s)
    assert not breaker.admits(now_s)
    breaker.release("r2")
    assert not breaker.admits(now_s), "r2 was not the trial"
    breaker.release("r1")
    assert breaker.admits(now_s), "the trial ended without a verdict"


def test_a_trial_that_is_answered_closes_it_and_the_next_opening_waits_no_longer():
    breaker = opened()
    breaker.claim("r1", OPEN_S)
    assert breaker.answered(OPEN_S)
    assert breaker.state(OPEN_S) is BreakerState.CLOSED and breaker.failures == 0
    for _ in range(FAILURES):
        breaker.failed("status", OPEN_S)
    assert breaker.state(2 * OPEN_S) is BreakerState.HALF_OPEN


def test_every_trial_that_fails_doubles_the_wait_up_to_a_limit():
    breaker, now_s, waits = opened(), 0.0, []
    for _ in range(8):
        wait_s = next(s for s in (OPEN_S * 2**n for n in range(9)) if breaker.admits(now_s + min(s, MAX_OPEN_S)))
        waits.append(min(wait_s, MAX_OPEN_S))
        now_s += waits[-1]
        breaker.claim("r", now_s)
        assert breaker.failed("status", now_s)
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0]
    assert breaker.opened == 9


def test_turns_that_were_under_way_when_it_opened_change_nothing():
    breaker = opened()
    assert not breaker.failed("status", 1.0) and not breaker.answered(2.0)
    assert breaker.state(OPEN_S - 0.1) is BreakerState.OPEN
    assert breaker.state(OPEN_S) is BreakerState.HALF_OPEN


def test_a_trial_that_nobody_ended_blocks_the_next_only_for_a_while():
    breaker = opened()
    breaker.claim("lost", OPEN_S)
    assert not breaker.admits(OPEN_S + MAX_OPEN_S - 1)
    assert breaker.admits(OPEN_S + MAX_OPEN_S)


def test_where_it_may_not_open_it_stays_closed_however_many_fail():
    breaker = Breaker()
    assert not any(breaker.failed("status", 0.0, may_open=False) for _ in range(50))
    assert breaker.state(0.0) is BreakerState.CLOSED
    assert breaker.failed("status", 0.0), "it opens with the next failure once it may"


@given(st.lists(st.tuples(st.sampled_from(["fail", "answer", "claim", "release"]), st.floats(0, 30)), max_size=80))
def test_whatever_happens_it_is_never_open_for_longer_than_its_limit(steps: list[tuple[str, float]]):
    breaker, now_s = Breaker(), 0.0
    for at, (step, later_s) in enumerate(steps):
        now_s += later_s
        if step == "fail":
            breaker.failed("status", now_s)
        elif step == "answer":
            breaker.answered(now_s)
        elif step == "claim":
            breaker.claim(str(at), now_s)
        else:
            breaker.release(str(at - 1))
        assert breaker.state(now_s + MAX_OPEN_S) is not BreakerState.OPEN
        assert breaker.admits(now_s + 2 * MAX_OPEN_S)


@pytest.mark.parametrize("failures", [0, 1, FAILURES - 1])
def test_a_claim_on_a_closed_breaker_is_no_trial(failures: int):
    breaker = Breaker()
    for _ in range(failures):
        breaker.failed("status", 0.0)
    breaker.claim("r1", 0.0)
    assert breaker.admits(0.0)
