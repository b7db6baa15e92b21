"""The router's clock against the client's, on real engines: what operators are shown is what users feel."""

from __future__ import annotations

import asyncio
import json
from statistics import median
from uuid import uuid4

import aiohttp
import pytest

from tests.router_http.client import CHAT, chat
from tests.router_http.installation import Installation, installation
from trimtab.vllm_cpu.engine import MODEL
from trimtab.vllm_cpu.fleet import EngineFleet

from .router import PATIENT

CONVERSATIONS = 4
LATER_TURNS = 4
TOLERANCE = 0.05
TOLERANCE_S = 0.005


async def turn(http: aiohttp.ClientSession, url: str, session_id: str, texts: list[str]) -> tuple[float, str]:
    """(TTFT as the client sees it, the text)."""
    body = chat(*texts, model=MODEL, temperature=0, max_tokens=16)
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    async with http.post(url + CHAT, json=body, headers={"X-Session-ID": session_id}) as response:
        assert response.status == 200
        ttft_s, text = 0.0, ""
        async for line in response.content:
            if not line.startswith(b"data:") or b"[DONE]" in line:
                continue
            for choice in json.loads(line[5:]).get("choices", ()):
                said = choice.get("delta", {}).get("content") or ""
                if said and not text:
                    ttft_s = clock() - begun_s
                text += said
        return ttft_s, text


async def talk(found: Installation) -> list[float]:
    """TTFT of later turns at the client, conversation after conversation."""
    client_s = []
    async with aiohttp.ClientSession() as http:
        for _ in range(CONVERSATIONS):
            session_id, texts = uuid4().hex, [f"{uuid4().hex} " + "how vexingly quick daft zebras jump. " * 30]
            for number in range(1 + LATER_TURNS):
                ttft_s, said = await turn(http, found.url, session_id, texts)
                client_s += [ttft_s] if number else []
                texts += [said, "and then? " * 6]
    return client_s


@pytest.mark.parametrize("x", [0.0, 1.0])
def test_ttft_of_later_turns_at_the_router_is_the_clients(x: float, engines: EngineFleet):
    async def compare() -> tuple[list[float], list[float]]:
        decode = [engines["D0"], engines["D1"]]
        async with installation([engines["P0"]], decode, pin_x=x, **PATIENT) as found:
            client_s = await talk(found)
            later = [record for record in found.records if record.turn > 1]
            assert [record.went_local for record in later] == [bool(x)] * len(client_s)
            return client_s, [record.ttft_s or 0.0 for record in later]

    client_s, router_s = asyncio.run(compare())
    at_client_s, at_router_s = median(client_s), median(router_s)
    print(f"x={x:g}: median TTFT {at_client_s * 1e3:.1f} ms at the client, {at_router_s * 1e3:.1f} ms at the router")
    assert abs(at_client_s - at_router_s) <= max(TOLERANCE * at_client_s, TOLERANCE_S)
