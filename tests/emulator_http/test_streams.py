"""Answers field by field as real vLLM 0.32 gave them, streamed and not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.emulator_http.harness import MODEL, START_PREFILL, captured, fleet, in_loop

ASK = ("Tell me something.",)


def records() -> dict[str, dict]:
    lines = captured("handshake.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, dict] = {}
    for line in lines:
        record = json.loads(line)
        found.setdefault(record["tag"], record)
    return found


def shape(value: object) -> object:
    """What a client can rely on: keys in their order, kinds of values, null where there is null."""
    if isinstance(value, dict):
        return [(key, shape(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return type(value).__name__


def without_nulls(value: object) -> object:
    """The captures of whole replies leave null fields out."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def decoded(event: str) -> dict:
    return json.loads(event.removeprefix("data: "))


@in_loop
async def test_a_chat_stream_has_the_events_of_the_captured_one():
    real = records()["ref"]
    async with fleet("1D") as client:
        answer = await client.chat("D0", *ASK, max_tokens=24, stream=True, stream_options={"include_usage": True})
    role, *tokens, last, usage = answer.events
    first, second, *_ = real["first_events"]
    assert shape(role) == shape(decoded(first))
    assert all(shape(token) == shape(decoded(second)) for token in tokens)
    assert shape(last) == shape(decoded(real["last_events"][-3]))
    assert shape(usage) == shape(decoded(real["last_events"][-2]))
    assert real["last_events"][-1] == "data: [DONE]" and answer.text.endswith("data: [DONE]\n\n")
    # To the byte, but for what is ours: separators, order, nulls.
    raw = answer.text.split("\n\n")[1]
    theirs = second.replace(decoded(second)["id"], role["id"]).replace('"model":"tiny"', f'"model":"{MODEL}"')
    theirs = theirs.replace(str(decoded(second)["created"]), str(role["created"]))
    assert raw == theirs.replace('"content":""', f'"content":"{tokens[0]["choices"][0]["delta"]["content"]}"')


@in_loop
async def test_each_chunk_is_one_token_of_four_bytes_and_the_last_one_says_why_it_ended():
    async with fleet("1D") as client:
        answer = await client.chat("D0", *ASK, max_tokens=9, stream=True)
    deltas = [event["choices"][0]["delta"] for event in answer.events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [len(delta["content"].encode()) for delta in deltas[1:]] == [4] * 9
    assert [event["choices"][0]["finish_reason"] for event in answer.events] == [None] * 9 + ["length"]
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("path", ["chat", "complete"])
@in_loop
async def test_a_usage_chunk_comes_only_if_it_was_asked_for_and_else_the_last_chunk_has_the_fingerprint(path):
    async with fleet("1D") as client:
        ask = getattr(client, path)
        plain = await ask("D0", "Hello", max_tokens=3, stream=True)
        declined = await ask("D0", "Hello", max_tokens=3, stream=True, stream_options={"include_usage": False})
        usage = await ask("D0", "Hello", max_tokens=3, stream=True, stream_options={"include_usage": True})
    for answer in (plain, declined):
        assert all(event["choices"] and "usage" not in event for event in answer.events) and answer.done
        assert ["system_fingerprint" in event for event in answer.events[-2:]] == [False, True]
    assert [bool(event["choices"]) for event in usage.events[-2:]] == [True, False]
    assert ["system_fingerprint" in event for event in usage.events[-2:]] == [False, True]
    assert usage.usage["completion_tokens"] == 3
    assert usage.usage["total_tokens"] == usage.usage["prompt_tokens"] + 3


@in_loop
async def test_continuous_usage_counts_up_with_the_tokens():
    async with fleet("1D") as client:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await client.chat("D0", *ASK, max_tokens=4, stream=True, stream_options=options)
    assert [event["usage"]["completion_tokens"] for event in answer.events] == [0, 1, 2, 3, 4, 4]


@in_loop
async def test_whole_replies_have_the_fields_of_the_captured_ones():
    real = records()
    async with fleet("1P_1D") as client:
        chat = await client.chat("P0", "x" * 2000, max_tokens=1, kv_transfer_params=START_PREFILL)
        text = await client.complete("P0", "x" * 2000, max_tokens=1, kv_transfer_params=START_PREFILL)
        plain = await client.complete("D0", "x" * 500, max_tokens=5)
    assert shape(without_nulls(chat.body)) == shape(real["chat-stream:P"]["resp"])
    assert shape(without_nulls(text.body)) == shape(real["compl:P"]["resp"])
    assert shape(without_nulls(plain.body)) == shape(real["compl:D"]["resp"])
    assert chat.body["kv_transfer_params"]["remote_blocks_expiry_time"] is None
    assert plain.body["kv_transfer_params"] is None


@in_loop
async def test_the_request_id_is_the_clients_or_a_new_one():
    real = records()["ok:P"]
    async with fleet("1D") as client:
        mine = await client.chat("D0", *ASK, max_tokens=1, headers={"X-Request-Id": "abc-1"})
        other = await client.chat("D0", *ASK, max_tokens=1)
        text = await client.complete("D0", "Hello", max_tokens=1, request_id="xyz")
        odd = await client.chat("D0", *ASK, max_tokens=2, stream=True, headers={"X-Request-Id": 'a"b\\'})
        foreign = await client.chat("D0", *ASK, max_tokens=2, headers={"X-Request-Id": "ünï"})
    assert real["resp"]["id"] == f"chatcmpl-{real['req_headers']['X-Request-Id']}"
    assert mine.body["id"] == "chatcmpl-abc-1" and mine.headers["X-Request-Id"] == "abc-1"
    assert len(other.body["id"]) == len("chatcmpl-96ae7421dad9c595") and len(other.headers["X-Request-Id"]) == 32
    assert text.body["id"] == "cmpl-xyz"
    assert foreign.status == 200 and foreign.body["id"].isascii()
    assert {event["id"] for event in odd.events} == {'chatcmpl-a"b\\'}


@in_loop
async def test_the_same_prompt_gets_the_same_answer_streamed_or_not_anywhere_whatever_the_seed():
    async with fleet("2D") as client:
        whole = await client.chat("D0", *ASK, max_tokens=40)
        streamed = await client.chat("D1", *ASK, max_tokens=40, stream=True, seed=7, temperature=1.3, top_p=0.5)
        shorter = await client.chat("D1", *ASK, max_tokens=10)
        other = await client.chat("D1", "Tell me something else.", max_tokens=40)
    assert whole.content == streamed.content and len(whole.content) == 160
    assert whole.content.startswith(shorter.content) and other.content != whole.content


@in_loop
async def test_without_a_limit_an_answer_stops_by_itself_and_with_one_it_ends_there():
    async with fleet("1D") as client:
        free = await client.chat("D0", *ASK)
        again = await client.chat("D0", *ASK, min_tokens=300)
        capped = await client.chat("D0", *ASK, max_completion_tokens=12, max_tokens=99)
        text = await client.complete("D0", "Hello")
    assert free.choice["finish_reason"] == "stop" and 16 <= free.usage["completion_tokens"] <= 256
    assert again.usage["completion_tokens"] == 300 and again.content.startswith(free.content)
    assert capped.choice["finish_reason"] == "length" and capped.usage["completion_tokens"] == 12
    assert text.usage["completion_tokens"] == 16


@in_loop
async def test_a_stop_string_ends_the_answer_before_it_and_is_never_streamed():
    async with fleet("1D") as client:
        full = (await client.chat("D0", *ASK, max_tokens=50)).content
        stop = full[86:93]  # not on a token's border
        whole = await client.chat("D0", *ASK, max_tokens=50, stop=[stop, "never"])
        streamed = await client.chat("D0", *ASK, max_tokens=50, stop=stop, stream=True)
        kept = await client.chat("D0", *ASK, max_tokens=50, stop=stop, include_stop_str_in_output=True)
        late = await client.chat("D0", *ASK, max_tokens=50, stop=stop, min_tokens=40)
    assert whole.content == streamed.content == full[: full.index(stop)]
    assert (whole.choice["finish_reason"], whole.choice["stop_reason"]) == ("stop", stop)
    assert whole.usage["completion_tokens"] == 24  # the token in which the string is complete counts
    assert len(streamed.events) == 25
    assert kept.content == full[: full.index(stop)] + stop
    assert late.choice["finish_reason"] == "length"


@in_loop
async def test_several_choices_and_several_prompts_are_told_apart_by_index():
    async with fleet("1D") as client:
        chat = await client.chat("D0", *ASK, max_tokens=5, n=3)
        streamed = await client.chat("D0", *ASK, max_tokens=5, n=3, stream=True, stream_options={"include_usage": True})
        texts = await client.complete("D0", ["one", "two"], max_tokens=4, n=2)
    said = {choice["index"]: choice["message"]["content"] for choice in chat.body["choices"]}
    assert len(set(said.values())) == 3
    told = dict.fromkeys(said, "")
    for event in streamed.events[:-1]:
        told[event["choices"][0]["index"]] += event["choices"][0]["delta"]["content"]
    assert told == said
    assert chat.usage["completion_tokens"] == streamed.usage["completion_tokens"] == 15
    assert [choice["index"] for choice in texts.body["choices"]] == [0, 1, 2, 3]
    assert texts.usage["prompt_tokens"] == 2 and texts.usage["completion_tokens"] == 16


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}}}}},
    {"type": "function", "function": {"name": "nothing"}},
]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "name", "finish"),
    [
        ("required", "look_up", "tool_calls"),
        ({"type": "function", "function": {"name": "look_up"}}, "look_up", "stop"),
        ({"type": "function", "function": {"name": "nothing"}}, "nothing", "stop"),
    ],
)
@in_loop
async def test_a_forced_tool_is_called_with_arguments_of_its_schema_in_deltas_too(choice, name, finish):
    async with fleet("1D") as client:
        whole = await client.chat("D0", *ASK, tools=TOOLS, tool_choice=choice)
        streamed = await client.chat("D0", *ASK, tools=TOOLS, tool_choice=choice, stream=True)
        plain = await client.chat("D0", *ASK, tools=TOOLS, max_tokens=5)
    (call,) = whole.choice["message"]["tool_calls"]
    assert whole.choice["finish_reason"] == finish and whole.content == ""
    assert call["type"] == "function" and call["function"]["name"] == name
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.keys() == ({"city", "days", "unit"} if name == "look_up" else set())
    calls = [event["choices"][0]["delta"].get("tool_calls", [{}])[0] for event in streamed.events]
    begun = [each for each in calls if "id" in each]
    assert [each["function"]["name"] for each in begun] == [name] and begun[0]["id"] == call["id"]
    assert "".join(each.get("function", {}).get("arguments", "") for each in calls) == call["function"]["arguments"]
    assert streamed.events[-1]["choices"][0]["finish_reason"] == finish
    assert plain.choice["finish_reason"] == "length" and "tool_calls" not in plain.choice["message"]


@in_loop
async def test_http_1_0_gets_the_same_events_without_chunks():
    async with fleet("1D") as client:
        node = client.running.nodes["D0"]
        body = json.dumps({"messages": [{"role": "user", "content": ASK[0]}], "max_tokens": 3, "stream": True})
        reader, writer = await asyncio.open_connection(node.host, node.port)
        head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n{body}".encode())
        raw = (await reader.read()).decode()
        writer.close()
    events = raw.split("\r\n\r\n", 1)[1].split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""] and len(events) == 6
