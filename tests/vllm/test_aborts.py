"""A client that leaves, in each phase of each route, on real engines: the work stops and nothing stays booked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import aiohttp
import pytest

from router.connectors.protocol import Purpose
from router.core import Flight
from slos.objective import Outcome
from tests.router_http.client import CHAT, ask, chat
from tests.router_http.installation import installation
from trimtab.vllm_cpu.engine import MODEL
from trimtab.vllm_cpu.fleet import EngineFleet

from .router import PATIENT, total

TOKENS = 3000
"""Far more than are made until the client leaves, and than a later test would wait for."""
FREED_WITHIN_S = 50.0
OPENING = "five boxing wizards jump quickly. " * 18
MORE = "five boxing wizards jump quickly. " * 120


def running(engines: EngineFleet) -> float:
    return total(engines, "num_requests_running") + total(engines, "num_requests_waiting")


async def freed(engines: EngineFleet) -> None:
    """Wait until no engine works."""
    async with asyncio.timeout(FREED_WITHIN_S):
        while await asyncio.to_thread(running, engines):
            await asyncio.sleep(0.05)


def in_prefill(flight: Flight) -> bool:
    return flight.leg is not None and flight.leg.purpose is Purpose.PREFILL


def in_decode(flight: Flight) -> bool:
    """On D, without anything for the client yet."""
    return flight.decoding


def in_answer(flight: Flight) -> bool:
    """Tokens have come."""
    return flight.watch.first_s is not None


@pytest.mark.parametrize(
    ("x", "phase", "stream"),
    [
        (0.0, in_prefill, True),
        (0.0, in_prefill, False),
        (0.0, in_decode, False),
        (0.0, in_answer, True),
        (1.0, in_decode, False),
        (1.0, in_answer, True),
    ],
)
def test_a_client_that_leaves_frees_the_engines(
    x: float, phase: Callable[[Flight], bool], stream: bool, engines: EngineFleet
):
    decode = [engines["D0"], engines["D1"]]

    async def run() -> float:
        async with installation([engines["P0"]], decode, pin_x=x, **PATIENT) as found:
            text = f"{uuid4().hex} {OPENING}"
            headers = {"Content-Type": "application/json", "X-Session-ID": uuid4().hex}
            first = await ask(found.url, chat(text, model=MODEL, max_tokens=8), headers=headers)
            assert first.status == 200
            made = total(decode, "generation_tokens_total")
            body = chat(text, first.text, MORE, model=MODEL, stream=stream, max_tokens=TOKENS)

            async def send() -> None:
                async with (
                    aiohttp.ClientSession() as http,
                    http.post(found.url + CHAT, json=body, headers=headers) as r,
                ):
                    await r.read()

            leaving = asyncio.ensure_future(send())
            async with asyncio.timeout(60):
                while not any(phase(flight) for flight in found.core.flights()):
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)  # the engine has it
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await found.settle()
            await freed(engines)
            assert found.records[-1].outcome is Outcome.CLIENT_GONE
            made = total(decode, "generation_tokens_total") - made
            again = await ask(found.url, chat(text, first.text, "go on", model=MODEL, max_tokens=8), headers=headers)
            assert again.status == 200 and again.done
            await found.settle()
            return made

    made = asyncio.run(run())
    assert made < TOKENS / 2
    if phase is in_prefill:
        assert made == 0, "D was never asked"
