"""Rows 1, 2, 29, 33: what is counted, learned and measured."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from router.turn import NodeId, Route
from tests.router_http.client import ask, chat, in_loop
from tests.router_http.fake_engine import Body, FakeEngine
from tests.router_http.faults import is_prefill
from tests.router_http.installation import installation

from .ask import asked
from .conftest import Fleet


@in_loop
async def test_row_1_headers_counters_and_the_engines_own_logs_agree(quiescent: Fleet):
    told: Counter[tuple[str, str]] = Counter()

    async def converse(url: str, name: int) -> None:
        texts = [f"{name} " + "word " * (name * 37 % 300)]
        for number in range(4):
            answer = await ask(url, asked(*texts, stream=(name + number) % 3 > 0, tokens=1 + name * number % 20))
            assert answer.status == 200
            told[answer.route] += 1
            texts += [answer.text, f"and {number}?"]

    async with quiescent("2P_2D_1R", pin_x=0.5) as installed:
        await asyncio.gather(*(converse(installed.router.url, name) for name in range(25)))
        await installed.router.settle()
        metric = installed.router.metric
        counted = {
            (route, reason): metric("trimtab_turns_total", route=route, reason=reason, outcome="completed")
            for route, reason in told
        }
        assert counted == told and sum(counted.values()) == 100
        pages = {name: node.counts.numbers for name, node in installed.fleet.nodes.items()}
        done = {n: sum(v for (m, _), v in page.items() if m == "request_success_total") for n, page in pages.items()}
        transferred = sum(count for (route, _), count in told.items() if route == Route.PREFILL_TRANSFER)
        assert sum(count for name, count in done.items() if name.startswith("P")) == transferred
        assert sum(count for name, count in done.items() if not name.startswith("P")) == 100


class Silent(FakeEngine):
    """Says nothing of what it had cached."""

    def usage(self, body: Body) -> Body:
        return {**super().usage(body), "prompt_tokens_details": None}


@in_loop
async def test_row_2_without_events_and_cached_tokens_the_table_of_sessions_carries_the_bypass():
    p, d = Silent("P0"), Silent("D0")
    async with installation([p], [d], pin_x=1.0) as router:
        texts = ["hello " * 200]
        for number in range(3):
            texts += [(await ask(router.url, chat(*texts))).text, f"and {number}?"]
        await router.settle()
        routes = [record.placement.realised for record in router.records]
        assert routes == [Route.PREFILL_TRANSFER, Route.APPEND_LOCAL, Route.APPEND_LOCAL]
        for record in router.records[1:]:  # what D is believed to lack is the new part, not everything
            assert record.features.uncached_d < 100 < record.features.prompt_tokens
        assert router.core.residency_misses == 0


class Cached(FakeEngine):
    """Says 700 of 1000 as P; as D what P had said on a transferred turn, as vLLM 0.32 does, and 640 on a local one."""

    def usage(self, body: Body) -> Body:
        handed = bool(body.get("kv_transfer_params"))
        cached = 700 if handed else 640
        details = {"cached_tokens": cached}
        return {"prompt_tokens": 1000, "completion_tokens": 4, "total_tokens": 1004, "prompt_tokens_details": details}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("x", [0.0, 1.0])
@in_loop
async def test_row_29_ds_usage_reaches_the_client_unchanged_and_residency_learns_from_local_turns_only(
    x: float, stream: bool
):
    p, d = Cached("P0"), Cached("D0")
    async with installation([p], [d], pin_x=x) as router:
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        texts = ["hello"]
        usages = []
        for number in range(2):
            answer = await ask(router.url, chat(*texts, stream=stream, **more))
            usages.append(answer.events[-1]["usage"] if stream else answer.json["usage"])
            texts += [answer.text, f"and {number}?"]
        await router.settle()
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert cached == [700, 700 if x == 0 else 640] and usages[0]["prompt_tokens"] == 1000
        # D holds the prompt and the answer; on the local turn it said to have found less: that is a miss of D alone.
        checks = {node for node, _, _ in router.core.residency.checks}
        assert NodeId("D0") not in checks if x == 0 else NodeId("D0") in checks


@in_loop
async def test_row_33_the_routers_ttft_is_what_p_the_transfer_and_d_take_together():
    """Half of the row's times: P 400 ms, the transfer 100, D 25."""

    async def slow(engine: FakeEngine, request: web.Request, body: Body) -> None:
        await asyncio.sleep(0.4 if is_prefill(body) else 0.1 + 0.025)

    p, d = FakeEngine("P0", fault=slow), FakeEngine("D0", fault=slow)
    async with installation([p], [d], pin_x=0.0) as router:
        begun_s = asyncio.get_running_loop().time()
        await ask(router.url, chat("hello"))
        client_s = asyncio.get_running_loop().time() - begun_s
        await router.settle()
        (record,) = router.records
    assert record.ttft_s is not None
    assert 0.525 <= record.ttft_s <= client_s  # what an engine sees of it, P's 400 or D's 125 ms, is less
    exported = router.metric("trimtab_ttft_seconds_sum", later="0")
    assert exported == pytest.approx(record.ttft_s)
