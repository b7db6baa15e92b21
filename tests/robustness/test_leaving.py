"""A router that leaves: /ready is false first, streams end, new requests are told to go elsewhere; and what a new one
knows of the old one's conversations."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.server import RunningFleet, serve
from tests.router_http.client import CHAT, ask, get, in_loop, until
from tests.router_http.router_process import RouterProcess, router_process

from .ask import asked

MODEL = LLAMA_3_1_8B_H100.model


@asynccontextmanager
async def running(folder: Path, router: dict[str, str]) -> AsyncIterator[tuple[RunningFleet, RouterProcess]]:
    fleet = await serve("1P_1D", LLAMA_3_1_8B_H100, base_port=0, speed=5.0)
    try:
        urls = list(fleet.urls.values())
        async with router_process(folder, MODEL, urls[:1], urls[1:], lease_s=30.0, router=router) as process:
            yield fleet, process
    finally:
        await fleet.close()


@pytest.mark.slow
@in_loop
async def test_sigterm_makes_ready_false_lets_streams_end_and_sends_others_away(tmp_path: Path):
    async with running(tmp_path, {"drain": "20s"}) as (_, process):
        stream = asyncio.ensure_future(ask(process.url, asked("hello", tokens=600)))
        await until(lambda: True)
        await asyncio.sleep(0.5)
        process.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        ready = await get(f"{process.url}/ready")
        assert (ready.status, ready.json["reason"]) == (503, "draining")
        async with (
            aiohttp.ClientSession() as session,
            session.post(process.url + CHAT, data=json.dumps(asked("too late"))) as refused,
        ):
            assert refused.status == 503
            assert (await refused.json())["error"]["code"] == "draining"
            assert refused.headers["connection"] == "close" and int(refused.headers["retry-after"]) > 0
        answer = await stream
        assert answer.status == 200 and answer.done
        assert await asyncio.to_thread(process.process.wait, 10.0) == 0


@pytest.mark.slow
@in_loop
async def test_a_stream_that_does_not_end_in_time_is_told_why(tmp_path: Path):
    async with running(tmp_path, {"drain": "1s"}) as (fleet, process):
        stream = asyncio.ensure_future(ask(process.url, asked("hello", tokens=20_000)))
        await asyncio.sleep(0.5)
        process.process.send_signal(signal.SIGTERM)
        answer = await asyncio.wait_for(stream, 10.0)
        assert not answer.done and answer.error["code"] == "draining"
        assert await asyncio.to_thread(process.process.wait, 10.0) == 0
        await until(lambda: not fleet.fleet.engines["D0"].running)


@pytest.mark.slow
@in_loop
async def test_with_a_notice_the_port_stays_open_though_nothing_runs(tmp_path: Path):
    async with running(tmp_path, {"notice": "2s"}) as (_, process):
        process.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert (await get(f"{process.url}/ready")).status == 503
        assert (await get(f"{process.url}/health")).status == 200
        assert await asyncio.to_thread(process.process.wait, 10.0) == 0


@pytest.mark.slow
@in_loop
async def test_after_a_restart_conversations_go_on_with_their_turn_number_and_a_prefill(tmp_path: Path):
    texts = ["hello " * 50]
    for life in range(2):
        folder = tmp_path / str(life)
        folder.mkdir()
        if life == 0:
            kept = serve("1P_1D", LLAMA_3_1_8B_H100, base_port=0, speed=5.0)
            fleet = await kept
            urls = list(fleet.urls.values())
        async with router_process(folder, MODEL, urls[:1], urls[1:], lease_s=30.0) as process:
            answer = await ask(process.url, asked(*texts))
            assert answer.status == 200
            assert answer.headers["x-trimtab-turn"] == str(life + 1)
            texts += [answer.text, "and then?"]
    await fleet.close()
