"""Every refusal, with its status and an error as OpenAI clients know it; and P's copy of what breaks a prefill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from router.dispatch import DispatchOptions
from router.errors import STATUS, Code
from router.upstream import Timeouts

from .client import CHAT, COMPLETIONS, Answer, ask, chat, get, in_loop
from .fake_engine import Body, FakeEngine
from .faults import Fault, answers, breaks, hangs, is_prefill, streams
from .installation import Installation, installation

Refusal = Callable[[Installation, FakeEngine], Awaitable[Answer]]
JSON = {"Content-Type": "application/json"}
TYPES = {429: "rate_limit_error"}
GOOD = {"Authorization": "Bearer right"}


def sends(body: dict[str, Any] | bytes, path: str = CHAT, **headers: str) -> Refusal:
    async def send(router: Installation, d: FakeEngine) -> Answer:
        return await ask(router.url, body, path=path, headers={**GOOD, **JSON, **headers})

    return send


def meets(fault: Fault, **more: Any) -> Refusal:
    async def send(router: Installation, d: FakeEngine) -> Answer:
        d.fault = fault
        return await ask(router.url, chat("hello", **more), headers=GOOD)

    return send


async def draining(router: Installation, d: FakeEngine) -> Answer:
    router.dispatcher.draining = True
    return await ask(router.url, chat("hello"), headers=GOOD)


async def crowded(router: Installation, d: FakeEngine) -> Answer:
    router.dispatcher.admission.max_requests = 0
    return await ask(router.url, chat("hello"), headers=GOOD)


async def no_end(router: Installation, d: FakeEngine) -> Answer:
    async def parts() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    async with (
        aiohttp.ClientSession() as session,
        session.post(router.url + CHAT, data=parts(), headers=GOOD) as response,
    ):
        return Answer(response.status, response.headers, await response.read())


async def nobody(router: Installation, d: FakeEngine) -> Answer:
    for node in router.core.nodes.values():
        node.healthy = False
    return await ask(router.url, chat("hello"), headers=GOOD)


async def nobody_listed(router: Installation, d: FakeEngine) -> Answer:
    for node in router.core.nodes.values():
        node.healthy = False
    return await ask(router.url, {}, path="/v1/embeddings", headers={**GOOD, **JSON})


async def mistake(router: Installation, d: FakeEngine) -> Answer:
    def fails(*args: object) -> None:
        raise RuntimeError("a secret of the router's")

    router.core.next_leg = fails  # type: ignore[method-assign, assignment]
    return await ask(router.url, chat("hello"), headers=GOOD)


async def mistake_before_the_first_leg(router: Installation, d: FakeEngine) -> Answer:
    def fails(*args: object) -> None:
        raise RuntimeError("a secret of the router's")

    router.dispatcher._recogniser = SimpleNamespace(secret=b"k", recognise=fails)  # type: ignore[assignment]
    return await ask(router.url, chat("hello"), headers=GOOD)


async def wrong_method(router: Installation, d: FakeEngine) -> Answer:
    return await get(router.url + CHAT)


REFUSALS: list[tuple[str, Refusal, int, Code]] = [
    ("no JSON", sends(b"{"), 400, Code.BAD_REQUEST),
    ("a list", sends(b"[]"), 400, Code.BAD_REQUEST),
    ("no model", sends({"messages": [{"role": "user"}]}), 400, Code.BAD_REQUEST),
    ("no messages", sends({"model": "m"}), 400, Code.BAD_REQUEST),
    ("no prompt", sends({"model": "m"}, COMPLETIONS), 400, Code.BAD_REQUEST),
    ("no tokens", sends(chat("x", max_tokens=0)), 400, Code.BAD_REQUEST),
    ("a wrong type", sends(chat("x", n="2")), 400, Code.BAD_REQUEST),
    ("a hand-over", sends(chat("x", kv_transfer_params={"remote_host": "h"})), 400, Code.BAD_REQUEST),
    ("a passed-on hand-over", sends({"kv_transfer_params": {}}, "/v1/responses"), 400, Code.BAD_REQUEST),
    ("a wrong key", sends(chat("x"), Authorization="Bearer wrong"), 401, Code.UNAUTHORIZED),
    ("no key at all", sends(chat("x"), Authorization=""), 401, Code.UNAUTHORIZED),
    ("a route for operators", sends({}, "/v1/load_lora_adapter"), 403, Code.FORBIDDEN),
    ("no such route", sends({}, "/v2/nothing"), 404, Code.NOT_FOUND),
    ("a wrong method", wrong_method, 405, Code.METHOD_NOT_ALLOWED),
    ("a body without an end", no_end, 408, Code.TOO_SLOW),
    ("too much", sends(b"x" * 3000), 413, Code.TOO_LARGE),
    ("a form", sends(b"a=b", "/v1/embeddings", **{"Content-Type": "text/plain"}), 415, Code.UNSUPPORTED_TYPE),
    ("a long head", sends(chat("x"), **{"X-Long": "a" * 70_000}), 431, Code.HEADERS_TOO_LARGE),
    ("too many at once", crowded, 429, Code.BUSY),
    ("our mistake", mistake, 500, Code.INTERNAL),
    ("our mistake, early", mistake_before_the_first_leg, 500, Code.INTERNAL),
    ("an engine that breaks off", meets(breaks()), 502, Code.UPSTREAM_ERROR),
    ("an engine without words", meets(streams(b"data: [DONE]\n\n")), 502, Code.UPSTREAM_ERROR),
    ("an engine without an answer", meets(answers(200, b""), stream=False), 502, Code.UPSTREAM_ERROR),
    ("nobody there", nobody, 503, Code.NO_NODE),
    ("nobody to pass it on to", nobody_listed, 503, Code.NO_NODE),
    ("going down", draining, 503, Code.DRAINING),
    ("a silent engine", meets(hangs()), 504, Code.UPSTREAM_TIMEOUT),
]


@pytest.mark.parametrize(("refusal", "status", "code"), [entry[1:] for entry in REFUSALS], ids=[e[0] for e in REFUSALS])
@in_loop
async def test_every_refusal_has_its_status_and_the_shape_that_clients_know(
    refusal: Refusal, status: int, code: Code, caplog: pytest.LogCaptureFixture
):
    d = FakeEngine("D0")
    options = DispatchOptions(prefill_timeout_s=0.3, max_body_bytes=2000, body_timeout_s=0.3)
    timeouts = Timeouts(1.0, 0.3, 0.3)
    async with installation([], [d], keys=[("web", "right")], options=options, timeouts=timeouts) as router:
        answer = await refusal(router, d)
        await router.settle()
    assert (answer.status, answer.error["code"]) == (status, code.value)
    assert sorted(answer.error) == ["code", "message", "param", "type"]
    assert answer.error["type"] == TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    assert isinstance(answer.error["message"], str) and "secret" not in answer.error["message"]
    assert answer.headers["content-type"] == "application/json"
    assert any(record.exc_info for record in caplog.records) == (code is Code.INTERNAL)


def test_every_code_is_met_above_or_in_a_stream():
    elsewhere = {
        Code.UPSTREAM_BROKE_OFF,  # test_decode_fails.py
        Code.MODEL_NOT_FOUND,  # test_models.py
        Code.P_UNAVAILABLE,  # tests/robustness/test_prefill_faults.py
    }
    assert {code for *_, code in REFUSALS} | elsewhere == set(Code) == set(STATUS)
    assert all(STATUS[code] == status for _, _, status, code in REFUSALS)


# -- what breaks a prefill ---------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def strict(seen: list[str]) -> Fault:
    """A P that refuses what vLLM refuses in a request for one token."""

    async def fault(engine: FakeEngine, request: Any, body: Body) -> Any:
        assert is_prefill(body)
        max_tokens = body.get("max_completion_tokens", body.get("max_tokens"))
        wrong = ""
        if body.get("min_tokens", 0) > max_tokens:
            wrong = "min_tokens"
        elif body.get("tool_choice") not in (None, "none", "auto"):
            wrong = "tool_choice"
        elif body.get("n", 1) != 1:
            wrong = "n"
        elif body.get("stream") or body.get("stream_options"):
            wrong = "stream"
        elif body.get("top_logprobs") is not None and not body.get("logprobs"):
            wrong = "top_logprobs"
        elif body.get("logprob_token_ids") and not body.get("logprobs"):
            wrong = "logprob_token_ids"
        elif body.get("response_format") or body.get("structured_outputs") or body.get("guided_json"):
            wrong = "grammar"
        elif max_tokens != 1 or body["max_tokens"] != 1:
            wrong = "max"
        seen.append(wrong)
        if wrong:
            return await answers(400 if wrong != "tool_choice" else 500)(engine, request, body)
        return None

    return fault


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_tokens": 50},
        {"max_completion_tokens": 50},
        {"max_tokens": 50, "max_completion_tokens": 40},
        {"min_tokens": 20, "max_tokens": 50},
        {"min_tokens": 20, "max_completion_tokens": 50},
        {"tools": [TOOL], "tool_choice": "required", "max_tokens": 50},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"logprobs": True, "top_logprobs": 5, "logprob_token_ids": [1, 2]},
        {"response_format": {"type": "json_object"}, "min_tokens": 2},
        {"structured_outputs": {"regex": "a+"}},
        {"guided_json": {"type": "object"}},
        {"stop": ["x"], "stop_token_ids": [3], "ignore_eos": False},
        {"stream_options": {"include_usage": True}},
        {"n": 1, "best_of": 1},
        {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 9},
    ],
    ids=lambda more: ",".join(more) or "plain",
)
@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_what_breaks_a_prefill_is_kept_from_p_and_d_gets_it_as_it_came(more: dict[str, Any], stream: bool):
    """Row 27."""
    seen: list[str] = []
    p, d = FakeEngine("P0", fault=strict(seen)), FakeEngine("D0")
    if not stream:
        more = {name: value for name, value in more.items() if name != "stream_options"}
    text = json.dumps(chat("hello", stream=stream, **more), indent=1).encode()
    async with installation([p], [d], pin_x=0.0) as router:
        answer = await ask(router.url, text)
        await router.settle()
    assert (answer.status, answer.route, seen) == (200, ("prefill_transfer", "first_turn"), [""])
    sent = d.bodies[0]
    assert sent.pop("kv_transfer_params")["do_remote_prefill"] is True
    options = sent.pop("stream_options", None)
    assert options == ({"include_usage": True} if stream else None)
    theirs = json.loads(text)
    theirs.pop("stream_options", None)
    assert sent == theirs
    for name, value in theirs.items():  # and by the byte
        written = json.dumps(value, indent=1).replace("\n", "\n ").encode()
        assert written in d.raw_bodies[0], name


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("x", [0.0, 1.0])
@in_loop
async def test_the_client_sees_ds_usage_and_residency_learns_from_local_turns_only(stream: bool, x: float):
    """Row 29: on a transferred turn D repeats what P had cached, as vLLM 0.32 does."""

    class Cached(FakeEngine):
        def usage(self, body: Body) -> Body:
            cached = 700 if self.name == "P0" or not self.asked_local(body) else 640
            found: Body = {"prompt_tokens": 1000, "completion_tokens": 4, "total_tokens": 1004}
            return {**found, "prompt_tokens_details": {"cached_tokens": cached, "created_tokens": 3}}

        @staticmethod
        def asked_local(body: Body) -> bool:
            return "kv_transfer_params" not in body

    p, d = Cached("P0"), Cached("D0")
    more = {"stream_options": {"include_usage": True}} if stream else {}
    async with installation([p], [d], pin_x=x) as router:
        first = await ask(router.url, chat("hello", stream=stream, **more))
        later = await ask(router.url, chat("hello", first.text, "more", stream=stream, **more))
        await router.settle()
        checks = {(str(node), verdict.value) for node, _, verdict in router.core.residency.checks}
    usage = later.events[-1]["usage"] if stream else later.json["usage"]
    assert usage == d.usage(d.bodies[-1])
    assert usage["prompt_tokens_details"]["cached_tokens"] == (700 if x == 0 else 640)
    assert ("D0" in {node for node, _ in checks}) is (x == 1.0)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"n": 2}),
        (CHAT, {"prompt_logprobs": 1}),
        (CHAT, {"echo": True}),
        (CHAT, {"use_beam_search": True, "n": 2}),
        (COMPLETIONS, {"best_of": 2, "n": 2}),
        (COMPLETIONS, {"echo": True, "logprobs": 1}),
        (COMPLETIONS, {"prompt": ["a", "b"]}),
    ],
)
@in_loop
async def test_what_one_hand_over_cannot_give_stays_on_d_and_says_so(path: str, more: dict[str, Any]):
    """Row 28."""
    p, d = FakeEngine("P0"), FakeEngine("D0")
    body = chat("x", stream=False) if path == CHAT else {"model": "m", "prompt": "x"}
    async with installation([p], [d], pin_x=0.0) as router:
        answer = await ask(router.url, {**body, **more}, path=path)
    assert (answer.status, answer.route) == (200, ("append_local", "local_only"))
    assert (p.calls, d.bodies[0]) == (0, {**body, **more})


@in_loop
async def test_a_prefill_that_says_400_is_the_answer_and_d_is_not_kept_waiting():
    """Row 19."""
    p, d = FakeEngine("P0", fault=answers(400, {"error": {"message": "too long"}})), FakeEngine("D0", fault=hangs())
    async with installation([p], [d]) as router:
        begun = asyncio.get_running_loop().time()
        answer = await ask(router.url, chat("hello"))
        took_s = asyncio.get_running_loop().time() - begun
        await router.settle()
    assert (answer.status, answer.error["message"], d.running) == (400, "too long", 0)
    assert took_s < 3.0  # D would hang for five
