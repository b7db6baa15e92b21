"""A client that leaves, in each phase of each route, on real engines: the work stops and nothing stays booked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import aiohttp
import pytest

from router.upstream import Timeouts
from tests.router_http.client import CHAT, ask, chat
from tests.router_http.installation import Installation, installation
from trimtab.vllm_cpu.engine import MODEL
from trimtab.vllm_cpu.fleet import EngineFleet

from .router import total

FREED_WITHIN_S = 5.0
"""vLLM looks for a closed connection between two steps; the machine of a test may be busy."""


def running(engines: EngineFleet) -> float:
    return total(engines, "num_requests_running") + total(engines, "num_requests_waiting")


async def freed(engines: EngineFleet) -> None:
    """Wait until no engine works."""
    async with asyncio.timeout(FREED_WITHIN_S * 10):
        while await asyncio.to_thread(running, engines):
            await asyncio.sleep(0.05)


async def in_prefill(found: Installation, response: asyncio.Task[object]) -> None:
    """Until P has the prompt."""
    while not any(flight.leg is not None and flight.leg.kv_transfer_params for flight in found.core.flights()):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)


async def in_decode(found: Installation, response: asyncio.Task[object]) -> None:
    """Until tokens come."""
    while not any(flight.watch.first_s is not None for flight in found.core.flights()):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("x", "phase"), [(0.0, in_prefill), (0.0, in_decode), (1.0, in_decode)])
def test_a_client_that_leaves_frees_the_engines(
    x: float,
    phase: Callable[[Installation, asyncio.Task[object]], Awaitable[None]],
    stream: bool,
    engines: EngineFleet,
):
    if phase is in_decode and not stream:
        pytest.skip("a whole answer has no first token to wait for: tests/router_http has this phase on a fake engine")

    async def run() -> None:
        decode = [engines["D0"], engines["D1"]]
        async with installation([engines["P0"]], decode, pin_x=x, timeouts=Timeouts(5.0, 60.0, 60.0)) as found:
            session_id, text = uuid4().hex, f"{uuid4().hex} " + "five boxing wizards jump quickly. " * 150
            headers = {"Content-Type": "application/json", "X-Session-ID": session_id}
            opening = text[:600]
            first = await ask(found.url, chat(opening, model=MODEL, max_tokens=8), headers=headers)
            assert first.status == 200
            body = chat(opening, first.text, text, model=MODEL, stream=stream, max_tokens=1500)

            async def send() -> None:
                async with (
                    aiohttp.ClientSession() as http,
                    http.post(found.url + CHAT, json=body, headers=headers) as r,
                ):
                    await r.read()

            response: asyncio.Task[object] = asyncio.ensure_future(send())
            async with asyncio.timeout(60):
                await phase(found, response)
            response.cancel()
            await asyncio.gather(response, return_exceptions=True)
            await found.settle()
            await freed(engines)
            assert found.records[-1].outcome == "client_gone"
            again = await ask(found.url, chat(opening, first.text, "go on", model=MODEL, max_tokens=8), headers=headers)
            assert again.status == 200 and again.done
            await found.settle()

    asyncio.run(run())
