"""Two legs at once, when one of them fails, hangs or is late: as with Mooncake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from router.dispatch import DispatchOptions
from router.upstream import Timeouts
from slos.objective import Outcome

from .client import ask, chat, in_loop, until
from .fake_engine import Body, FakeEngine
from .faults import DONE, ROLE, STOP, Fault, answers, breaks, content, hangs, streams
from .installation import Installation, installation
from .test_client_leaves import calling

TEXT = "one two three four"
SHORT: dict[str, Any] = {"timeouts": Timeouts(1.0, 0.3, 0.3, 0.6), "options": DispatchOptions(prefill_timeout_s=2.0)}


@asynccontextmanager
async def mooncake(p: Sequence[FakeEngine], d: Sequence[FakeEngine], **options: Any) -> AsyncIterator[Installation]:
    """As `installation`; each P is its own bootstrap server."""
    for engine in (*p, *d):
        await engine.start()
    try:
        addresses = {engine.url: engine.url for engine in p}
        async with installation(
            p, d, connector="mooncake", addresses=addresses, start_engines=False, **options
        ) as router:
            yield router
    finally:
        for engine in (*p, *d):
            await engine.stop()


def waits_for(p: FakeEngine, calls: int = 1) -> Fault:
    """A D that needs what P has not yet computed: it opens its stream and is silent until then."""

    async def fault(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse | None:
        if not (body.get("kv_transfer_params") or {}).get("do_remote_prefill"):
            return None
        response = await engine.begin(request)
        while p.calls < calls or p.running:
            await asyncio.sleep(0.005)
        for piece in (ROLE, content("one "), content("two"), STOP):
            await engine.frame(response, piece)
        await engine.write(response, DONE)
        return response

    return fault


def ends_by(reason: str) -> Fault:
    async def fault(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse:
        choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": reason}]
        return web.json_response({"choices": choices, "usage": engine.usage(body)})

    return fault


def after(pause_s: float) -> Fault:
    async def fault(engine: FakeEngine, request: web.Request, body: Body) -> None:
        await asyncio.sleep(pause_s)

    return fault


def names(engine: FakeEngine) -> list[str]:
    """Transfer ids that it got."""
    return [body["kv_transfer_params"]["transfer_id"] for body in engine.bodies if "kv_transfer_params" in body]


@in_loop
async def test_both_legs_are_out_at_once_under_one_transfer_id():
    p, d = FakeEngine("P0", fault=hangs(), engine_id="e7"), FakeEngine("D0", fault=hangs())
    async with mooncake([p], [d]) as router, calling(router, chat("hello")):
        await until(lambda: p.running and d.running)
        (name,) = {engine.headers[0]["X-Request-Id"] for engine in (p, d)}
        assert p.bodies[0]["kv_transfer_params"] == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": f"xfer-{name}-1",
        }
        assert d.bodies[0]["kv_transfer_params"] == {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": p.url,
            "remote_engine_id": "e7",
            "transfer_id": f"xfer-{name}-1",
        }
        assert (p.bodies[0]["stream"], p.bodies[0]["max_tokens"], d.bodies[0]["stream"]) == (False, 1, True)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("fault", [answers(500), answers(503), breaks(), ends_by("stop")])
@in_loop
async def test_when_p_fails_ds_leg_is_ended_and_another_p_is_asked(fault: Fault, stream: bool):
    ps, d = [FakeEngine("P0"), FakeEngine("P1")], FakeEngine("D0")

    async def fails_after_d_has_begun(
        engine: FakeEngine, request: web.Request, body: Body
    ) -> web.StreamResponse | None:
        while not d.calls:  # else D's first leg might be ended before D has heard of it
            await asyncio.sleep(0.001)
        return await fault(engine, request, body)

    async def first_hangs(engine: FakeEngine, request: web.Request, body: Body) -> None:
        if d.calls == 1:
            await asyncio.Event().wait()
        while not ps[1].calls:  # a D has nothing to say before its P has begun
            await asyncio.sleep(0.001)

    ps[0].fault, d.fault = fails_after_d_has_begun, first_hangs
    async with mooncake(ps, [d]) as router:
        answer = await ask(router.url, chat("hello", stream=stream))
        await router.settle()
        await until(lambda: not d.running)
    assert (answer.status, answer.text) == (200, TEXT)
    assert (ps[0].calls, ps[1].calls, d.calls, d.aborted) == (1, 1, 2, 1)
    assert names(d) == names(ps[0]) + names(ps[1]) and len(set(names(d))) == 2, "a name is never used twice"
    (record,) = router.records
    assert (record.outcome, record.attempts, record.placement.prefill) == (Outcome.COMPLETED, 2, "P1")


@in_loop
async def test_without_another_p_the_turn_is_a_plain_request_to_d():
    p, d = FakeEngine("P0", fault=answers(500)), FakeEngine("D0")
    d.fault = waits_for(p, 2)
    async with mooncake([p], [d]) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
    assert answer.text == TEXT and answer.route == ("append_local", "prefill_failed")
    assert "kv_transfer_params" not in d.bodies[-1]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@in_loop
async def test_what_p_says_of_the_request_itself_goes_to_the_client_and_d_is_ended(stream: bool):
    p, d = FakeEngine("P0"), FakeEngine("D0", fault=hangs())

    async def refuses_after_d_has_begun(
        engine: FakeEngine, request: web.Request, body: Body
    ) -> web.StreamResponse | None:
        await until(lambda: bool(d.running))
        return await answers(422)(engine, request, body)

    p.fault = refuses_after_d_has_begun
    async with mooncake([p], [d]) as router:
        answer = await ask(router.url, chat("hello", stream=stream))
        await router.settle()
        await until(lambda: not d.running)
    assert answer.status == 422 and "P0 says 422" in answer.error["message"]
    assert (p.calls, d.calls) == (1, 1) and router.records[0].outcome is Outcome.CLIENT_ERROR


@in_loop
async def test_what_d_says_of_the_request_itself_goes_to_the_client_and_p_is_ended():
    p = FakeEngine("P0", fault=hangs())

    async def refuses(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse | None:
        await until(lambda: bool(p.running))
        return await answers(400)(engine, request, body)

    d = FakeEngine("D0", fault=refuses)
    async with mooncake([p], [d]) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
        await until(lambda: not p.running)
    assert answer.status == 400 and "D0 says 400" in answer.error["message"]
    assert (p.calls, p.aborted, d.calls) == (1, 1, 1)


@pytest.mark.parametrize(("when", "asked"), [("before P", "P1"), ("after P", "P0")])
@in_loop
async def test_a_d_that_fails_before_p_has_answered_costs_both_and_after_it_only_d(when: str, asked: str):
    ps = [FakeEngine("P0"), FakeEngine("P1")]
    ds = [FakeEngine("D0"), FakeEngine("D1")]

    async def late(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse | None:
        if when == "after P":
            await until(lambda: ps[0].calls and not ps[0].running)
            await asyncio.sleep(0.05)
        return web.Response(status=500)

    ps[0].fault = hangs() if when == "before P" else None
    ds[0].fault = late
    async with mooncake(ps, ds) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
        await until(lambda: not any(engine.running for engine in ps))
    (record,) = router.records
    assert answer.text == TEXT
    assert (record.attempts, record.placement.decode, record.placement.prefill) == (2, "D1", asked)


@in_loop
async def test_ds_silence_while_p_works_is_ps_time():
    p, d = FakeEngine("P0", fault=after(0.6)), FakeEngine("D0")
    d.fault = waits_for(p)
    async with mooncake([p], [d], **SHORT) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
    assert answer.text == "one two" and answer.done
    assert router.records[0].attempts == 1


@in_loop
async def test_a_p_that_does_not_answer_in_time_is_the_one_to_blame():
    ps, d = [FakeEngine("P0", fault=hangs()), FakeEngine("P1")], FakeEngine("D0")
    d.fault = waits_for(ps[1])
    async with mooncake(ps, [d], **SHORT) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
        await until(lambda: not ps[0].running and not d.running)
    (record,) = router.records
    assert answer.text == "one two"
    assert (record.attempts, record.placement.prefill, record.placement.decode) == (2, "P1", "D0")
    assert router.metric("trimtab_leg_failures_total", node="P0", kind="timeout") == 1


@pytest.mark.parametrize("late", [after(0.2), hangs(), answers(500), answers(400), ends_by("stop")])
@in_loop
async def test_once_ds_content_is_out_ps_reply_changes_nothing(late: Fault):
    """A D that had the whole prompt does not wait for P."""
    p, d = FakeEngine("P0"), FakeEngine("D0", gap_s=0.05)

    async def after_ds_first_word(engine: FakeEngine, request: web.Request, body: Body) -> object:
        await until(lambda: len(d.sent) > 2)
        found: Any = await late(engine, request, body)
        return found

    p.fault = after_ds_first_word
    async with mooncake([p], [d]) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
        await until(lambda: not p.running)
    assert answer.text == TEXT and answer.done
    assert (p.calls, d.calls, router.records[0].attempts) == (1, 1, 1)


@in_loop
async def test_a_d_that_breaks_off_in_the_middle_ends_ps_leg_too():
    p, d = FakeEngine("P0", fault=hangs()), FakeEngine("D0", fault=streams(ROLE, content("one "), then="breaks"))
    async with mooncake([p], [d]) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
        await until(lambda: not p.running)
    assert not answer.done and answer.text == "one "
    assert (p.calls, p.aborted, d.calls) == (1, 1, 1)
    assert router.records[0].outcome is Outcome.FAILED


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@in_loop
async def test_a_client_that_leaves_ends_both_legs(stream: bool):
    p, d = FakeEngine("P0", fault=hangs()), FakeEngine("D0", fault=hangs())
    async with mooncake([p], [d]) as router:
        async with calling(router, chat("hello", stream=stream)) as caller:
            await until(lambda: p.running and d.running)
            caller.leave()
            await until(lambda: p.aborted and d.aborted)
        await router.settle()
    assert router.records[0].outcome is Outcome.CLIENT_GONE


@in_loop
async def test_a_p_whose_bootstrap_server_does_not_answer_is_not_up():
    p, d = FakeEngine("P0", engine_id=""), FakeEngine("D0")
    async with mooncake([p], [d]) as router:
        assert router.core.topology == "1D"
        answer = await ask(router.url, chat("hello"))
        assert answer.route == ("append_local", "p_unavailable")
        p.engine_id = "e1"
        await router.watch.probe_all()
        assert router.core.topology == "1P_1D"
        assert (await ask(router.url, chat("hello again"))).route[0] == "prefill_transfer"
        p.engine_id = ""
        for _ in range(2):
            await router.watch.probe_all()
        assert router.core.topology == "1D"


@in_loop
async def test_a_p_with_another_engine_id_is_another_process_with_an_empty_cache():
    p, d = FakeEngine("P0", engine_id="e1"), FakeEngine("D0")
    d.fault = waits_for(p)
    async with mooncake([p], [d]) as router:
        await ask(router.url, chat("hello"))
        (conversation,) = router.core.conversations
        node = router.records[0].placement.prefill
        assert node is not None
        await until(lambda: router.core.residency.held(node, conversation.key) > 0)  # P's reply may come after D's
        p.engine_id = "e2"
        await router.watch.probe_all()
        assert router.core.topology == "1P_1D"
        assert router.core.residency.held(node, conversation.key) == 0
        await ask(router.url, chat("hello again"))
        assert [body["kv_transfer_params"]["remote_engine_id"] for body in d.bodies] == ["e1", "e2"]
