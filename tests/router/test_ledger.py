"""What others put into a node's memory, learned from what the engine still had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.ledger import FORGET_S, LOOKED_AT, MARGIN, MIN_AGE_S, RAISE, TURNOVER_S, Idle, Ledger
from tests.router.samples import key

A, B, C = key("a"), key("b"), key("c")
ROOM = 1000 * (1 - MARGIN)


def ledger() -> Ledger:
    return Ledger(1000)


def test_an_idle_copy_knows_its_age_and_what_was_used_since():
    books = ledger()
    books.store(A, 100, 1.0)
    books.store(B, 200, 2.0)
    books.store(C, 50, 3.0)
    books.run(C, 70)
    assert books.idle(B, 12.0) == Idle(2.0, 10.0, 270)
    assert books.idle(A, 12.0) == Idle(1.0, 11.0, 370)
    assert books.idle(C, 12.0) is None, "it runs"


def test_until_a_miss_nobody_else_is_there():
    books = ledger()
    books.store(A, 900, 0.0)
    books.learn(Idle(0.0, 50.0, 900), hit=True)
    books.advance(10_000.0)
    assert (books.tokens(A), books.foreign_hz) == (900, 0.0)


def miss(books: Ledger, age_s: float, newer: int, times: int = 20) -> None:
    for _ in range(times):
        books.foreign_hz = 0.0
        books.learn(Idle(0.0, age_s, newer), hit=False)


def test_misses_bound_what_others_put_in_from_below_and_a_hit_from_above():
    books = ledger()
    miss(books, 50.0, 470)
    assert books.foreign_hz == pytest.approx((ROOM - 470) / 50)
    books.learn(Idle(0.0, 100.0, 470), hit=True)
    assert books.foreign_hz == pytest.approx((ROOM - 470) / 100)
    books.learn(Idle(0.0, 10.0, 470), hit=True)
    assert books.foreign_hz == pytest.approx((ROOM - 470) / 100), "a young hit says nothing more"


def test_a_miss_that_the_inflow_explains_already_raises_it():
    books = ledger()
    miss(books, 1.0, 0)
    books.foreign_hz = 40.0
    books.learn(Idle(0.0, 50.0, 470), hit=False)
    assert books.foreign_hz == 40.0 * RAISE


def test_one_early_miss_does_not_empty_the_ledger_and_many_do():
    books = ledger()
    books.learn(Idle(0.0, 0.01, 100), hit=False)
    assert books.foreign_hz == pytest.approx(2 * 1000 / TURNOVER_S)
    miss(books, 0.01, 100)
    assert books.foreign_hz == pytest.approx((ROOM - 100) / MIN_AGE_S)


def test_hits_between_misses_keep_the_ceiling_down():
    books = ledger()
    for _ in range(50):
        books.learn(Idle(0.0, 0.01, 100), hit=False)
        books.learn(Idle(0.0, 50.0, 470), hit=True)
    assert books.foreign_hz <= (ROOM - 470) / 50


def test_idle_conversations_go_as_others_fill_the_memory():
    books = ledger()
    books.foreign_hz = 100.0
    books.store(A, 300, 0.0)
    books.store(B, 300, 0.0)
    books.advance(3.0)
    assert (books.tokens(A), books.tokens(B)) == (300, 300)
    books.advance(4.0)
    assert (books.tokens(A), books.tokens(B)) == (0, 300)
    books.advance(20.0)
    assert books.tokens(B) == 0


def test_what_was_used_later_outlives_what_others_put_in_before():
    books = ledger()
    books.foreign_hz = 100.0
    books.store(A, 300, 0.0)
    books.advance(6.0)
    books.store(A, 300, 6.0)
    books.advance(12.0)
    assert books.tokens(A) == 300


def test_others_are_forgotten():
    books = ledger()
    books.foreign_hz = 50.0
    for second in range(round(4 * FORGET_S)):
        books.advance(float(second))
    assert books.foreign_hz < 1.0
    books.store(A, 900, 4 * FORGET_S)
    books.advance(100 * FORGET_S)
    assert books.tokens(A) == 900


def test_what_others_have_pinned_is_not_to_be_had():
    books = ledger()
    books.store(A, 400, 0.0)
    books.store(B, 400, 1.0)
    books.share(300)
    assert (books.tokens(A), books.tokens(B)) == (0, 400)
    books.share(0)
    books.store(A, 400, 2.0)
    assert (books.tokens(A), books.tokens(B)) == (400, 400)


def test_a_copy_with_very_many_newer_ones_says_when_it_was_used_and_teaches_no_inflow():
    books = Ledger(10.0**9)
    for number in range(LOOKED_AT + 1):
        books.store(key(str(number)), 10, float(number))
    old, young = books.idle(key("0"), 1000.0), books.idle(key("1"), 1000.0)
    assert old is not None and (old.used_s, old.newer_tokens) == (0.0, None)
    assert young is not None and young.newer_tokens == 10 * LOOKED_AT
    books.learn(old, hit=False)
    assert books.foreign_hz == 0
    books.missed(old.used_s)
    assert books.idle(key("0"), 1000.0) is None


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("sromhla"), st.sampled_from("abcdef"), st.integers(1, 500), st.floats(0.0, 20.0)),
        max_size=60,
    )
)
def test_totals_add_up_and_entries_stay_few_whatever_happens(steps):
    books, now_s, stores = ledger(), 0.0, 0
    for step, name, tokens, wait_s in steps:
        now_s += wait_s
        books.advance(now_s)
        idle = books.idle(key(name), now_s)
        if step == "s":
            books.store(key(name), tokens, now_s)
            stores += 1
        elif step == "r":
            books.run(key(name), tokens)
        elif step == "o":
            books.share(tokens)
        elif step in "mh" and idle is not None:
            books.learn(idle, step == "h")
        elif step == "l" and idle is not None:
            books.missed(idle.used_s)
        held = sum(tokens for tokens, _ in books.held.values())
        assert books.total == pytest.approx(held + sum(books.running.values()), abs=1e-6)
        assert books.total <= max(books.room_tokens, sum(books.running.values())) + 1e-6
        assert len(books.held) <= 2 * stores + 1
        assert books.foreign_hz >= 0
        assert books.own_tokens <= books.total + 1e-6


def test_copies_are_bounded_in_number_too(monkeypatch):
    monkeypatch.setattr("router.ledger.MAX_HELD", 3)
    ledger = Ledger(10**9)
    for at in range(10):
        ledger.store(key(f"c{at}"), 100, float(at))
    assert len(ledger.held) == 3 and ledger.total == 300
    assert ledger.tokens(key("c9")) == 100 and ledger.tokens(key("c0")) == 0
