"""Real engines that die and come back: the client gets the right text, and nothing of the old process is believed.

Two of the at most three starts that `make test-vllm` makes beyond the first fleet (the third: a doctor's patient). A
test leaves the fleet as it found it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from router.turn import NodeId, Reason, Route
from tests.router_http.client import Answer, ask, chat
from tests.router_http.fake_engine import FakeEngine
from tests.router_http.faults import passes_on
from tests.router_http.installation import Installation, installation
from trimtab.vllm_cpu.engine import MODEL
from trimtab.vllm_cpu.fleet import EngineFleet

from .router import PATIENT, alone, cached_tokens, opening, total

LOCAL, TRANSFER = Route.APPEND_LOCAL.value, Route.PREFILL_TRANSFER.value
MOVED = {"name": "prompt_tokens_by_source_total", "source": "external_kv_transfer"}
TOKENS = 24


@pytest.fixture(autouse=True)
def whole(engines: EngineFleet) -> Iterator[None]:
    """Whatever a test did: all engines run afterwards."""
    yield
    for engine in engines:
        if not engine.alive:
            engine.start()
    engines.wait_healthy()


async def turn(router: Installation, session: str, *texts: str) -> Answer:
    body = chat(*texts, model=MODEL, temperature=0, max_tokens=TOKENS, stream_options={"include_usage": True})
    return await ask(router.url, body, headers={"Content-Type": "application/json", "X-Session-ID": session})


@asynccontextmanager
async def watched(prefill: Any, *decode: Any, pin_x: float) -> AsyncIterator[Installation]:
    """A router that probes its nodes, as `trimtab router` does."""
    async with installation([prefill], decode, pin_x=pin_x, **PATIENT) as router:
        probing = asyncio.ensure_future(router.watch.run())
        try:
            yield router
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)


async def until_up(router: Installation, name: str) -> None:
    async with asyncio.timeout(30):
        while not router.core.nodes[NodeId(name)].healthy:
            await asyncio.sleep(0.1)


def test_a_d_that_was_restarted_between_turns_is_believed_to_hold_nothing(engines: EngineFleet):
    async def run() -> tuple[Answer, Answer, Answer]:
        async with watched(engines["P0"], engines["D0"], engines["D1"], pin_x=1.0) as router:
            first = await turn(router, "talk", *texts)
            (conversation,) = router.core.conversations
            home = conversation.decode_node
            assert home is not None
            assert router.core.residency.held(home, conversation.key) > 0
            texts.extend([first.text, "and then?"])
            await asyncio.to_thread(engines[home].kill)
            meanwhile = await turn(router, "another", another)
            await asyncio.to_thread(engines[home].restart)
            await until_up(router, home)
            router.core.nodes[home].up_s = None  # its slow start over: the name finds it again
            assert conversation.decode_node is None
            assert router.core.residency.held(home, conversation.key) == 0
            second = await turn(router, "talk", *texts)
            await router.settle()
            before, between, after = (record.placement.decode for record in router.records)
            assert before == after == home != between
            return first, meanwhile, second

    texts, another = [opening()], opening()
    first, meanwhile, second = asyncio.run(run())
    assert first.status == meanwhile.status == second.status == 200
    assert first.route[0] == TRANSFER and second.route[0] == LOCAL
    assert cached_tokens(second) == 0, "the new process has seen nothing of it"
    for answer, said in ((first, texts[:1]), (meanwhile, [another]), (second, texts)):
        assert answer.done and answer.text == alone(engines["P0"], *said, max_tokens=TOKENS).text


def test_a_p_that_dies_between_the_legs_costs_no_answer_and_comes_back(engines: EngineFleet):
    async def die() -> None:
        """P has answered; before the router hears of it, P is gone."""
        if not killed:
            killed.append(True)
            await asyncio.to_thread(engines["P0"].kill)

    async def run() -> tuple[Answer, Answer]:
        before_p = FakeEngine("P0", fault=passes_on(engines["P0"].url, lambda handle: handle, die))
        async with installation([before_p], [engines["D0"], engines["D1"]], pin_x=0.0, **PATIENT) as router:
            between = await turn(router, uuid4().hex, texts[0])
            await router.settle()
        async with watched(engines["P0"], engines["D0"], engines["D1"], pin_x=0.0) as router:
            without = await turn(router, uuid4().hex, texts[1])
            await asyncio.to_thread(engines["P0"].restart)
            await until_up(router, "P0")
            for name in ("D0", "D1"):  # both knew the old process
                moved = total([engines[name]], **MOVED)
                async with installation([engines["P0"]], [engines[name]], pin_x=0.0, **PATIENT) as one:
                    back.append(await turn(one, uuid4().hex, texts[2]))
                    await one.settle()
                assert total([engines[name]], **MOVED) - moved > 0
            return between, without

    killed, back = list[bool](), list[Answer]()
    texts = [opening(), opening(), opening()]
    between, without = asyncio.run(run())
    assert killed and len(back) == 2
    assert {answer.status for answer in (between, without, *back)} == {200}
    assert between.route[0] == LOCAL or between.route[1] == Reason.DECODE_FAILED.value
    assert without.route == (LOCAL, Reason.P_UNAVAILABLE.value)
    assert {answer.route for answer in back} == {(TRANSFER, Reason.FIRST_TURN.value)}
    for answer, text in zip((between, without, *back), (*texts, texts[-1]), strict=True):
        assert answer.done and answer.text == alone(engines["P0"], text, max_tokens=TOKENS).text
