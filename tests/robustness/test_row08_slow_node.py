"""Row 8: when a decode node becomes ten times slower, the turns of its conversations leave it, and do not come back and
forth."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from router import nodes
from router.turn import Reason
from tests.robustness.members_fleet import at_rest, membership
from tests.router_http.client import ask, in_loop, until
from tests.router_http.emulated import MODEL, emulated

CONVERSATIONS = 9


@pytest.mark.slow
@in_loop
async def test_new_turns_leave_a_slow_node_and_no_conversation_moves_twice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "PROBE_S", 0.2)
    async with emulated("nixl", "1P_3D", speed=2.0) as fleet, membership(fleet.router, []):
        router, stop = fleet.router, asyncio.Event()

        async def talk(name: str) -> None:
            texts, at = [f"conversation {name}"], 0
            while not stop.is_set():
                messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
                body = {"model": MODEL, "stream": True, "messages": messages, "max_tokens": 40}
                answer = await ask(router.url, body, headers={"X-Session-ID": name})
                assert answer.status == 200, answer.body
                at += 1
                texts += [answer.text, f"and then, {at}?"]

        talks = [asyncio.ensure_future(talk(f"c{at}")) for at in range(CONVERSATIONS)]
        try:
            await until(lambda: len(router.records) >= 4 * CONVERSATIONS, 20.0)
            assert not router.core.moves
            homes = Counter(str(c.decode_node) for c in router.core.conversations)
            slow = homes.most_common(1)[0][0]
            with fleet.fleet.clock:
                fleet.fleet.fleet.engines[slow].slow(10.0)
            conversations = router.core.conversations
            await until(lambda: slow not in {str(c.decode_node) for c in conversations}, 20.0)
            moved = homes[slow]
            assert router.core.moves == {Reason.NODE_SLOW: moved}
            seen = len(router.records)
            await until(lambda: len(router.records) >= seen + 6 * CONVERSATIONS, 20.0)
        finally:
            stop.set()
            await asyncio.gather(*talks)
        assert router.core.moves == {Reason.NODE_SLOW: moved}, "nobody came back, nobody moved again"
        left = [record for record in router.records if record.decision.reason is Reason.NODE_SLOW]
        assert len(left) == moved
        await at_rest(fleet)
