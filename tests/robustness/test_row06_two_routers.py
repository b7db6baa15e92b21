"""Row 6: two router processes that share nothing send a conversation with an id to the same decode node."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.router_http.client import CHAT
from tests.router_http.fake_engine import FakeEngine
from tests.router_http.router_process import router_process

pytestmark = pytest.mark.slow

CONVERSATIONS = 1000
NODES = 4
AT_ONCE = 16
LIMIT_S = 240.0


async def first_turns(url: str, names: list[str]) -> None:
    """A short turn of each, a few at a time."""
    left = list(names)
    async with aiohttp.ClientSession() as session:

        async def some() -> None:
            while left:
                name = left.pop()
                body = {"model": "m", "messages": [{"role": "user", "content": name}], "max_tokens": 4}
                async with session.post(url + CHAT, json=body, headers={"X-Session-ID": name}) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def taken(engines: list[FakeEngine]) -> dict[str, str]:
    """Which engine answered which conversation since the last look."""
    found = {body["messages"][0]["content"]: engine.name for engine in engines for body in engine.bodies}
    for engine in engines:
        engine.bodies.clear()
        engine.raw_bodies.clear()
        engine.headers.clear()
    return found


def test_both_send_a_conversation_to_the_same_node_and_only_those_of_a_node_that_goes_move(tmp_path: Path):
    asyncio.run(asyncio.wait_for(scene(tmp_path), LIMIT_S))


async def scene(tmp_path: Path) -> None:
    engines = [FakeEngine(f"D{at}") for at in range(NODES)]
    names = [f"conversation-{at}" for at in range(CONVERSATIONS)]
    for engine in engines:
        await engine.start()
    async with AsyncExitStack() as stack:
        routers = []
        for at, urls in enumerate((engines, engines[::-1])):  # one's D0 is the other's D3
            folder = tmp_path / str(at)
            folder.mkdir()
            decode = [engine.url for engine in urls]
            routers.append(await stack.enter_async_context(router_process(folder, "m", [], decode, lease_s=30.0)))
        await first_turns(routers[0].url, names)
        before = taken(engines)
        await first_turns(routers[1].url, names[::-1])
        assert taken(engines) == before
        assert max(Counter(before.values()).values()) <= 1.25 * CONVERSATIONS / NODES

        await engines[0].stop()
        for router, asked in ((routers[0], names), (routers[1], names[::5])):
            await first_turns(router.url, asked)
            after = taken(engines)
            moved = {name for name in asked if after[name] != before[name]}
            assert moved == {name for name in asked if before[name] == "D0"}
            assert 0 < len(moved) <= 1.25 * CONVERSATIONS / NODES
    for engine in engines[1:]:
        assert engine.running == 0
        await engine.stop()
