"""Row 15 and the other bounds: what a router keeps, takes at once, and says when it is full."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import tracemalloc

import pytest
from aiohttp import web

from router import door
from router.admission import Admission
from router.conversations import COST_BYTES, Conversations
from router.dispatch import DispatchOptions
from router.door import Door
from router.p_down import PrefillDown, PrefillDownPolicy
from router.retries import RetryBudget
from router.turn import ConversationKey, NodeId
from router.upstream import OwnLimit, Timeouts
from tests.router_http.client import CHAT, ask, chat, in_loop, until
from tests.router_http.fake_engine import Body, FakeEngine
from tests.router_http.faults import answers, hangs
from tests.router_http.installation import installation

from .ask import befalls, say, struck
from .conftest import Fleet


def test_row_15_a_hundred_thousand_conversations_level_off_and_evictions_are_counted():
    limit = 20_000
    table = Conversations(limit)
    levels = []
    tracemalloc.start()
    for at in range(100_000):
        known = table.open(ConversationKey("tenant", "model", f"new:{at:024x}"), at * 1e-3)
        known.turns, known.context_tokens, known.decode_node = 1, 1000 + at % 500, NodeId("D0")
        if (at + 1) % limit == 0:
            levels.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert (len(table), table.evicted, table.expired) == (limit, 80_000, 0)
    assert levels[-1] < 1.02 * levels[1]
    assert levels[-1] < limit * COST_BYTES * 1.2, "a conversation takes what the bound in bytes reckons"


@in_loop
async def test_more_requests_than_the_limit_get_429_and_when_to_come_back():
    d = FakeEngine("D0", fault=hangs())
    async with installation([], [d], admission=Admission(max_requests=3)) as router:
        held = [asyncio.ensure_future(ask(router.url, chat(f"hello {at}"))) for at in range(3)]
        await until(lambda: d.running == 3)
        refused = await ask(router.url, chat("one more"))
        assert (refused.status, refused.error["code"], refused.error["type"]) == (429, "busy", "rate_limit_error")
        assert int(refused.headers["retry-after"]) > 0
        for request in held:
            request.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await router.settle()
        d.fault = None
        assert (await ask(router.url, chat("and now?"))).status == 200
        assert router.metric("trimtab_refused_total", code="busy") == 1


@in_loop
async def test_the_bodies_of_all_requests_together_are_bounded():
    d = FakeEngine("D0", fault=hangs())
    async with installation([], [d], admission=Admission(max_bodies_bytes=30_000)) as router:
        held = asyncio.ensure_future(ask(router.url, chat("x" * 20_000)))
        await until(lambda: d.running)
        assert (await ask(router.url, chat("y" * 20_000))).status == 429
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await router.settle()
        d.fault = None
        assert (await ask(router.url, chat("y" * 20_000))).status == 200


class Scores(FakeEngine):
    """Has one of the routes that are passed on."""

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/score", self._handle)


@pytest.mark.parametrize("path", [CHAT, "/v1/score"], ids=["a turn", "another route"])
@in_loop
async def test_the_unstreamed_answers_of_all_requests_together_are_bounded(path: str):
    rest = asyncio.Event()

    async def long(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        choice = {"index": 0, "message": {"role": "assistant", "content": "x" * 20_000}, "finish_reason": "stop"}
        await response.write(json.dumps({"id": "x", "choices": [choice]}).encode()[:-1])
        await rest.wait()
        await response.write(b"}")
        return response

    ds = [Scores("D0", fault=long), Scores("D1", fault=long)]
    async with installation([], ds, admission=Admission(max_answers_bytes=30_000)) as router:
        body, kind = chat("hello", stream=False), {"Content-Type": "application/json"}
        held = asyncio.ensure_future(ask(router.url, body, path=path, headers=kind))
        await until(lambda: router.dispatcher.admission.answer_bytes > 20_000)
        refused = await ask(router.url, body, path=path, headers=kind)
        assert (refused.status, refused.error["code"]) == (429, "busy") and int(refused.headers["retry-after"]) > 0
        assert router.core.topology == "2D" and not router.core.openings, "no engine is to blame"
        rest.set()
        assert (await held).status == 200
        await router.settle()
        assert router.dispatcher.admission.answer_bytes == 0
        assert (await ask(router.url, body, path=path, headers=kind)).status == 200


@in_loop
async def test_a_body_that_does_not_come_is_not_waited_for():
    d = FakeEngine("D0")
    async with installation([], [d], options=DispatchOptions(body_timeout_s=0.2)) as router:
        port = int(router.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in await reader.readline()
        writer.close()
        await router.settle()
    assert d.calls == 0


async def said(reader: asyncio.StreamReader) -> bytes:
    """What comes until the end, which may be a reset."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def one_more() -> socket.socket | None:
    try:
        return socket.socket()
    except OSError:
        return None


async def _head(url: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(data)
    return reader, writer


@in_loop
async def test_headers_without_an_end_are_refused():
    entrance = Door(100)
    async with installation([], [FakeEngine("D0")], entrance=entrance) as router:
        reader, writer = await _head(router.url, b"POST / HTTP/1.1\r\nX-Long: ")
        said = asyncio.ensure_future(reader.readline())
        while not said.done():  # no more than needed: a reset would take the answer along
            writer.write(b"x" * 8000)
            await asyncio.sleep(0.02)
        assert b" 431 " in said.result()
        writer.close()
        assert (await ask(router.url, chat("hello"))).status == 200
    assert entrance.heads_refused == 1


@in_loop
async def test_a_client_that_does_not_finish_its_headers_is_sent_away():
    entrance = Door(100, head_s=0.2)
    async with installation([], [FakeEngine("D0")], entrance=entrance) as router:
        for begun in (b"", b"POST / HTTP/1.1\r\nHo"):
            reader, writer = await _head(router.url, begun)
            assert await asyncio.wait_for(reader.read(), 2.0) == b""
            writer.close()
        await until(lambda: entrance.open == 0)
    assert entrance.heads_refused == 2


@in_loop
async def test_connections_above_the_limit_are_closed_and_room_is_found_again():
    entrance = Door(2)
    async with installation([], [FakeEngine("D0")], entrance=entrance) as router:
        held = [await _head(router.url, b"") for _ in range(2)]
        await until(lambda: entrance.open == 2)
        reader, writer = await _head(router.url, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not await said(reader)
        writer.close()
        assert entrance.turned_away == 1
        for _, open_writer in held:
            open_writer.close()
        await until(lambda: entrance.open == 0)
        assert (await ask(router.url, chat("hello"))).status == 200


@in_loop
async def test_a_router_out_of_descriptors_takes_no_engine_out():
    d = FakeEngine("D0")
    async with installation([], [d]) as router:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        session = router.upstream._session
        assert session is not None
        spare: list[socket.socket] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (door.descriptors() + 8, hard))
        try:
            while len(spare) < 100 and (more := one_more()) is not None:
                spare.append(more)
            assert len(spare) < 100
            with pytest.raises(OwnLimit):
                await router.upstream.open(d.url + CHAT, b"{}", {}, 2.0)
        finally:
            for each in spare:
                each.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert router.core.topology == "1D"
        assert (await ask(router.url, chat("hello"))).status == 200


def test_the_limit_of_descriptors_is_raised_and_bounds_requests_and_connections():
    asked_for = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = door.raise_limit(lambda which, pair: asked_for.append(pair))
    assert limit >= soft and all(pair[0] > soft for pair in asked_for)
    assert door.most_requests(2048, 1024) == (1024 - door.SPARE_DESCRIPTORS) // door.PER_REQUEST
    assert door.most_requests(2048, 1 << 20) == 2048
    requests = door.most_requests(2048, 1024)
    assert door.most_connections(requests, 1024) + 2 * requests + door.SPARE_DESCRIPTORS <= 1024


def test_the_retry_budget_is_a_share_of_requests_and_a_trickle():
    budget = RetryBudget(share=0.2, floor_hz=1.0, most=10.0)
    assert sum(budget.take(0.0) for _ in range(50)) == 10  # what it begins with
    for _ in range(50):
        budget.request()
    assert sum(budget.take(0.0) for _ in range(50)) == 10
    assert sum(budget.take(3.0) for _ in range(50)) == 3
    assert (budget.allowed, budget.denied) == (23, 127)
    assert not budget.take(1.0)  # a clock that went back gives nothing
    with pytest.raises(ValueError, match="retry budget"):
        RetryBudget(share=-0.1)


@in_loop
async def test_a_fleet_that_fails_everything_is_asked_little_more_than_once_for_each_request():
    ds = [FakeEngine(f"D{at}", fault=answers(503)) for at in range(4)]
    budget = RetryBudget(share=0.1, floor_hz=0.0, most=5.0)
    async with installation([], ds, retries=budget) as router:
        for at in range(100):
            assert (await ask(router.url, chat(f"hello {at}"))).status == 503
        await router.settle()
    calls = sum(d.calls for d in ds)
    assert 100 + 5 <= calls <= 100 + 5 + 10 + 1, calls
    assert budget.denied > 90


def test_deadlines_grow_with_the_prompt():
    timeouts = Timeouts(2.0, 10.0, 5.0, 60.0, per_prompt_token_s=0.001)
    assert timeouts.headers_s(0, stream=True) == 10.0
    assert timeouts.headers_s(100_000, stream=True) == 110.0
    assert timeouts.headers_s(100_000, stream=False) == 160.0


@in_loop
async def test_a_long_prompt_has_longer_than_a_short_one(quiescent: Fleet):
    timeouts = Timeouts(2.0, 0.3, 5.0, 0.3, per_prompt_token_s=0.001)
    options = DispatchOptions(prefill_timeout_s=0.3)
    async with quiescent("1P_1D", timeouts=timeouts, options=options) as installed:
        befalls(installed, {"node": "D", "fault": "stall", "for": "1s"})
        assert (await say(installed, "short")).status == 504
        assert (await say(installed, "word " * 4000)).status == 200
        assert struck(installed)[0] >= 2


def test_bounds_that_would_let_nobody_in_are_refused():
    with pytest.raises(ValueError, match="use the rule fail"):
        PrefillDownPolicy(PrefillDown.LOCAL, 0)
    with pytest.raises(ValueError, match="at least one request"):
        Admission(0)
