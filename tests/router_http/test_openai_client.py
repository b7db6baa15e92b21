"""The official client, against the router: conversations with tools, streamed and not, and errors as it knows them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from .client import in_loop
from .fake_engine import ARGUMENTS, FakeEngine
from .faults import ROLE, answers, content, streams
from .installation import Installation, installation

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@asynccontextmanager
async def client(router: Installation) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="any", max_retries=0, timeout=10) as made:
        yield made


async def whole(asked: openai.AsyncOpenAI, messages: list[Any]) -> tuple[dict[str, Any], str]:
    """(the assistant's message, the turn's number) of an unstreamed answer."""
    raw = await asked.chat.completions.with_raw_response.create(model="m", messages=messages, tools=TOOLS)
    answer = raw.parse()
    assert answer.usage is not None and answer.usage.prompt_tokens > 0
    return answer.choices[0].message.model_dump(exclude_none=True), raw.headers["x-trimtab-turn"]


async def streamed(asked: openai.AsyncOpenAI, messages: list[Any]) -> tuple[dict[str, Any], str]:
    """The same of a streamed one, put together."""
    raw = await asked.chat.completions.with_raw_response.create(model="m", messages=messages, tools=TOOLS, stream=True)
    text, name, call, arguments = "", "", "", ""
    async for chunk in raw.parse():
        assert chunk.usage is None and chunk.choices
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for part in delta.tool_calls or []:
            assert part.function is not None
            call, name = part.id or call, part.function.name or name
            arguments += part.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant"}
    if name:
        function = {"name": name, "arguments": arguments}
        message["tool_calls"] = [{"id": call, "type": "function", "function": function}]
    else:
        message["content"] = text
    return message, raw.headers["x-trimtab-turn"]


@pytest.mark.parametrize("way", [whole, streamed])
@pytest.mark.parametrize("x", [0.0, 1.0])
@in_loop
async def test_a_conversation_with_tools(way: Any, x: float):
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d], pin_x=x) as router, client(router) as asked:
        messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "weather?"}]
        turns = []
        for _ in range(2):
            message, turn = await way(asked, messages)
            turns.append(turn)
            (call,) = message["tool_calls"]
            assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", ARGUMENTS)
            messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"rain": 1})}]
            message, turn = await way(asked, messages)
            turns.append(turn)
            assert message["content"] == "one two three four"
            messages += [message, {"role": "user", "content": "and tomorrow?"}]
        await router.settle()
        conversations = len(router.core.conversations)
    assert (turns, conversations) == (["1", "2", "3", "4"], 1)
    assert (p.calls, d.calls) == ((4, 4) if x == 0 else (1, 4))


@in_loop
async def test_usage_in_a_stream_is_there_where_it_is_asked_for():
    d = FakeEngine("D0")
    async with installation([], [d]) as router, client(router) as asked:
        usages = []
        both: list[Any] = [{"include_usage": True}, {"include_usage": False}]
        for options in both:
            stream = await asked.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options=options,
            )
            usages.append([chunk.usage.completion_tokens async for chunk in stream if chunk.usage is not None])
    assert usages == [[4], []]


@in_loop
async def test_completions_and_models():
    d = FakeEngine("D0")
    async with installation([], [d]) as router, client(router) as asked:
        answer = await asked.completions.create(model="m", prompt="Once")
        stream = await asked.completions.create(model="m", prompt="Once", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        models = [model.id async for model in asked.models.list()]
    assert (answer.choices[0].text, text, models) == ("one two three four", "one two three four", ["D0"])


@in_loop
async def test_errors_are_the_clients_own_kinds():
    d = FakeEngine("D0")
    async with installation([], [d]) as router, client(router) as asked:

        async def chat(**more: Any) -> Any:
            return await asked.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], **more)

        with pytest.raises(openai.BadRequestError, match="max_tokens") as refused:
            await chat(max_tokens=0)
        assert (refused.value.code, refused.value.param) == ("bad_request", "max_tokens")
        with pytest.raises(openai.NotFoundError):
            await asked.embeddings.create(model="m", input="hi")
        d.fault = answers(400, {"error": {"message": "context too long", "code": "context_length_exceeded"}})
        with pytest.raises(openai.BadRequestError, match="context too long"):
            await chat(stream=True)
        d.fault = answers(503)
        with pytest.raises(openai.InternalServerError, match="D0 says 503"):
            await chat()
        router.dispatcher.draining = True
        with pytest.raises(openai.InternalServerError) as draining:
            await chat()
        assert draining.value.code == "draining"


@in_loop
async def test_a_stream_that_breaks_is_an_error_to_the_client():
    d = FakeEngine("D0", fault=streams(ROLE, content("one "), then="breaks"))
    async with installation([], [d]) as router, client(router) as asked:
        stream = await asked.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        text = ""
        with pytest.raises(openai.APIError, match="broke off"):  # noqa: PT012 - the first chunk comes, then it breaks
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
    assert text == "one "


@in_loop
async def test_a_client_that_closes_its_stream_is_gone():
    d = FakeEngine("D0", fault=streams(ROLE, content("one "), then="hangs"))
    async with installation([], [d]) as router, client(router) as asked:
        stream = await asked.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        async for _ in stream:
            break
        await stream.close()
        await router.settle()
    assert d.aborted == 1
    assert [record.outcome.value for record in router.records] == ["client_gone"]


USER: list[Any] = [{"role": "user", "content": "hi"}]


def says(answer: dict[str, Any]) -> Any:
    """An engine that answers with that, unstreamed."""
    return answers(200, {"id": "x", "object": "chat.completion", "created": 1, "model": "m", **answer})


@pytest.mark.parametrize("x", [0.0, 1.0])
@in_loop
async def test_everything_that_a_chat_request_can_hold_reaches_d_as_the_client_wrote_it(x: float):
    p, d = FakeEngine("P0"), FakeEngine("D0")
    picture = {"type": "image_url", "image_url": {"url": "https://pictures.example/a.png", "detail": "low"}}
    parts: list[Any] = [{"type": "text", "text": "what is this?"}, picture]
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}}
    sent: dict[str, Any] = {
        "messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}],
        "logprobs": True,
        "top_logprobs": 2,
        "stop": ["x", "y"],
        "response_format": schema,
        "max_completion_tokens": 20,
        "max_tokens": 30,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "logit_bias": {"5": 1},
        "reasoning_effort": "low",
        "parallel_tool_calls": False,
        "tools": TOOLS,
        "tool_choice": "auto",
        "user": "u",
        "metadata": {"a": "b"},
    }
    more = {"min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}, "cache_salt": "s", "priority": 1}
    async with installation([p], [d], pin_x=x) as router, client(router) as asked:
        await asked.chat.completions.create(model="lora-a", **sent, extra_body=more)
        await router.settle()
    expected = json.loads(json.dumps({"model": "lora-a", **sent, **more}))
    body = {name: value for name, value in d.bodies[0].items() if name != "kv_transfer_params"}
    assert body == expected
    dropped = {"logprobs", "top_logprobs", "stop", "response_format"}
    ours = {"stream": False, "max_tokens": 1, "max_completion_tokens": 1, "ignore_eos": True}
    assert {name: value for name, value in p.bodies[0].items() if name != "kv_transfer_params"} == {
        **{name: value for name, value in expected.items() if name not in dropped},
        **ours,
    }


@in_loop
async def test_several_answers_logprobs_and_reasoning_come_as_the_engine_says_them():
    token = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    choices = [
        {
            "index": at,
            "finish_reason": "stop",
            "logprobs": {"content": [token], "refusal": None},
            "message": {"role": "assistant", "content": f"answer {at}", "reasoning_content": "because"},
        }
        for at in range(2)
    ]
    d = FakeEngine("D0", fault=says({"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}))
    async with installation([], [d]) as router, client(router) as asked:
        answer = await asked.chat.completions.create(model="m", messages=USER, n=2, logprobs=True)
        await router.settle()
    assert [choice.message.content for choice in answer.choices] == ["answer 0", "answer 1"]
    assert answer.choices[0].message.model_extra == {"reasoning_content": "because"}
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None and logprobs.content is not None and logprobs.content[0].logprob == -0.1
    assert router.records[0].decision.reason.value == "local_only"


@in_loop
async def test_reasoning_in_a_stream_counts_as_the_answers_beginning():
    def delta(**said: str) -> bytes:
        choice = {"index": 0, "delta": said, "finish_reason": None}
        return (
            b"data: "
            + json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": [choice]}).encode()
            + b"\n\n"
        )

    d = FakeEngine("D0", fault=streams(ROLE, delta(reasoning="think"), 0.2, delta(content="so"), b"data: [DONE]\n\n"))
    async with installation([], [d]) as router, client(router) as asked:
        stream = await asked.chat.completions.create(model="m", messages=USER, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        await router.settle()
    assert [(delta.model_extra or {}).get("reasoning") for delta in deltas if not delta.role] == ["think", None]
    record = router.records[0]
    assert record.ttft_s is not None and record.ttft_s < record.e2e_s - 0.1


@in_loop
async def test_keys_models_embeddings_and_errors_are_what_the_client_knows():
    d = FakeEngine("D0")
    async with installation([], [d], keys=[("web", "right")]) as router, client(router) as asked:
        with pytest.raises(openai.AuthenticationError) as refused:
            await asked.chat.completions.create(model="m", messages=USER)
        assert refused.value.code == "unauthorized"
        with pytest.raises(openai.AuthenticationError):
            await asked.models.list()
        allowed = asked.with_options(api_key="right")
        assert [model.id async for model in allowed.models.list()] == ["D0"]
        with pytest.raises(openai.PermissionDeniedError):
            await allowed.post("/load_lora_adapter", cast_to=object, body={})
        with pytest.raises(openai.BadRequestError, match="kv_transfer_params"):
            await allowed.chat.completions.create(
                model="m", messages=USER, extra_body={"kv_transfer_params": {"remote_host": "10.0.0.1"}}
            )
        with pytest.raises(openai.APIStatusError) as large:
            await allowed.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * (33 << 20)}])
        assert large.value.status_code == 413


@in_loop
async def test_completions_with_everything():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d]) as router, client(router) as asked:
        await asked.completions.create(
            model="m", prompt="Once", logprobs=3, stop="x", n=1, max_tokens=9, extra_body={"min_tokens": 2}
        )
        both = await asked.completions.create(model="m", prompt=["Once", "twice"], echo=True, n=2)
    assert d.bodies[0].pop("kv_transfer_params") and p.bodies[0]["max_tokens"] == 1
    assert d.bodies[0] == {
        "model": "m",
        "prompt": "Once",
        "logprobs": 3,
        "stop": "x",
        "n": 1,
        "max_tokens": 9,
        "min_tokens": 2,
    }
    assert not {"logprobs", "stop", "n", "min_tokens"} & set(p.bodies[0])
    assert both.choices and d.bodies[1] == {"model": "m", "prompt": ["Once", "twice"], "echo": True, "n": 2}
