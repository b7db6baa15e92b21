"""Many conversations at once while things go wrong at random: each request ends once, and all counts return to zero."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.dispatch import DispatchOptions
from router.upstream import Timeouts
from slos.objective import Outcome

from .client import Answer, ask, chat, in_loop, until
from .fake_engine import FakeEngine
from .faults import DONE, ERROR, ROLE, Fault, answers, breaks, content, hands_over, hangs, is_prefill, streams
from .installation import installation

CONVERSATIONS, TURNS = 50, 3
P_FAULTS: tuple[Fault, ...] = (answers(500), breaks(), hangs(), hands_over(remote_block_ids=None), answers(400))
D_FAULTS: tuple[Fault, ...] = (
    answers(503),
    breaks(),
    hangs(),
    streams(ROLE, then="breaks"),
    streams(ROLE, content("one "), then="breaks"),
    streams(ROLE, content("one "), then="hangs"),
    streams(ROLE, content("one "), ERROR, DONE),
    answers(422),
)


def now_and_then(dice: random.Random, share: float) -> Callable[[FakeEngine, web.Request, dict], Any]:
    async def fault(engine: FakeEngine, request: web.Request, body: dict) -> web.StreamResponse | None:
        if dice.random() < share:
            return await dice.choice(P_FAULTS if is_prefill(body) else D_FAULTS)(engine, request, body)
        await asyncio.sleep(dice.random() * 0.01)
        return None

    return fault


@pytest.mark.parametrize("seed", [1, 2])
@in_loop
async def test_fifty_conversations_with_a_third_of_their_turns_killed(seed: int):
    print(f"seed {seed}")
    dice = random.Random(seed)
    engines = [FakeEngine(name, gap_s=0.004, fault=now_and_then(dice, 0.15)) for name in ("P0", "P1", "D0", "D1")]
    killed = asked = arrived = 0
    statuses: Counter[int] = Counter()

    async def turn(url: str, texts: list[str], stream: bool) -> Answer | None:
        nonlocal killed, asked
        asked += 1
        request = asyncio.ensure_future(ask(url, chat(*texts, stream=stream)))
        if dice.random() < 0.3:
            killed += 1
            await asyncio.sleep(dice.random() * 0.05)  # any stage
            request.cancel()
        try:
            answer = await request
        except (asyncio.CancelledError, aiohttp.ClientError):
            return None
        statuses[answer.status] += 1
        return answer

    async def converse(url: str, name: int) -> None:
        texts = [f"hello, I am {name}"]
        for number in range(TURNS):
            answer = await turn(url, texts, stream=dice.random() < 0.7)
            if answer is None or answer.status != 200 or not answer.text:
                continue  # and tries again with the same history
            texts += [answer.text, f"and {number}?"]

    limits: dict[str, Any] = {
        "timeouts": Timeouts(2.0, 0.3, 0.3, 0.5),
        "options": DispatchOptions(prefill_timeout_s=0.3),
    }
    async with installation(engines[:2], engines[2:], pin_x=0.5, **limits) as router:
        handle = router.dispatcher.handle

        async def counted(*args: Any) -> None:
            nonlocal arrived
            arrived += 1
            await handle(*args)

        router.dispatcher.handle = counted  # type: ignore[assignment, method-assign]
        await asyncio.gather(*(converse(router.url, name) for name in range(CONVERSATIONS)))
        await router.settle()
        await until(lambda: not any(engine.running for engine in engines))
        outcomes = Counter(record.outcome for record in router.records)
        # Every request ended once: as a turn, or before it became one.
        assert len(router.records) + router.metric("trimtab_refused_total", code="client_gone") == arrived
        assert len({record.request_id for record in router.records}) == len(router.records)
        for engine in engines:
            engine.fault = None
        assert (await ask(router.url, chat("all well?"))).status == 200
    print(f"{asked} requests, {killed} killed: {dict(outcomes)}; statuses {dict(statuses)}")
    assert asked == CONVERSATIONS * TURNS >= arrived and killed > asked // 6
    assert outcomes[Outcome.COMPLETED] > asked // 4
    assert outcomes[Outcome.CLIENT_GONE] > 0
    assert set(statuses) <= {200, 400, 422, 500, 502, 503, 504}


@in_loop
async def test_interleaved_conversations_with_one_opener_keep_their_own_turns_and_nodes():
    """Ten clients say the same first words; each is one conversation, on one D, with turns 1, 2, 3."""
    p, ds = FakeEngine("P0"), [FakeEngine("D0"), FakeEngine("D1")]
    async with installation([p], ds, pin_x=1.0) as router:

        async def converse(name: int) -> list[str]:
            texts = ["hello"]
            turns = []
            for number in range(3):
                answer = await ask(router.url, chat(*texts))
                turns.append(answer.headers["x-trimtab-turn"])
                texts += [answer.text, f"{name} asks {number}"]
            return turns

        turns = await asyncio.gather(*(converse(name) for name in range(10)))
        await router.settle()
        conversations = list(router.core.conversations)
    assert turns == [["1", "2", "3"]] * 10
    assert [conversation.turns for conversation in conversations] == [3] * 10
    for name in range(10):
        on = [sum(f"{name} asks 0" in str(body) for body in d.bodies) for d in ds]
        assert sorted(on) == [0, 2], f"turns 2 and 3 of {name}: {on}"
