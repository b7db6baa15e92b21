"""Row 20: what clients do wrong opens no circuit breaker, not even a request that makes every engine answer 500; five
503 in a row open it; half-open closes it again."""

from __future__ import annotations

import pytest
from aiohttp import web

from router.breaker import FAILURES, OPEN_S, BreakerState
from router.turn import NodeId
from router.upstream import Timeouts
from tests.robustness.members_fleet import SkippingClock
from tests.router_http.client import ask, chat, in_loop
from tests.router_http.fake_engine import Body, FakeEngine
from tests.router_http.faults import answers, breaks, hangs
from tests.router_http.installation import Installation, installation

D0, P0 = NodeId("D0"), NodeId("P0")


def state(router: Installation, clock: SkippingClock, node: NodeId = D0) -> BreakerState:
    return router.core.breaker(node, clock.now_s())[0]


@pytest.mark.parametrize("where", ["D0", "P0"])
@in_loop
async def test_a_hundred_bad_requests_of_clients_leave_it_closed_and_five_503_open_it(where: str):
    clock, node = SkippingClock(), NodeId(where)
    ps, ds = [FakeEngine("P0"), FakeEngine("P1")], [FakeEngine("D0"), FakeEngine("D1")]
    bad = {"D0": ds[0], "P0": ps[0]}[where]
    async with installation(ps, ds, clock=clock) as router:
        for at in range(100):
            bad.fault = answers((400, 404, 422)[at % 3])
            answer = await ask(router.url, chat(f"bad {at}"))
            assert answer.status in (200, 400, 404, 422)
        assert bad.calls >= 30, "half of them, more or less, went there"
        assert state(router, clock, node) is BreakerState.CLOSED
        bad.fault = None
        for at in range(4):
            assert (await ask(router.url, chat(f"good {at}"))).status == 200

        bad.fault, calls = answers(503), bad.calls
        for at in range(4 * FAILURES):
            assert (await ask(router.url, chat(f"good all the same {at}"))).status == 200, "another node answers"
        assert state(router, clock, node) is BreakerState.OPEN
        assert bad.calls == calls + FAILURES

        clock.ahead_s += OPEN_S
        assert (await ask(router.url, chat("a trial that fails"))).status == 200
        assert bad.calls == calls + FAILURES + 1 and state(router, clock, node) is BreakerState.OPEN
        clock.ahead_s += OPEN_S
        assert state(router, clock, node) is BreakerState.OPEN, "it waits for twice as long"
        clock.ahead_s += OPEN_S
        bad.fault = None
        for at in range(4):
            assert (await ask(router.url, chat(f"a trial that is answered {at}"))).status == 200
        assert state(router, clock, node) is BreakerState.CLOSED
        assert router.core.openings == {(node, "error"): 2}
        await router.settle()


@pytest.mark.parametrize("fault", [answers(503), breaks()], ids=["503", "breaks off"])
@in_loop
async def test_the_only_decode_node_is_never_kept_out_and_is_there_once_it_is_well(fault):
    clock, d = SkippingClock(), FakeEngine("D0")
    async with installation([], [d], clock=clock) as router:
        d.fault = fault
        for at in range(3 * FAILURES):
            assert (await ask(router.url, chat(f"no luck {at}"))).status in (502, 503)
        assert state(router, clock) is BreakerState.CLOSED
        d.fault = None
        assert (await ask(router.url, chat("well"))).status == 200
        await router.settle()


@in_loop
async def test_busy_is_no_failure_and_no_answer():
    clock, ds = SkippingClock(), [FakeEngine("D0"), FakeEngine("D1")]
    async with installation([], ds, clock=clock) as router:
        ds[0].fault = answers(429)
        for at in range(4 * FAILURES):
            assert (await ask(router.url, chat(f"busy {at}"))).status == 200
        assert state(router, clock) is BreakerState.CLOSED
        await router.settle()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@in_loop
async def test_a_request_that_no_engine_can_stand_opens_none_while_others_are_served(stream: bool):
    clock = SkippingClock()
    ps, ds = [FakeEngine("P0"), FakeEngine("P1")], [FakeEngine("D0"), FakeEngine("D1"), FakeEngine("D2")]

    async def poisoned(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse | None:
        return await answers(500)(engine, request, body) if "poison" in str(body["messages"]) else None

    for engine in (*ps, *ds):
        engine.fault = poisoned
    async with installation(ps, ds, clock=clock) as router:
        for at in range(10 * FAILURES):
            clock.ahead_s += 1.0  # so that the budget of retries is no limit
            answer = await ask(router.url, chat(f"poison {at}", stream=stream))
            assert answer.status == 500 and "says 500" in str(answer.body)
        assert not router.core.openings
        assert {state(router, clock, node) for node in router.core.nodes} == {BreakerState.CLOSED}
        assert (await ask(router.url, chat("good", stream=stream))).status == 200
        await router.settle()


@in_loop
async def test_five_timeouts_open_it_too():
    clock, ds = SkippingClock(), [FakeEngine("D0"), FakeEngine("D1")]
    async with installation([], ds, clock=clock, timeouts=Timeouts(1.0, 0.5, 0.5)) as router:
        ds[0].fault = hangs()
        for at in range(4 * FAILURES):
            assert (await ask(router.url, chat(f"hello {at}"))).status == 200
        assert ds[0].calls == FAILURES and router.core.openings == {(D0, "timeout"): 1}
        await router.settle()
