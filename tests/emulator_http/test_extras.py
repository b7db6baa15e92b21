"""What a client may want beside the text: token ids there and back, log-probabilities, its prompt, a given shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.server import vocabulary
from emulator.server.tokens import chat_text, content_text, render_chat, render_raw
from emulator.server.vocabulary import decode, encode
from tests.emulator_http.harness import fleet, in_loop

ASK = "Tell me something."
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


@given(st.text())
def test_ids_give_a_text_back_and_are_as_many_as_its_tokens(text: str):
    ids = encode(text)
    assert decode(ids) == text
    assert len(ids) == render_raw(text, "", 16).tokens
    assert all(token < vocabulary.SIZE for token in ids)


@given(st.lists(st.integers(0, vocabulary.SIZE - 1)))
def test_any_list_of_ids_is_some_text(ids: list[int]):
    assert isinstance(decode(ids), str)


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "a role of an unusual length"]), "content": st.text()},
        optional={"name": st.text(min_size=1)},
    ),
    min_size=1,
)


@given(messages, st.sampled_from([None, TOOLS]))
def test_a_conversation_as_one_text_has_the_tokens_of_its_messages(said, tools):
    assert len(encode(chat_text(said, tools))) == render_chat(said, tools, "", None).tokens


def test_a_conversation_as_one_text_holds_what_was_said():
    text = chat_text([{"role": "user", "content": content_text("Hello")}], None)
    assert text == "<|user|>        Hello   <|assistant|>   "


@in_loop
async def test_tokenize_counts_as_usage_does_and_detokenize_gives_the_text_back():
    async with fleet("1D") as client:
        words = await client.post("D0", "/tokenize", {"prompt": ASK, "return_token_strs": True})
        talk = await client.post("D0", "/tokenize", {"messages": [{"role": "user", "content": ASK}]})
        back = await client.post("D0", "/detokenize", {"tokens": words.body["tokens"]})
        raw = await client.complete("D0", ASK, max_tokens=1, echo=True, return_token_ids=True)
        chat = await client.chat("D0", ASK, max_tokens=1, return_token_ids=True, return_prompt_text=True)
    assert back.body == {"prompt": ASK} and "".join(words.body["token_strs"]) == ASK
    assert words.body["count"] == raw.usage["prompt_tokens"] and words.body["tokens"] == raw.choice["prompt_token_ids"]
    assert talk.body["count"] == chat.usage["prompt_tokens"] and talk.body["tokens"] == chat.body["prompt_token_ids"]
    assert decode(chat.body["prompt_token_ids"]) == chat.body["prompt_text"]
    assert decode(chat.choice["token_ids"]) == chat.content


@in_loop
async def test_log_probabilities_are_of_the_tokens_that_make_the_text_streamed_or_not():
    async with fleet("1D") as client:
        asked: dict[str, Any] = {"max_tokens": 6, "logprobs": True, "top_logprobs": 3}
        whole = await client.chat("D0", ASK, **asked)
        streamed = await client.chat("D0", ASK, stream=True, **asked)
        plain = await client.chat("D0", ASK, max_tokens=6)
    content = whole.choice["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == whole.content == streamed.content == plain.content
    assert plain.choice["logprobs"] is None
    for each in content:
        assert each["bytes"] == list(each["token"].encode())
        top = each["top_logprobs"]
        assert top[0]["token"] == each["token"] and len({other["token"] for other in top}) == 3
        assert 0 > top[0]["logprob"] > top[1]["logprob"] > top[2]["logprob"]
    told = [event["choices"][0]["logprobs"] for event in streamed.events]
    assert told[0] is None and [each["content"][0] for each in told[1:]] == content


@in_loop
async def test_an_echo_stands_before_the_answer_with_the_log_probabilities_of_both():
    async with fleet("1D") as client:
        asked = {"max_tokens": 4, "echo": True, "logprobs": 1}
        whole = await client.complete("D0", ASK, **asked)
        streamed = await client.complete("D0", ASK, stream=True, **asked)
        alone = await client.complete("D0", ASK, max_tokens=0, echo=True)
        answer = await client.complete("D0", ASK, max_tokens=4)
    assert whole.content == streamed.content == ASK + answer.content
    assert alone.content.startswith(ASK)
    found = whole.choice["logprobs"]
    assert "".join(found["tokens"]) == whole.content
    assert found["token_logprobs"][0] is None and all(each < 0 for each in found["token_logprobs"][1:])
    places = zip(found["text_offset"], found["tokens"], strict=True)
    assert all(whole.content[at : at + len(token)] == token for at, token in places)
    assert len(whole.choice["prompt_logprobs"]) == whole.usage["prompt_tokens"]
    parts = [event["choices"][0]["logprobs"] for event in streamed.events]
    for name in ("tokens", "text_offset"):
        assert [each for part in parts for each in part[name]] == found[name]


@in_loop
async def test_a_prompt_whose_every_token_is_asked_about_comes_from_no_cache():
    async with fleet("1D") as client:
        text = "word " * 200
        await client.complete("D0", text, max_tokens=1)
        hit = await client.complete("D0", text, max_tokens=1)
        asked = [await client.complete("D0", text, max_tokens=1, prompt_logprobs=1) for _ in range(2)]
    assert hit.usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert [each.usage["prompt_tokens_details"]["cached_tokens"] for each in asked] == [0, 0]


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_schema_or_a_choice_says_what_the_answer_is(stream: bool):
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    async with fleet("1D") as client:
        by_schema = await client.chat("D0", ASK, response_format=shape, stream=stream)
        guided = await client.chat("D0", ASK, structured_outputs={"json": SCHEMA}, stream=stream)
        chosen = await client.complete("D0", ASK, structured_outputs={"choice": ["yes", "no"]}, stream=stream)
        any_json = await client.chat("D0", ASK, response_format={"type": "json_object"}, stream=stream)
        cut = await client.chat("D0", ASK, response_format=shape, max_tokens=2, stream=stream)
    assert json.loads(by_schema.content).keys() == {"city", "days"} and guided.content == by_schema.content
    assert chosen.content in ("yes", "no") and json.loads(any_json.content)
    assert by_schema.content.startswith(cut.content) and len(cut.content) == 8
    reasons = [each.events[-1]["choices"][0] if stream else each.choice for each in (by_schema, chosen, cut)]
    assert [each["finish_reason"] for each in reasons] == ["stop", "stop", "length"]


@in_loop
async def test_an_answer_is_cut_to_the_room_and_refused_only_where_there_is_none():
    async with fleet("1D", max_model_len=100) as client:
        cut = await client.complete("D0", list(range(90)), max_tokens=50)
        chat = await client.chat("D0", ASK, max_tokens=100)
        full = await client.complete("D0", list(range(100)), max_tokens=1)
        beyond = await client.complete("D0", list(range(200)), max_tokens=1)
        text = await client.complete("D0", "a" * 2000, max_tokens=1)
    assert (cut.choice["finish_reason"], cut.usage["total_tokens"], chat.usage["total_tokens"]) == ("length", 100, 100)
    assert full.body["error"]["message"].startswith("max_tokens must be at least 1, got 0.")
    assert "your prompt contains 200 input tokens" in beyond.body["error"]["message"]
    assert "your prompt contains at least 101 input tokens" in text.body["error"]["message"]
    assert (full.status, beyond.status, text.status) == (400, 400, 400)


@in_loop
async def test_an_answer_inside_a_raw_prompt_is_found_again_up_to_where_it_was_edited():
    prompt = "More of it, Tony, said Nina. " * 20  # words that begin as answers do
    async with fleet("1D", speed=50.0) as client:
        first = await client.complete("D0", prompt, max_tokens=64)
        asked = first.usage["prompt_tokens"]
        kept = await client.complete("D0", prompt + first.content + " And then?", max_tokens=64)
        longer = prompt + first.content + " And then?" + kept.content
        third = await client.complete("D0", longer + " End.", max_tokens=1)
        edited = await client.complete("D0", prompt + first.content[:80] + "no more", max_tokens=1)
        other = await client.complete("D0", prompt + "Something else. " * 20, max_tokens=1)
    cached = [each.usage["prompt_tokens_details"]["cached_tokens"] for each in (kept, third, edited, other)]
    assert asked + 48 <= cached[0] < asked + 64
    assert cached[1] >= kept.usage["prompt_tokens"] + 48
    assert asked <= cached[2] <= asked + 20 and cached[3] <= asked


@in_loop
async def test_the_web_servers_metrics_count_by_path_method_and_class_of_status():
    async with fleet("1D") as client:
        await client.chat("D0", ASK, max_tokens=1)
        await client.chat("D0", ASK, max_tokens=0)
        await client.get("D0", "/nope")
        for path in ("/health", "/version", "/load", "/metrics", "/v1/models"):
            await client.get("D0", path)
        numbers = await client.numbers("D0")
        client.running.kill("D0")
        await client.running.revive("D0")
        after = await client.numbers("D0")
    counted = {name: n for name, n in numbers.items() if name.startswith("http_requests_total")}
    assert counted == {
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}': 1,
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"}': 1,
        'http_requests_total{handler="none",method="GET",status="4xx"}': 1,
        'http_requests_total{handler="/v1/models",method="GET",status="2xx"}': 1,
    }
    assert numbers["http_request_duration_highr_seconds_count"] == 4
    assert numbers['http_request_size_bytes_sum{handler="/v1/chat/completions"}'] > 100
    assert after["http_request_duration_highr_seconds_count"] == 0


@in_loop
async def test_a_path_with_a_slash_too_many_is_sent_to_the_right_one():
    async with fleet("1D") as client:
        url = client.url("D0", "/v1/models/")
        async with client.session.get(url, allow_redirects=False) as reply:
            where = reply.headers["Location"]
        async with client.session.get(where) as followed:
            assert (reply.status, followed.status) == (307, 200)
    assert where == url.rstrip("/")
