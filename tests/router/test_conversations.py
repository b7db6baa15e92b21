"""Which conversations are remembered, for how long, and how many."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.length import LengthState
from router.conversations import Conversation, Conversations
from router.reuse import Reuse
from router.turn import ConversationKey
from tests.router.samples import D0, D1, key

HOUR_S = 3600.0


def test_a_new_conversation_has_no_turn_no_context_and_no_home():
    new = Conversations().open(key(), 5.0)
    assert (new.turns, new.context_tokens, new.decode_node, new.in_flight) == (0, 0, None, 0)
    assert new.key == key()


def test_the_same_key_is_the_same_conversation():
    conversations = Conversations()
    first = conversations.open(key(), 0.0)
    first.turns = 3
    assert conversations.open(key(), 10.0) is first
    assert len(conversations) == 1


@pytest.mark.parametrize(
    "other",
    [ConversationKey("x", "llm", "c1"), ConversationKey("tenant", "x", "c1"), ConversationKey("tenant", "llm", "x")],
)
def test_tenant_model_and_id_each_tell_conversations_apart(other: ConversationKey):
    conversations = Conversations()
    assert conversations.open(key(), 0.0) is not conversations.open(other, 0.0)


def test_a_conversation_is_known_just_short_of_an_hour_and_forgotten_at_the_hour():
    conversations = Conversations()
    first = conversations.open(key(), 0.0)
    assert conversations.open(key(), HOUR_S - 1) is first
    assert conversations.open(key(), HOUR_S - 1 + HOUR_S) is not first
    assert conversations.expired == 1


def test_another_conversations_turn_sweeps_the_idle_ones_out():
    conversations = Conversations()
    for at in range(5):
        conversations.open(key(f"old {at}"), float(at))
    conversations.open(key("new"), HOUR_S + 2.5)
    assert len(conversations) == 3  # old 3, old 4 and new
    assert conversations.expired == 3


def test_a_turn_in_flight_keeps_its_conversation_but_not_the_idle_ones_behind_it():
    conversations = Conversations()
    stuck = conversations.open(key("stuck"), 0.0)
    stuck.in_flight = 1
    idle = conversations.open(key("idle"), 1.0)
    idle.turns = 4
    assert conversations.open(key("idle"), 2 * HOUR_S).turns == 0
    assert conversations.open(key("stuck"), 2 * HOUR_S) is stuck


def test_beyond_the_limit_the_least_recently_used_idle_one_goes():
    conversations = Conversations(limit=2)
    conversations.open(key("a"), 0.0)
    conversations.open(key("b"), 1.0)
    a = conversations.open(key("a"), 2.0)
    conversations.open(key("c"), 3.0)
    assert conversations.open(key("a"), 4.0) is a
    assert len(conversations) == 2
    assert conversations.evicted == 1


def test_beyond_the_limit_conversations_with_a_turn_in_flight_stay():
    conversations = Conversations(limit=2)
    oldest = conversations.open(key("a"), 0.0)
    oldest.in_flight = 1
    conversations.open(key("b"), 1.0)
    conversations.open(key("c"), 2.0)
    assert conversations.open(key("a"), 3.0) is oldest


def test_where_all_are_in_flight_the_newcomer_is_served_but_not_remembered():
    conversations = Conversations(limit=2)
    busy = [conversations.open(key(name), 0.0) for name in "ab"]
    for conversation in busy:
        conversation.in_flight = 1
    conversations.open(key("c"), 1.0).in_flight = 1
    assert len(conversations) == 2
    assert [conversations.open(key(name), 2.0) for name in "ab"] == busy


def test_a_node_that_is_gone_is_nobodys_home_and_others_keep_theirs():
    conversations = Conversations()
    homes = {"a": D0, "b": D1, "c": D0}
    for name, home in homes.items():
        conversations.open(key(name), 0.0).decode_node = home
    conversations.forget_node(D0)
    assert [conversations.open(key(name), 1.0).decode_node for name in "abc"] == [None, D1, None]
    assert len(conversations) == 3


@pytest.mark.parametrize(("limit", "idle_s"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -5.0)])
def test_bounds_that_bound_nothing_are_refused(limit: int, idle_s: float):
    with pytest.raises(ValueError, match="limit and limit_bytes must be at least 1"):
        Conversations(limit, idle_s)


@given(
    steps=st.lists(st.tuples(st.integers(0, 7), st.floats(0.0, 30.0), st.booleans()), max_size=60),
    limit=st.integers(1, 5),
    hot=st.integers(1, 6),
)
def test_never_more_than_the_limit_and_never_one_in_flight_evicted(steps, limit, hot):
    conversations = Conversations(limit, idle_s=60.0, hot=hot)
    flying: dict[int, Conversation] = {}
    now_s = 0.0
    for name, wait_s, lands in steps:
        now_s += wait_s
        opened = conversations.open(key(str(name)), now_s)
        assert len(conversations) <= limit
        if name in flying:
            assert opened is flying[name]
            if lands:
                flying.pop(name).in_flight = 0
        elif len(flying) < limit:
            opened.in_flight = 1
            flying[name] = opened


def test_bytes_are_a_bound_of_their_own():
    conversations = Conversations(limit=1000, limit_bytes=3 * 1000)
    for at in range(20):
        conversations.open(ConversationKey("", "m", f"{at:0200d}"), float(at))
        assert conversations.size_bytes <= 3 * 1000
    assert (len(conversations), conversations.evicted) == (3, 17)
    with_room = conversations.size_bytes
    for at in range(17, 20):
        conversations.open(ConversationKey("", "m", f"{at:0200d}"), 30.0)
    assert (conversations.size_bytes, conversations.evicted) == (with_room, 17)


# -- those that are packed ---------------------------------------------------------------------------------------------


def state(conversation: Conversation | None) -> object:
    return None if conversation is None else {name: getattr(conversation, name) for name in conversation.__slots__}


def test_a_conversation_that_was_packed_comes_back_as_it_was():
    conversations, plain = Conversations(hot=1), Conversations()
    for table in (conversations, plain):
        it = table.open(key("a"), 1.0)
        it.turns, it.context_tokens, it.decode_node, it.lost_node, it.moved_s = 3, 2**40, D0, D1, 7.5
        it.length, it.reuse = LengthState(4.25, 2), Reuse(900, answers=False, doubted=True)
        table.open(key("b"), 2.0)
        table.open(key("c"), 3.0)
    for name in "abc":
        assert state(conversations.peek(key(name))) == state(plain.peek(key(name)))
    assert [each.key.id for each in conversations] == ["a", "b", "c"]
    assert state(conversations.open(key("a"), 4.0)) == state(plain.open(key("a"), 4.0))
    assert len(conversations) == 3


def test_looking_at_a_packed_one_changes_nothing():
    conversations = Conversations(hot=1)
    for name in "ab":
        conversations.open(key(name), 0.0)
    looked_at = conversations.peek(key("a"))
    assert looked_at is not None
    looked_at.turns = 9
    assert conversations.open(key("a"), 1.0).turns == 0


def test_a_turn_in_flight_is_never_packed():
    conversations = Conversations(hot=1)
    flying = conversations.open(key("a"), 0.0)
    flying.in_flight = 1
    for at in range(10):
        conversations.open(key(f"b{at}"), 1.0)
    assert conversations.open(key("a"), 2.0) is flying


nodes = st.sampled_from([None, D0, D1])


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("turn"), st.integers(0, 6), st.floats(0.0, 25.0), nodes, st.integers(0, 2**70)),
            st.tuples(st.just("gone"), nodes.filter(bool)),
        ),
        max_size=60,
    ),
    hot=st.integers(1, 4),
    limit=st.integers(2, 8),
)
def test_packed_or_not_the_same_is_known_of_every_conversation(steps, hot, limit):
    """A table that packs against one that has no need to."""
    packing, plain, now_s = Conversations(limit, idle_s=60.0, hot=hot), Conversations(limit, idle_s=60.0), 0.0
    for step in steps:
        if step[0] == "gone":
            for table in (packing, plain):
                table.forget_node(step[1])
        else:
            _, name, wait_s, home, tokens = step
            now_s += wait_s
            for table in (packing, plain):
                it = table.open(key(str(name)), now_s)
                it.turns += 1
                it.context_tokens = it.reuse.prompt_tokens = min(tokens, 2**64 - 1)
                it.decode_node = home or it.decode_node
                it.length = LengthState(float(tokens % 97), it.turns)
                it.reuse.answers = bool(tokens % 2)
        assert [state(each) for each in packing] == [state(each) for each in plain]
        assert (packing.evicted, packing.expired) == (plain.evicted, plain.expired)
    assert packing.size_bytes <= plain.size_bytes


def test_a_packed_conversation_takes_what_the_bound_in_bytes_reckons():
    count = 20_000
    table = Conversations(count, hot=1)
    tracemalloc.start()
    for at in range(count):
        it = table.open(ConversationKey("tenant", "model", f"new:{at:024x}"), at * 1e-3)
        it.turns, it.context_tokens, it.decode_node, it.length = 1, 1000 + at, D0, LengthState(4.0 + at, 1)
        it.reuse.prompt_tokens = 900 + at
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.75 * table.size_bytes < taken < 1.1 * table.size_bytes
    assert taken / count < 400
