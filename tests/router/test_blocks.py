"""What a node's KV events say it holds of a conversation, against an engine that is written out block by block."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import blocks as module
from router.blocks import Blocks, Cleared, Event, Removed, Stored, Unsupported, session_of
from router.turn import ConversationKey
from tests.router.samples import key

SIZE = 16


def told(*events: Event, expect: str = "ab") -> Blocks:
    made = Blocks()
    for session in expect:
        made.expect(session)
    made.take(0, events)
    return made


def test_a_path_is_as_long_as_its_last_block_that_is_there():
    blocks = told(Stored(None, [1, 2], SIZE, "a"), Stored(2, [3], SIZE, "a"))
    assert blocks.held("a") == 48
    blocks.take(1, [Removed([3])])
    assert blocks.held("a") == 32
    blocks.take(2, [Removed([2, 1])])
    assert blocks.held("a") == 0


def test_a_session_that_nothing_was_stored_for_is_not_told():
    blocks = told(Stored(None, [1], SIZE, "a"))
    assert (blocks.held("b"), blocks.held("c")) == (None, None)


def test_a_shared_prefix_counts_for_both_and_is_there_until_its_last_copy_is_gone():
    blocks = told(Stored(None, [1, 2], SIZE, "a"), Stored(2, [3], SIZE, "b"), Stored(None, [1], SIZE, None))
    assert (blocks.held("a"), blocks.held("b")) == (32, 48)
    blocks.take(1, [Removed([3]), Removed([2]), Removed([1])])
    assert (blocks.held("a"), blocks.held("b")) == (16, 16)
    blocks.take(2, [Removed([1])])
    assert (blocks.held("a"), blocks.held("b")) == (0, 0)


def test_what_was_evicted_and_stored_again_for_another_counts_from_the_next_turn_on():
    blocks = told(Stored(None, [1, 2], SIZE, "a"), Stored(2, [3], SIZE, "b"))
    blocks.take(1, [Removed([3]), Removed([2]), Removed([1])])
    blocks.take(2, [Stored(None, [1, 2], SIZE, "b")])
    assert (blocks.held("a"), blocks.held("b")) == (0, 32)
    blocks.take(3, [Stored(2, [4], SIZE, "a")])
    assert blocks.held("a") == 48


def test_what_is_gone_is_kept_by_no_path():
    def alive() -> int:
        gc.collect()
        return sum(isinstance(each, module._Block) for each in gc.get_objects())

    before = alive()
    stored = (Stored(None, range(100), SIZE, "a"), Stored(9, [200, 201], SIZE, "b"), Stored(9, [300], SIZE, "c"))
    blocks = told(*stored, expect="abc")
    assert alive() == before + 103
    blocks.take(1, [Removed([201, 200, 300, *reversed(range(100))])])
    assert alive() == before
    assert [blocks.held(each) for each in "abc"] == [0, 0, 0]


def test_a_path_follows_the_turn_that_was_stored_last():
    blocks = told(Stored(None, [1, 2, 3], SIZE, "a"), Stored(1, [7], SIZE, "a"))
    assert blocks.held("a") == 32


def test_a_prefix_from_before_is_as_long_as_the_turn_says():
    blocks = told(Stored(9, [10, 11], SIZE, "a"))
    assert blocks.held("a") is None
    blocks.settle("a", 5 * SIZE + 3)
    assert blocks.held("a") == 80
    blocks.take(1, [Removed([11])])
    assert blocks.held("a") == 64
    blocks.expect("b")
    blocks.take(2, [Stored(9, [12], SIZE, "b")])
    assert blocks.held("b") == 64, "it is known for all that follow"
    blocks.take(3, [Removed([12, 10, 9])])
    assert (blocks.held("a"), blocks.held("b")) == (0, 0)


def test_a_prefix_from_before_that_is_stored_again_from_its_beginning_is_known_exactly():
    blocks = told(Stored(2, [3], SIZE, "a"))
    blocks.take(1, [Stored(None, [1, 2], SIZE)])
    assert blocks.held("a") == 48


def test_a_prefix_that_would_begin_before_the_prompt_is_not_told():
    blocks = told(Stored(9, [10, 11], SIZE, "a"))
    blocks.settle("a", SIZE)
    assert blocks.held("a") is None


def test_a_number_that_was_passed_over_empties_the_belief_and_the_next_turn_fills_it():
    blocks = told(Stored(None, [1, 2], SIZE, "a"))
    blocks.take(2, [Stored(2, [3], SIZE, "a")])
    assert (blocks.held("a"), blocks.gaps) == (None, 1)
    blocks.expect("a")
    blocks.take(3, [Stored(3, [4], SIZE, "a")])
    blocks.settle("a", 70)
    assert blocks.held("a") == 64


def test_numbers_that_begin_anew_are_another_process_with_nothing():
    blocks = told(Stored(None, [1, 2], SIZE, "a"))
    blocks.take(1, [])
    blocks.take(0, [Stored(None, [5], SIZE)])
    assert (blocks.held("a"), len(blocks), blocks.gaps) == (None, 1, 0)


def test_while_the_connection_is_broken_nothing_is_told_and_the_next_number_decides():
    blocks = told(Stored(None, [1, 2], SIZE, "a"))
    blocks.pause()
    assert blocks.held("a") is None
    blocks.take(1, [])
    assert blocks.held("a") == 32
    blocks.pause()
    blocks.take(3, [])
    assert (blocks.held("a"), blocks.gaps) == (None, 1)


def test_a_batch_that_cannot_be_read_is_a_gap():
    blocks = told(Stored(None, [1, 2], SIZE, "a"))
    blocks.lose()
    assert (blocks.held("a"), blocks.gaps) == (None, 1)


def test_a_restart_forgets_all_and_takes_any_number():
    blocks = told(Stored(None, [1, 2], SIZE, "a"))
    blocks.restart()
    blocks.take(7, [])
    assert (blocks.held("a"), len(blocks), blocks.gaps, blocks.live) == (None, 0, 0, True)


def test_all_cleared_is_nothing_held_and_that_is_known():
    blocks = told(Stored(None, [1, 2], SIZE, "a"))
    blocks.take(1, [Cleared()])
    assert blocks.held("a") == 0


def test_a_model_with_several_groups_is_not_followed():
    blocks = told(Stored(None, [1], SIZE, "a"), Unsupported("several groups"), Stored(None, [2], SIZE, "a"))
    assert (blocks.held("a"), blocks.problem, len(blocks)) == (None, "several groups", 0)
    blocks.restart()
    assert blocks.problem == ""


def test_a_node_that_names_blocks_without_end_is_not_followed():
    blocks = Blocks(limit=100)
    for number in range(50):
        blocks.take(number, [Stored(None, range(10 * number, 10 * number + 10), SIZE)])
        assert len(blocks) <= 110
    assert "100" in blocks.problem


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    blocks = told(Stored(None, [1], SIZE, "a"), expect="abc")
    blocks.expect("a")
    blocks.expect("d")
    assert (blocks.held("a"), set(blocks._paths)) == (16, {"c", "a", "d"})


def test_a_session_is_a_name_that_nobody_chose():
    names = [
        session_of(each)
        for each in (key("a"), key("b"), ConversationKey("t", "m", "a"), ConversationKey("tm", "", "a"))
    ]
    assert len(set(names)) == 4 and all(len(name) == 24 and name.isalnum() for name in names)
    assert session_of(key("a")) == names[0]
    assert session_of(ConversationKey("", "m", "\ud800"))


# -- against an engine -------------------------------------------------------------------------------------------------


@dataclass
class Engine:
    """Keeps prefixes as lists of block names, evicts tails first and least recently used first."""

    room: int
    used: list[tuple[str, ...]] = field(default_factory=list)
    """Prefixes (tuples of names), least recently used first."""

    def has(self, prefix: tuple[str, ...]) -> bool:
        return prefix in self.used

    def serve(self, prompt: tuple[str, ...], session: str) -> list[Event]:
        hit = 0
        while hit < len(prompt) and self.has(prompt[: hit + 1]):
            hit += 1
        events: list[Event] = []
        for length in range(len(prompt), 0, -1):  # tails first: they are evicted first
            prefix = prompt[:length]
            if prefix in self.used:
                self.used.remove(prefix)
            self.used.append(prefix)
        if hit < len(prompt):
            parent = None if hit == 0 else name(prompt[:hit])
            events.append(Stored(parent, [name(prompt[: at + 1]) for at in range(hit, len(prompt))], SIZE, session))
        while len(self.used) > self.room:
            events.append(Removed([name(self.used.pop(0))]))
        return events

    def hit(self, prompt: tuple[str, ...]) -> int:
        length = 0
        while length < len(prompt) and self.has(prompt[: length + 1]):
            length += 1
        return length


def name(prefix: tuple[str, ...]) -> bytes:
    return "".join(prefix).encode()


turns = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.booleans()), max_size=40)


@given(turns=turns, room=st.integers(4, 14), late=st.integers(0, 10))
def test_each_conversation_is_believed_to_hold_what_the_engine_has_kept_of_it_since_its_turn(turns, room, late):
    """What comes back because others have the same beginning is not counted until the conversation's next turn.
    `late`: events are followed only from that turn on."""
    engine, blocks = Engine(room), Blocks()
    paths: dict[str, tuple[str, ...]] = {}
    number = 0
    kept: dict[str, int] = {}
    for at, (who, more, shared) in enumerate(turns):
        old = paths.get(who, ("s1", "s2") if shared else ())
        path = paths[who] = (*old, *(f"{who}{len(old) + step}" for step in range(more)))
        if len(path) > room:
            return
        if at >= late:
            blocks.expect(who)
        events = engine.serve(path, who)
        if at < late:
            continue
        blocks.take(number, events)
        number += 1
        blocks.settle(who, len(path) * SIZE + 5)
        kept[who] = len(path)
        for each in kept:
            believed = blocks.held(each)
            true = kept[each] = min(kept[each], engine.hit(paths[each]))
            assert believed is None or believed == true * SIZE or (believed == 0 and late > 0), (each, believed, true)
        assert blocks.held(who) == len(path) * SIZE
