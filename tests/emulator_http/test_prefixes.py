"""What a prompt is in tokens, and what the prefix cache finds of it when history comes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.events import Events
from emulator.fleet import Fleet, Request
from emulator.prefix_cache import PrefixCache, prompt_tokens
from emulator.server.script import tool_script, write
from emulator.server.tokens import count, draw, render_chat, render_raw, tool_arguments
from tests.emulator_http.harness import PROFILE, START_PREFILL, fleet, in_loop
from tests.emulator_http.test_streams import TOOLS

SYSTEM = {"role": "system", "content": "You are terse. " * 40}
TEXT = st.text(max_size=60)


def user(text: object) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


def cached_after(first, answered: int, then) -> int:
    """Hits of `then` on a node that has answered `first` with that many tokens."""
    cache = PrefixCache(100_000, 1)
    grant = cache.admit(first.prompt, answered)
    assert grant is not None
    *path, (key, tokens) = first.prompt
    cache.release(grant, (*path, (key, tokens + answered - 1)))
    return cache.hit_tokens(then.prompt)


def test_a_message_is_its_bytes_over_four_rounded_up_and_a_header_of_four():
    rendered = render_chat([{"role": "system", "content": "sys"}, user("ö" * 100)], None, "", None)
    assert rendered.tokens == (4 + 1) + (4 + 50) + 4
    assert prompt_tokens(rendered.prompt) == rendered.tokens


@given(TEXT, st.integers(1, 80), TEXT)
def test_history_is_found_up_to_the_last_token_whose_kv_was_made(question, answered, next_question):
    first = render_chat([SYSTEM, user(question)], None, "", None)
    script = write(first.voice, answered, 10_000)
    second = render_chat([SYSTEM, user(question), assistant(script.text), user(next_question)], None, "", None)
    # In virtual time a conversation is one growing segment: prompt + answer, less the last token's KV.
    assert cached_after(first, answered, second) == first.tokens + answered - 1
    assert second.tokens == first.tokens + answered + 8 + count(next_question)


@given(st.integers(4, 60), st.integers(0, 59), st.sampled_from(["", "?", "edited text", "ö"]))
def test_an_edited_answer_is_found_up_to_the_edit(answered, kept, tail):
    first = render_chat([user("Q")], None, "", None)
    said = draw(first.voice, answered)
    edited = said[: 4 * min(kept, answered)] + tail
    second = render_chat([user("Q"), assistant(edited), user("R")], None, "", None)
    same = min(kept, answered)
    assert second.tokens == first.tokens + count(edited) + 9
    assert cached_after(first, answered, second) == min(first.tokens + answered - 1, first.tokens + same)


@given(st.lists(TEXT, min_size=1, max_size=4), st.lists(TEXT, min_size=1, max_size=4))
def test_prompts_share_exactly_the_messages_that_they_share(ones, others):
    one = render_chat([SYSTEM, *map(user, ones)], None, "", None)
    other = render_chat([SYSTEM, *map(user, others)], None, "", None)
    same = next((n for n, (a, b) in enumerate(zip(ones, others, strict=False)) if a != b), min(len(ones), len(others)))
    shared = {key for key, _ in one.prompt} & {key for key, _ in other.prompt}
    whole = ones == others
    assert len(shared) == 1 + same + whole and (one.voice == other.voice) == whole


def test_content_parts_of_text_are_the_text_and_others_are_their_json():
    plain = render_chat([user("a\nb")], None, "", None)
    parts = render_chat([user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], None, "", None)
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    assert parts == plain
    turned = {"image_url": {"url": "http://x/y.png"}, "type": "image_url"}
    assert render_chat([user([image])], None, "", None) == render_chat([user([turned])], None, "", None)
    assert render_chat([user([image])], None, "", None).tokens == 4 + count(str(image).replace(" ", "")) + 4


def test_a_salt_shares_nothing_in_the_cache_and_says_the_same():
    for plain, salted in (
        (render_chat([user("a")], TOOLS, "", None), render_chat([user("a")], TOOLS, "salt", None)),
        (render_raw("a" * 100, "", 16), render_raw("a" * 100, "salt", 16)),
    ):
        assert salted.voice == plain.voice and salted.tokens == plain.tokens
        assert not {key for key, _ in salted.prompt} & {key for key, _ in plain.prompt}


def test_tools_and_names_make_other_prompts():
    plain = render_chat([user("a")], None, "", None)
    voices = {
        plain.voice,
        render_chat([user("a")], TOOLS, "", None).voice,
        render_chat([{**user("a"), "name": "Bo"}], None, "", None).voice,
    }
    assert len(voices) == 3


@pytest.mark.parametrize("limit", [None, 3, 9])
def test_a_tool_call_comes_back_as_exactly_the_tokens_it_was(limit):
    tool = TOOLS[0]["function"]
    first = render_chat([user("a")], TOOLS, "", tool)
    script = tool_script(first.voice, tool, limit, 10_000, True)
    call = {"id": "x", "type": "function", "function": {"name": "look_up", "arguments": script.text}}
    history = [user("a"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    second = render_chat([*history, {"role": "tool", "tool_call_id": "x", "content": "12"}], TOOLS, "", None)
    if limit is None:
        assert script.text == tool_arguments(first.voice, tool)
        assert cached_after(first, script.tokens, second) == first.tokens + script.tokens - 1
    else:  # cut off: what was made is found, the bracket that history puts at its end is new
        assert script.tokens == limit and script.finish == "length"


@given(st.binary(min_size=1, max_size=400), st.integers(0, 400), st.binary(max_size=100))
def test_raw_prompts_share_whole_blocks_of_their_common_start(data, kept, tail):
    text = data.hex()
    other = text[: min(kept, len(text))] + tail.hex() + "z"
    one, two = render_raw(text, "", 4), render_raw(other, "", 4)
    common = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    shared = {key for key, _ in one.prompt} & {key for key, _ in two.prompt}
    assert len(shared) == common // 16 or (len(shared) == len(one.prompt) and text == other)


@given(st.integers(1, 60), st.integers(0, 60), st.lists(st.integers(0, 235), max_size=3), st.integers(1, 9))
def test_a_stream_with_stop_strings_says_what_the_whole_reply_says(tokens, min_tokens, starts, length):
    text = draw("voice", tokens)
    stop = [text[start : start + length] for start in starts if text[start : start + length]]
    script = write("voice", tokens, 1000, min_tokens=min(min_tokens, tokens), stop=stop)
    pieces = script.pieces()
    assert "".join(piece or "" for piece in pieces) == script.text and len(pieces) == script.tokens
    assert (script.stop_reason in stop) == (script.finish == "stop")
    for made in range(1, script.tokens):  # nothing is out that could still have been the start of a stop string
        shown = "".join(piece or "" for piece in pieces[:made])
        assert text.startswith(shown) and script.text.startswith(shown)


@in_loop
async def test_turn_2_is_cached_as_far_as_in_virtual_time_on_d_on_p_and_across_a_hand_over():
    """The same conversation, three ways, each against the fleet that counts segments by name."""
    messages: list[object] = [SYSTEM, "What is a trim tab?"]
    usage: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    async with fleet("1P_2D") as client:
        at_p = await client.chat("P0", *messages, max_tokens=1, kv_transfer_params=START_PREFILL)
        turn_1 = await client.chat("D0", *messages, max_tokens=30, kv_transfer_params=at_p.handle, **usage)
        messages += [assistant(turn_1.content), "Why the name?"]
        local = await client.chat("D0", *messages, max_tokens=5, **usage)
        fresh = await client.chat("D1", *messages, max_tokens=5, **usage)
        through_p = await client.chat("P0", *messages, max_tokens=1, kv_transfer_params=START_PREFILL)
        at_d = await client.chat("D0", *messages, max_tokens=5, kv_transfer_params=through_p.handle, **usage)
    sent = turn_1.usage["prompt_tokens"], local.usage["prompt_tokens"]

    events = Events()
    virtual = Fleet("1P_2D", PROFILE, events)

    def call(node: str, tokens: int, output: int, params=None):
        replies = []
        request = Request("r", (("talk", tokens),), output, params)
        virtual.call(node, request, None, lambda at_s, reply: replies.append(reply), lambda at_s, status: None)
        events.run(events.now_s + 20)
        return replies[0]

    handle = call("P0", sent[0], 1, START_PREFILL).kv_transfer_params
    call("D0", sent[0], 30, handle)
    expected = call("D0", sent[1], 5).cached_tokens, call("D1", sent[1], 5).cached_tokens
    second = call("P0", sent[1], 1, START_PREFILL)
    cached = [each.usage["prompt_tokens_details"]["cached_tokens"] for each in (local, fresh, through_p, at_d)]
    assert cached == [*expected, second.cached_tokens, second.cached_tokens]
    assert cached[0] == (sent[0] + 29) // 16 * 16 and cached[1] == 0
    assert fresh.content == local.content == at_d.content
