"""P fails, in all the ways it can: the prompt is computed elsewhere, and D never sees a handle that would hurt it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from router.clock import Clock
from router.dispatch import DispatchOptions
from router.turn import Reason, Route
from slos.objective import Outcome

from .client import ask, chat, in_loop
from .fake_engine import FakeEngine
from .faults import Fault, answers, breaks, hands_over, hands_over_object, hangs, is_prefill, only
from .installation import installation

LOCAL, TRANSFER = Route.APPEND_LOCAL.value, Route.PREFILL_TRANSFER.value


def limits(case: str) -> DispatchOptions:
    """A short one where silence is the fault; else a long one, so that a busy machine is no fault."""
    return DispatchOptions(prefill_timeout_s=0.15 if case == "silence" else 10.0)


LONG = "a prompt of more than one block: " + "word " * 60
BLOCKS = -(-(len(json.dumps(chat(LONG)["messages"])) // 4) // 16)
FAILURES: dict[str, Fault] = {
    "500": answers(500),
    "503": answers(503),
    "429": answers(429),
    "reset": breaks(),
    "silence": hangs(),
    "no JSON": answers(200, b"<html>"),
    "another JSON": answers(200, b"[]"),
    "nothing": answers(200, b""),
    "nested too deep": answers(200, b'{"kv_transfer_params":' + b"[" * 3000 + b"]" * 3000 + b"}"),
    "no object": hands_over_object(None),
    "a list": hands_over_object([1]),
    "no offer": hands_over(do_remote_prefill=False),
    "an offer in words": hands_over(do_remote_prefill="true"),
    "null blocks": hands_over(remote_block_ids=None),
    "no blocks": hands_over(remote_block_ids=...),
    "zero groups": hands_over(remote_block_ids=[]),
    "an empty group": hands_over(remote_block_ids=[[]]),
    "flat blocks": hands_over(remote_block_ids=[1, 2, 3]),
    "blocks in words": hands_over(remote_block_ids=["abc"]),
    "null in a group": hands_over(remote_block_ids=[[None]]),
    "negative blocks": hands_over(remote_block_ids=[[-1] * 400]),
    "one block too few": hands_over(remote_block_ids=[list(range(1, BLOCKS))]),
    "null engine": hands_over(remote_engine_id=None),
    "no request id": hands_over(remote_request_id=...),
    "null request id": hands_over(remote_request_id=None),
    "empty request id": hands_over(remote_request_id=""),
    "no host": hands_over(remote_host=...),
    "null port": hands_over(remote_port=None),
}


@pytest.mark.parametrize("failure", FAILURES)
@in_loop
async def test_the_other_p_does_it(failure: str):
    bad, good, d = FakeEngine("P0", fault=FAILURES[failure]), FakeEngine("P1"), FakeEngine("D0")
    async with installation([bad, good], [d], options=limits(failure)) as router:
        answer = await ask(router.url, chat(LONG))
        await router.settle()
        failed = sum(
            router.metric("trimtab_leg_failures_total", node="P0", kind=kind)
            for kind in ("error", "timeout", "handover")
        )
    assert (answer.status, answer.text, answer.done) == (200, "one two three four", True)
    assert answer.route == (TRANSFER, Reason.PREFILL_FAILED.value)
    assert (bad.calls, good.calls, d.calls) == (1, 1, 1)
    assert d.bodies[0]["kv_transfer_params"]["remote_engine_id"] == "P1"
    assert failed == 1
    record = router.records[0]
    assert (record.outcome, record.attempts, record.placement.prefill) == (Outcome.COMPLETED, 2, "P1")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("failure", ["500", "reset", "silence", "null blocks"])
@in_loop
async def test_d_does_it_where_no_p_is_left(failure: str, stream: bool):
    p, d = FakeEngine("P0", fault=FAILURES[failure]), FakeEngine("D0")
    async with installation([p], [d], options=limits(failure)) as router:
        answer = await ask(router.url, chat(LONG, stream=stream))
        await router.settle()
    assert (answer.status, answer.text) == (200, "one two three four")
    assert answer.route == (LOCAL, Reason.PREFILL_FAILED.value)
    assert "kv_transfer_params" not in d.bodies[0]
    assert (p.calls, d.calls) == (1, 1)


@in_loop
async def test_a_p_that_refuses_is_out_at_once_and_comes_back_when_it_answers():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d]) as router:
        await p.stop()
        first = await ask(router.url, chat("hello"))
        second = await ask(router.url, chat("hello too"))
        assert router.core.topology == "1D"
        await p.start()
        await router.watch.probe_all()
        third = await ask(router.url, chat("hello again"))
        assert router.metric("trimtab_leg_failures_total", node="P0", kind="refused") == 1
    assert first.route == (LOCAL, Reason.PREFILL_FAILED.value)
    assert second.route == (LOCAL, Reason.P_UNAVAILABLE.value)
    assert third.route == (TRANSFER, Reason.FIRST_TURN.value)


@pytest.mark.parametrize("status", [400, 404, 422])
@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_what_p_says_of_the_clients_request_goes_to_the_client(status: int, stream: bool):
    text = b'{"object":"error", "message": "context too long",\n "code":1.0}'
    p, d = FakeEngine("P0", fault=answers(status, text)), FakeEngine("D0", fault=hangs())
    async with installation([p], [d]) as router:
        answer = await ask(router.url, chat("hello", stream=stream))
        await router.settle()
    assert (answer.status, answer.body) == (status, text)
    assert answer.headers["content-type"].startswith("application/json")
    assert (p.calls, d.calls) == (1, 0)
    assert router.records[0].outcome is Outcome.CLIENT_ERROR


@in_loop
async def test_what_p_says_of_a_request_that_is_not_the_clients_is_left_to_d_to_say():
    """P's copy has no forced tool call: a vLLM without a tool parser refuses it, and would not refuse the original."""
    p, d = FakeEngine("P0", fault=answers(400)), FakeEngine("D0")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    async with installation([p], [d]) as router:
        for choice, status in (("required", 200), ("auto", 400), (None, 400)):
            answer = await ask(router.url, chat("hello", tools=tools, tool_choice=choice))
            assert answer.status == status
    assert (p.calls, d.calls) == (3, 1)


@in_loop
async def test_a_failed_prefill_binds_no_conversation_to_a_node():
    p, d = FakeEngine("P0", fault=answers(500)), FakeEngine("D0", fault=answers(500))
    async with installation([p], [d]) as router:
        answer = await ask(router.url, chat("hello"), headers={"X-Session-ID": "s"})
        conversations = list(router.core.conversations)
        await router.settle()
    assert (answer.status, answer.error["message"]) == (500, "D0 says 500")
    assert [(c.turns, c.decode_node, c.context_tokens) for c in conversations] == [(0, None, 0)]


class Jumping(Clock):
    """A clock that can be told to jump, as one does whose process stood still."""

    def __init__(self) -> None:
        super().__init__()
        self.later_s = 0.0

    def jump(self, seconds: float) -> None:
        self.later_s += seconds

    def now_s(self) -> float:
        return super().now_s() + self.later_s


@in_loop
async def test_a_handle_whose_lease_has_run_out_is_not_used_and_the_prefill_is_done_again():
    clock = Jumping()
    armed = False

    def stall(engine: FakeEngine, request: object, body: dict) -> None:
        nonlocal armed
        if not armed:
            armed = True
            clock.jump(29.0)  # the router stands still while P answers, and reads late: lease 30 s, margin 2 s

    p, d = FakeEngine("P0", fault=stall), FakeEngine("D0")
    async with installation([p], [d], clock=clock) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
    assert answer.status == 200
    assert answer.route == (TRANSFER, Reason.PREFILL_FAILED.value)
    assert (p.calls, d.calls) == (2, 1)
    second = p.headers[1]["X-Request-Id"]
    assert d.bodies[0]["kv_transfer_params"]["remote_request_id"] == f"chatcmpl-{second}-2"


@in_loop
async def test_a_lease_that_always_runs_out_never_reaches_d():
    clock = Jumping()
    p, d = FakeEngine("P0", fault=lambda *_: clock.jump(29.0)), FakeEngine("D0")
    async with installation([p], [d], clock=clock) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
    assert not any("kv_transfer_params" in body for body in d.bodies)
    assert 1 <= p.calls <= 4
    assert answer.status in (200, 502)  # 200: D did it alone


@in_loop
async def test_p_refuses_what_does_not_fit_one_token_and_never_sees_it():
    """As vLLM does: a forced tool call and min_tokens over max_tokens are errors, whichever max field is used."""

    async def strict(engine: FakeEngine, request: Any, body: dict) -> object:
        if is_prefill(body):
            if body.get("tool_choice") not in (None, "auto", "none"):
                return await answers(500)(engine, request, body)
            if body.get("min_tokens", 0) > 1 or body.get("stream_options") or body.get("n", 1) > 1:
                return await answers(400)(engine, request, body)
            if body["max_tokens"] != 1 or body["max_completion_tokens"] != 1:
                return await answers(400)(engine, request, body)
        return None

    p, d = FakeEngine("P0", fault=strict), FakeEngine("D0")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    choice = {"type": "function", "function": {"name": "f"}}
    requests = [
        chat("a", tools=tools, tool_choice=choice),
        chat("b", tools=tools, tool_choice="required", max_completion_tokens=50),
        chat("c", min_tokens=5, max_tokens=20),
        chat("d", max_tokens=5, max_completion_tokens=50, stream_options={"include_usage": True}),
        chat("e", response_format={"type": "json_object"}, logprobs=True, top_logprobs=3, stream=False),
    ]
    async with installation([p], [d]) as router:
        for body in requests:
            answer = await ask(router.url, body)
            assert (answer.status, answer.route) == (200, (TRANSFER, Reason.FIRST_TURN.value))
    for body, seen in zip(requests, d.bodies, strict=True):
        seen.pop("kv_transfer_params")
        if body["stream"]:
            assert seen.pop("stream_options") == {"include_usage": True}
            body.pop("stream_options", None)
        assert seen == body


@in_loop
async def test_only_the_first_attempt_of_many_at_once_fails_and_one_node_is_bound():
    """Row 9: concurrent first turns of one conversation, and P fails the first of them."""
    bad, good = FakeEngine("P0", fault=only({1}, answers(500))), FakeEngine("P1")
    d0, d1 = FakeEngine("D0"), FakeEngine("D1")
    async with installation([bad, good], [d0, d1]) as router:
        answers_ = await asyncio.gather(
            *(ask(router.url, chat(f"hello {at}"), headers={"X-Session-ID": "one"}) for at in range(20))
        )
        await router.settle()
        (conversation,) = router.core.conversations
        later = await ask(router.url, chat("hello", "x", "more"), headers={"X-Session-ID": "one"})
        assert router.records[-1].placement.decode == conversation.decode_node
    assert {answer.status for answer in answers_} == {200}
    assert sum(answer.route[1] == Reason.PREFILL_FAILED for answer in answers_) == 1
    assert later.status == 200
