"""What each node is believed to cache, against a plain list that is searched from end to end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.ledger import MARGIN
from router.residency import LIVE_S, Residency
from tests.router.samples import D0, D1, key

CAPACITY = 1000  # 970 after the margin
A, B, C = key("a"), key("b"), key("c")


@pytest.fixture
def residency() -> Residency:
    made = Residency()
    made.reset(D0, CAPACITY)
    made.reset(D1, CAPACITY)
    return made


def used_s(residency: Residency, node, name):
    idle = residency.belief(node, name, 1000.0).idle
    return None if idle is None else idle.used_s


def test_a_new_node_holds_nothing(residency: Residency):
    assert residency.held(D0, A) == 0
    assert used_s(residency, D0, A) is None


def test_what_was_stored_is_held_there_and_nowhere_else(residency: Residency):
    residency.store(D0, A, 400, 5.0)
    assert (residency.held(D0, A), residency.held(D1, A), residency.held(D0, B)) == (400, 0, 0)
    assert used_s(residency, D0, A) == 5.0


def test_storing_again_replaces_and_does_not_add(residency: Residency):
    residency.store(D0, A, 400, 1.0)
    residency.store(D0, B, 400, 2.0)
    residency.store(D0, A, 500, 3.0)
    assert (residency.held(D0, A), residency.held(D0, B)) == (500, 400)


def test_the_least_recently_used_goes_when_memory_runs_out(residency: Residency):
    residency.store(D0, A, 400, 1.0)
    residency.store(D0, B, 400, 2.0)
    residency.store(D0, C, 400, 3.0)
    assert [residency.held(D0, each) for each in (A, B, C)] == [0, 400, 400]


def test_use_makes_recent(residency: Residency):
    residency.store(D0, A, 400, 1.0)
    residency.store(D0, B, 400, 2.0)
    residency.store(D0, A, 400, 3.0)
    residency.store(D0, C, 400, 4.0)
    assert [residency.held(D0, each) for each in (A, B, C)] == [400, 0, 400]


def test_the_margin_is_not_believed_in(residency: Residency):
    fits = round(CAPACITY * (1 - MARGIN))
    residency.store(D0, A, fits, 1.0)
    assert residency.held(D0, A) == fits
    residency.store(D0, A, fits + 1, 2.0)
    assert residency.held(D0, A) == 0


def test_running_turns_are_pinned_and_push_idle_ones_out(residency: Residency):
    residency.store(D0, A, 300, 1.0)
    residency.run(D0, B, 600)
    residency.run(D0, C, 600)
    assert [residency.held(D0, each) for each in (A, B, C)] == [0, 600, 600]
    residency.store(D0, A, 10, 2.0)
    assert residency.held(D0, A) == 0


def test_a_running_turn_takes_its_idle_copy_with_it(residency: Residency):
    residency.store(D0, A, 300, 1.0)
    residency.run(D0, A, 500)
    assert (residency.held(D0, A), used_s(residency, D0, A)) == (500, None)
    residency.store(D0, A, 450, 2.0)
    assert (residency.held(D0, A), used_s(residency, D0, A)) == (450, 2.0)
    residency.store(D0, B, 520, 3.0)
    assert residency.held(D0, A) == 450


def test_dropping_frees_the_memory_and_twice_is_once(residency: Residency):
    residency.run(D0, A, 900)
    residency.drop(D0, A)
    residency.drop(D0, A)
    residency.store(D0, B, 960, 1.0)
    assert (residency.held(D0, A), residency.held(D0, B)) == (0, 960)


def test_a_miss_takes_all_that_was_used_no_later(residency: Residency):
    for at_s, each in enumerate((A, B, C), start=1):
        residency.store(D0, each, 100, float(at_s))
    residency.ledger(D0).missed(2.0)
    assert [residency.held(D0, each) for each in (A, B, C)] == [0, 0, 100]
    residency.store(D0, A, 870, 4.0)
    assert residency.held(D0, C) == 100, "the memory of what is gone is free again"


def test_a_miss_says_nothing_about_running_turns(residency: Residency):
    residency.run(D0, A, 100)
    residency.ledger(D0).missed(100.0)
    assert residency.held(D0, A) == 100


def test_a_restart_clears_idle_running_and_live(residency: Residency):
    residency.store(D0, A, 100, 1.0)
    residency.run(D0, B, 100)
    residency.touch(D0, B, 100, 1.0)
    residency.reset(D0, CAPACITY)
    assert (residency.held(D0, A), residency.held(D0, B), residency.live_tokens(D0, 1.0)) == (0, 0, 0)


@pytest.mark.parametrize("tokens", [0, -1])
def test_nothing_is_no_entry(residency: Residency, tokens: int):
    residency.store(D0, A, tokens, 1.0)
    assert (residency.held(D0, A), used_s(residency, D0, A)) == (0, None)


def test_live_tokens_are_those_of_the_last_half_minute(residency: Residency):
    residency.touch(D0, A, 100, 0.0)
    residency.touch(D0, B, 200, 10.0)
    assert residency.live_tokens(D0, LIVE_S - 0.1) == 300
    assert residency.live_tokens(D0, LIVE_S) == 200
    assert residency.live_tokens(D0, 10.0 + LIVE_S) == 0


def test_a_turn_keeps_its_conversation_live_at_its_new_size(residency: Residency):
    residency.touch(D0, A, 100, 0.0)
    residency.touch(D0, B, 50, 1.0)
    residency.touch(D0, A, 130, 20.0)
    assert residency.live_tokens(D0, 20.0) == 180
    assert residency.live_tokens(D0, 1.0 + LIVE_S) == 130


@dataclass
class Plain:
    """The same in the plainest words: a list in order of use, and the running ones."""

    capacity: float
    idle: list[tuple[str, int, float]] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)

    def drop(self, name):
        self.idle = [entry for entry in self.idle if entry[0] != name]
        self.running.pop(name, None)

    def shrink(self):
        while self.idle and self.total() > self.capacity:
            del self.idle[0]

    def total(self):
        return sum(tokens for _, tokens, _ in self.idle) + sum(self.running.values())

    def held(self, name):
        return self.running.get(name, 0) or sum(tokens for idle, tokens, _ in self.idle if idle == name)


NAMES = "abcdef"
steps = st.lists(
    st.tuples(
        st.sampled_from(["run", "store", "drop", "missed", "reset"]),
        st.sampled_from(NAMES),
        st.integers(1, 700),
        st.floats(0.0, 5.0),
    ),
    max_size=60,
)


@given(steps=steps)
def test_the_ledger_agrees_with_the_plain_list_and_only_running_turns_may_exceed_the_capacity(steps):
    residency, plain, now_s = Residency(), Plain(CAPACITY * (1 - MARGIN)), 0.0
    residency.reset(D0, CAPACITY)
    for step, name, tokens, wait_s in steps:
        now_s += wait_s
        if step == "run":
            residency.run(D0, key(name), tokens)
            plain.drop(name)
            plain.running[name] = tokens
            plain.shrink()
        elif step == "store":
            residency.store(D0, key(name), tokens, now_s)
            plain.drop(name)
            plain.idle.append((name, tokens, now_s))
            plain.shrink()
        elif step == "drop":
            residency.drop(D0, key(name))
            plain.drop(name)
        elif step == "missed":
            used_s = now_s - 3 * wait_s
            residency.ledger(D0).missed(used_s)
            plain.idle = [entry for entry in plain.idle if entry[2] > used_s]
        elif tokens < 50:
            residency.reset(D0, CAPACITY)
            plain = Plain(plain.capacity)
        held = {each: residency.held(D0, key(each)) for each in NAMES}
        assert held == {each: plain.held(each) for each in NAMES}
        assert sum(held.values()) <= max(plain.capacity, sum(plain.running.values()))
    for name in NAMES:
        residency.drop(D0, key(name))
    residency.store(D0, key("last"), round(plain.capacity), now_s)
    assert residency.held(D0, key("last")) == round(plain.capacity), "an empty ledger has room for its whole capacity"


@given(touches=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 500), st.floats(0.0, 20.0)), max_size=40))
def test_live_tokens_are_the_sum_over_conversations_touched_in_time(touches):
    residency, latest, now_s = Residency(), {}, 0.0
    residency.reset(D0, CAPACITY)
    for name, tokens, wait_s in touches:
        now_s += wait_s
        residency.touch(D0, key(name), tokens, now_s)
        latest[name] = (tokens, now_s)
        live = sum(tokens for tokens, used_s in latest.values() if now_s - used_s < LIVE_S)
        assert residency.live_tokens(D0, now_s) == live
