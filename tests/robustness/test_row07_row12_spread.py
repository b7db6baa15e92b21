"""Rows 7 and 12: one system prompt for all does not gather them on one node, and a busy health loop skews nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest

from router import nodes
from tests.robustness.members_fleet import Spread, at_rest, membership
from tests.router_http.client import CHAT, in_loop
from tests.router_http.emulated import MODEL, Emulated, emulated

SYSTEM = "You are one of many agents, and all of you have read this. " * 555
"""About 8k tokens of 4 bytes."""


async def conversations(url: str, count: int, *, named: bool, system: str = "", at_once: int = 20) -> None:
    """First turns, some at a time."""
    left = list(range(count))
    async with aiohttp.ClientSession() as session:

        async def some() -> None:
            while left:
                at = left.pop()
                opening = [{"role": "system", "content": system}] if system else []
                body = {
                    "model": MODEL,
                    "messages": [*opening, {"role": "user", "content": f"agent {at}, go"}],
                    "max_tokens": 2,
                }
                headers = {"X-Session-ID": f"agent-{at}"} if named else {}
                async with session.post(url + CHAT, json=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()

        await asyncio.gather(*(some() for _ in range(at_once)))


def decoded(fleet: Emulated, count: int) -> Spread:
    return Spread.of((str(record.placement.decode) for record in fleet.router.records), count)


@pytest.mark.parametrize("named", [True, False])
@in_loop
async def test_row_7_two_hundred_sessions_with_one_system_prompt_of_8k_tokens_spread_evenly(named: bool):
    async with emulated("nixl", "2P_4D", speed=100.0) as fleet:
        await conversations(fleet.router.url, 200, named=named, system=SYSTEM)
        spread = decoded(fleet, 4)
        assert spread.by_node.total() == 200
        assert min(record.prompt_tokens for record in fleet.router.records) > 8000
        assert spread.max_over_mean <= 1.3, spread.by_node
        prefilled = Counter(str(record.placement.prefill) for record in fleet.router.records)
        assert max(prefilled.values()) <= 1.3 * 100, prefilled
        await at_rest(fleet)


@pytest.mark.slow
@in_loop
async def test_row_12_a_health_loop_at_100_ms_does_not_skew_the_load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "PROBE_S", 0.1)
    found = []
    for probing in (False, True):
        async with emulated("nixl", "1P_4D", speed=100.0) as fleet:
            if probing:
                async with membership(fleet.router, []):
                    await conversations(fleet.router.url, 1000, named=False)
            else:
                await conversations(fleet.router.url, 1000, named=False)
            found.append(decoded(fleet, 4).max_over_mean)
            await at_rest(fleet)
    assert found[1] == pytest.approx(found[0], abs=0.02), found
    assert max(found) <= 1.1
