"""Which conversation a request belongs to, and which turn of it it is."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.body import Api, Message, assistant_identity, parse
from router.recognition import MAX_TWINS, Recognised, Recogniser, Recognition, tenant_of
from router.turn import ConversationKey

SECRET = b"s" * 32
ids = count(1)


def said(role: str, text: str) -> Message:
    canonical = assistant_identity(text).replace(b"assistant", role.encode())
    return Message(role, canonical, len(text) + 30)


def history(*texts: str) -> list[Message]:
    """The user's and the assistant's messages in turn; `tool:` begins a tool's."""
    messages = []
    for at, text in enumerate(texts):
        role = "tool" if text.startswith("tool:") else ("user", "assistant")[at % 2]
        messages.append(said(role, text))
    return messages


@dataclass
class Desk:
    """A recogniser, and who asks it."""

    recogniser: Recogniser = field(default_factory=lambda: Recogniser(SECRET))
    turns: dict[ConversationKey, int] = field(default_factory=dict)

    def ask(self, *texts: str, tenant: str = "", model: str = "m", given: str | None = None) -> Recognised:
        return self.recogniser.recognise(tenant, model, given, history(*texts), f"r{next(ids)}")

    def number(self, found: Recognised) -> int:
        """As the core has it."""
        return found.number if found.number is not None else self.turns.get(found.key, 0) + 1

    def answer(self, found: Recognised, text: str | None) -> int:
        number = self.number(found)
        self.turns[found.key] = max(number, self.turns.get(found.key, 0))
        self.recogniser.answered(found, number, None if text is None else assistant_identity(text))
        return number

    def turn(self, *texts: str, answer: str | None = "a", **more: str) -> tuple[ConversationKey, int]:
        """A request that is answered."""
        found = self.ask(*texts, **more)
        return found.key, self.answer(found, answer)


# -- by the chain ------------------------------------------------------------------------------------------------------


def test_a_conversation_is_followed():
    desk = Desk()
    key, number = desk.turn("hi", answer="a1")
    assert number == 1
    assert desk.turn("hi", "a1", "u2", answer="a2") == (key, 2)
    assert desk.turn("hi", "a1", "u2", "a2", "u3") == (key, 3)


def test_identical_openers_are_two_conversations():
    desk = Desk()
    one, two = desk.turn("hi", answer="a1"), desk.turn("hi", answer="b1")
    assert one[0] != two[0] and one[1] == two[1] == 1
    assert desk.turn("hi", "b1", "u2") == (two[0], 2)
    assert desk.turn("hi", "a1", "u2") == (one[0], 2)


@pytest.mark.parametrize("answers", [("a", "a", "a"), (None, None, None), ("a", None, "a")])
def test_clients_that_hear_the_same_keep_their_own_conversations(answers: tuple[str | None, ...]):
    """Two interleaved clients, same opener and same answers (None: the router could not read them)."""
    desk = Desk()
    clients: list[list[str]] = [["hi"], ["hi"]]
    seen: list[list[tuple[ConversationKey, int]]] = [[], []]
    for turn, answer in enumerate(answers):
        for client in (0, 1):
            seen[client].append(desk.turn(*clients[client], answer=answer))
            clients[client] += [answer or "a tool call", f"{client} goes on in turn {turn}"]
    for client in (0, 1):
        assert [number for _, number in seen[client]] == [1, 2, 3]
    later = [{key for key, _ in turns[1:]} for turns in seen]
    assert [len(keys) for keys in later] == [1, 1] and later[0] != later[1]
    assert later[0] | later[1] == {seen[0][0][0], seen[1][0][0]}


def test_a_retry_is_no_turn():
    desk = Desk()
    key, _ = desk.turn("hi", answer="a1")
    for _ in range(3):  # asked again while it runs, or after it failed
        found = desk.ask("hi", "a1", "u2")
        assert (found.key, found.number) == (key, 2)
    assert desk.turn("hi", "a1", "u2", answer="a2") == (key, 2)
    assert desk.turn("hi", "a1", "u2", answer="b2") == (key, 2)  # a second answer to the same
    assert desk.turn("hi", "a1", "u2", "b2", "u3", answer="a3") == (key, 3)
    assert desk.turn("hi", "a1", "u2", "b2", "u3") == (key, 3)


def test_an_edited_last_answer_is_still_recognised():
    desk = Desk()
    key, _ = desk.turn("hi", answer="a1")
    assert desk.turn("hi", "a1, trimmed", "u2", answer="a2") == (key, 2)
    assert desk.turn("hi", "a1, trimmed", "u2", "edited", "u3") == (key, 3)


def test_an_edited_answer_among_twins_is_recognised_where_only_one_can_be_meant():
    desk = Desk()
    one, _ = desk.turn("hi", answer="a1")
    two, _ = desk.turn("hi", answer="b1")
    assert desk.turn("hi", "a1", "u2", answer="a2") == (one, 2)
    assert desk.turn("hi", "edited", "u2", answer="b2") == (two, 2)


def test_an_answer_that_fits_no_twin_is_nobodys_conversation():
    desk = Desk()
    known = {desk.turn("hi", answer=answer)[0] for answer in ("a1", "b1")}
    key, number = desk.turn("hi", "c1", "u2")
    assert key not in known and number == 2


def test_an_edited_early_history_begins_a_conversation_at_the_right_number():
    desk = Desk()
    key, _ = desk.turn("hi", answer="a1")
    desk.turn("hi", "a1", "u2", answer="a2")
    other, number = desk.turn("hello", "a1", "u2", "a2", "u3")
    assert other != key and number == 3
    assert desk.turn("hello", "a1", "u2", "a2", "u3", "a", "u4") == (other, 4)


def test_a_fork_goes_on_from_where_it_left():
    desk = Desk()
    key, _ = desk.turn("hi", answer="a1")
    desk.turn("hi", "a1", "u2", answer="a2")
    desk.turn("hi", "a1", "u2", "a2", "u3", answer="a3")
    assert desk.turn("hi", "a1", "another u2", answer="x2") == (key, 2)
    assert desk.turn("hi", "a1", "another u2", "x2", "u3") == (key, 3)
    assert desk.turn("hi", "a1", "u2", "a2", "u3", "a3", "u4") == (key, 4)


def test_what_the_router_did_not_see_in_between_still_counts():
    """Another router answered turns 2 and 3."""
    desk = Desk()
    key, _ = desk.turn("hi", answer="a1")
    assert desk.turn("hi", "a1", "u2", "a2", "u3", "a3", "u4") == (key, 4)


def test_an_unknown_history_has_one_turn_more_than_answers():
    desk = Desk()
    key, number = desk.turn("hi", "a1", "u2", "a2", "u3", answer="a3")
    assert number == 3
    assert desk.turn("hi", "a1", "u2", "a2", "u3", "a3", "u4") == (key, 4)


def test_tool_turns_are_turns():
    desk = Desk()
    key, number = desk.turn("weather?", answer=None)
    assert number == 1
    assert desk.turn("weather?", "call f", "tool: rain", answer="it rains") == (key, 2)
    assert desk.turn("weather?", "call f", "tool: rain", "it rains", "and now?") == (key, 3)


def test_several_results_and_answers_in_a_row_are_one_turn():
    recogniser = Recogniser(SECRET)
    messages = [said("system", "s"), said("user", "u")]
    first = recogniser.recognise("", "m", None, messages, "r1")
    recogniser.answered(first, 1, None)
    messages += [said("assistant", "call"), said("assistant", "call 2"), said("tool", "t"), said("tool", "t2")]
    second = recogniser.recognise("", "m", None, messages, "r2")
    assert (second.key, second.number) == (first.key, 2)
    assert second.new_bytes == sum(m.size_bytes for m in messages[-2:])
    assert second.total_bytes == sum(m.size_bytes for m in messages)


def test_a_greeting_before_the_first_user_message_is_no_turn():
    recogniser = Recogniser(SECRET)
    messages = [said("assistant", "hello, I am a bot"), said("user", "u")]
    assert recogniser.recognise("", "m", None, messages, "r1").number == 1


def test_the_size_of_what_is_new_is_what_stands_after_the_last_answer():
    found = Desk().ask("hi", "a1", "twelve bytes")
    assert found.new_bytes == 12 + 30
    assert found.total_bytes == 2 + 2 + 12 + 90


# -- by an id ----------------------------------------------------------------------------------------------------------


def test_an_id_is_believed_and_a_retry_is_no_turn():
    desk = Desk()
    key, number = desk.turn("hi", given="s")
    assert number == 1
    assert desk.turn("hi", given="s") == (key, 1)
    assert desk.turn("hi", "a", "u2", given="s") == (key, 2)
    assert desk.turn("hi", "a", "u2", given="s") == (key, 2)
    assert desk.turn("a summary of it all", given="s") == (key, 3)


def test_an_id_that_is_not_known_any_more_counts_its_answers():
    desk = Desk()
    assert desk.turn("hi", "a1", "u2", "a2", "u3", given="s")[1] == 3
    assert desk.turn("hi", "a1", "u2", "a2", "u3", "a", "u4", given="s")[1] == 4


def test_an_id_without_messages_counts_turns():
    recogniser = Recogniser(SECRET)
    found = recogniser.recognise("", "m", "s", [], "r1")
    assert found.number is None
    recogniser.answered(found, 1, None)
    again = recogniser.recognise("", "m", "s", [], "r2")
    assert (again.key, again.number) == (found.key, None)


def test_an_id_and_a_chain_never_meet():
    desk = Desk()
    by_chain, _ = desk.turn("hi")
    by_id, _ = desk.turn("hi", given=by_chain.id.removeprefix("new:"))
    assert by_chain != by_id


# -- apart -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given_id", [None, "s"])
@pytest.mark.parametrize(("mine", "theirs"), [({"tenant": "a"}, {"tenant": "b"}), ({"model": "m1"}, {"model": "m2"})])
def test_tenants_and_models_are_apart(given_id: str | None, mine: dict[str, str], theirs: dict[str, str]):
    desk = Desk()
    more = {} if given_id is None else {"given": given_id}
    key, _ = desk.turn("hi", **mine, **more)
    other, number = desk.turn("hi", "a", "u2", **theirs, **more)
    assert other != key and number == 2
    assert desk.turn("hi", "a", "u2", **mine, **more)[0] == key


def test_names_of_tenants_and_models_do_not_run_into_each_other():
    desk = Desk()
    key, _ = desk.turn("hi", tenant="ab", model="c")
    assert desk.turn("hi", "a", "u2", tenant="a", model="bc")[0] != key


def test_a_tenant_is_named_without_its_key():
    assert tenant_of(SECRET, None) == tenant_of(SECRET, "") == ""
    assert "key" not in tenant_of(SECRET, "key")
    assert tenant_of(SECRET, "key") == tenant_of(SECRET, "key") != tenant_of(b"o" * 32, "key")


def test_chains_are_keyed_by_the_installation():
    one, two = Recogniser(SECRET), Recogniser(b"o" * 32)
    chains = {recogniser.recognise("", "m", None, history("hi"), "r").chain for recogniser in (one, two)}
    assert len(chains) == 2


# -- the paper's rule --------------------------------------------------------------------------------------------------


def test_the_papers_rule_knows_a_conversation_by_its_first_user_message():
    desk = Desk(Recogniser(SECRET, Recognition.MD5_FIRST_MESSAGE))
    key, number = desk.turn("hi")
    assert key.id == "md5:" + hashlib.md5(assistant_identity("hi").replace(b"assistant", b"user")).hexdigest()
    assert number == 1
    assert desk.turn("hi", "a", "u2") == (key, 2)
    assert desk.turn("hi") == (key, 3)  # and takes identical openers for one conversation
    assert desk.turn("hello")[0] != key
    assert desk.turn("hi", tenant="b")[0] != key
    assert desk.turn("hi", given="s")[0].id == "id:s"


def test_the_papers_rule_skips_the_system_prompt():
    recogniser = Recogniser(SECRET, Recognition.MD5_FIRST_MESSAGE)
    keys = {
        recogniser.recognise("", "m", None, [said("system", system), said("user", "u")], "r").key
        for system in ("one", "two")
    }
    assert len(keys) == 1
    assert recogniser.recognise("", "m", None, [said("system", "one")], "r").key not in keys


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_memory_levels_off():
    """Row 15, here on what recognition remembers: 10^5 conversations."""
    recogniser = Recogniser(SECRET, limit=2000)
    opener = said("user", "hi")

    def converse(start: int, stop: int) -> int:
        for at in range(start, stop):
            found = recogniser.recognise("", "m", None, [opener if at % 3 else said("user", str(at))], f"r{at}")
            recogniser.answered(found, 1, str(at).encode())
        return len(recogniser._chains) + len(recogniser._last) + recogniser._entries

    tracemalloc.start()
    try:
        full = converse(0, 10_000)
        before = tracemalloc.get_traced_memory()[0]
        converse(10_000, 15_000)
        assert tracemalloc.get_traced_memory()[0] < 1.05 * before
    finally:
        tracemalloc.stop()
    assert converse(15_000, 100_000) <= full + MAX_TWINS
    assert recogniser._entries == sum(map(len, recogniser._chains.values())) <= 2000
    assert len(recogniser._last) <= 2000


def test_forgotten_conversations_begin_anew_at_the_right_number():
    desk = Desk(Recogniser(SECRET, limit=10))
    key, _ = desk.turn("hi", answer="a1")
    for at in range(50):
        desk.turn(f"other {at}")
    other, number = desk.turn("hi", "a1", "u2")
    assert other != key and number == 2


def test_more_twins_than_are_told_apart_are_never_taken_for_each_other():
    desk = Desk()
    keys = [desk.turn("hi", answer=f"a{at}")[0] for at in range(MAX_TWINS + 20)]
    again = [desk.turn("hi", f"a{at}", "u2")[0] for at in range(MAX_TWINS + 20)]
    assert len(set(keys) | set(again[:20])) == MAX_TWINS + 40
    assert again[20:] == keys[20:]


# -- any order ---------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["ask", "retry", "lost"]), st.sampled_from(["a", "b"])),
        max_size=40,
    )
)
def test_clients_in_any_order_get_their_own_turns(moves: list[tuple[int, str, str]]):
    """Clients with one opener and few answers ask, retry and lose answers: each counts its own turns, and once they
    have said words of their own no two are taken for each other."""
    desk = Desk()
    clients: list[list[str]] = [["hi"] for _ in range(5)]
    keys: list[set[ConversationKey]] = [set() for _ in range(5)]
    for client, move, answer in moves:
        texts = clients[client]
        found = desk.ask(*texts)
        turn = len(texts) // 2 + 1
        assert desk.number(found) == turn
        if turn > 2:
            keys[client].add(found.key)
        if move == "lost":
            continue
        desk.answer(found, answer)
        if move == "ask":
            texts += [answer, f"{client}, turn {turn + 1}"]
    used = Counter(key for mine in keys for key in mine)
    assert all(times == 1 for times in used.values())


def test_the_same_body_written_otherwise_is_the_same_history():
    recogniser = Recogniser(SECRET)
    one = parse(Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"h\\u00e9"}]}')
    found = recogniser.recognise("", "m", None, one.messages, "r1")
    recogniser.answered(found, 1, assistant_identity("a"))
    two = parse(
        Api.CHAT,
        '{"model":"m","messages":[{"content":"hé","role":"user"},{"role":"assistant","content":"a","id":"x"},'
        '{"role":"user","content":"b"}]}'.encode(),
    )
    assert recogniser.recognise("", "m", None, two.messages, "r2").key == found.key
