"""The safety rules of a hand-over, on real engines: a P of the test lets the real one work and spoils what it gives.

What the object shows never reaches D, which gets the client's own request and nothing else. What only D can find out
costs D0 (`fail`) that leg, and D1 (`recompute`) the time to compute the prompt. The rows that would end D's engine stop
at the router, so all engines live on. The same rules on emulated engines: `tests/router_http/test_failure_table.py`.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.turn import Reason, Route
from slos.objective import Outcome
from tests.conformance_face.faults import FAULTS, Fault
from tests.router_http.client import Answer, ask, chat
from tests.router_http.fake_engine import Body, FakeEngine
from tests.router_http.faults import Spoil, passes_on
from tests.router_http.installation import Installation, installation
from tests.router_http.router_process import router_process
from trimtab.vllm_cpu.engine import MODEL, Engine
from trimtab.vllm_cpu.fleet import EngineFleet

from .router import PATIENT, alone, opening, total

LOCAL, TRANSFER = Route.APPEND_LOCAL.value, Route.PREFILL_TRANSFER.value
REDONE = Reason.PREFILL_FAILED.value
TOKENS = 16
SHOWN = [fault for fault in FAULTS if fault.shown]
HIDDEN = [fault for fault in FAULTS if not fault.shown]


@pytest.fixture(autouse=True)
def healthy(engines: EngineFleet) -> Iterator[None]:
    yield
    assert all(engine.healthy() for engine in engines)


def stand_in(engines: EngineFleet, spoil: Spoil, then: Callable[[], Awaitable[None]] | None = None) -> FakeEngine:
    """A P that lets the real one work and spoils what it hands over. It tells the real block size and number."""
    with urllib.request.urlopen(f"{engines['P0'].url}/metrics", timeout=5) as page:
        return FakeEngine("P0", fault=passes_on(engines["P0"].url, spoil, then), metrics=page.read().decode())


@asynccontextmanager
async def spoilt(
    engines: EngineFleet, spoil: Spoil, *decode: str, then: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[Installation]:
    """A router whose only P is that one."""
    p = stand_in(engines, spoil, then)
    async with installation([p], [engines[name] for name in decode], pin_x=0.0, **PATIENT) as router:
        yield router


async def turn(router: Installation, text: str, **more: Any) -> Answer:
    body = chat(text, model=MODEL, temperature=0, max_tokens=TOKENS, **more)
    return await ask(router.url, body, headers={"Content-Type": "application/json"})


def seen(engine: Engine) -> dict[str, float]:
    """What a D has been asked for and has had from others."""
    return {
        "answered": total([engine], "request_success_total"),
        "moved": total([engine], "prompt_tokens_by_source_total", source="external_kv_transfer"),
        "computed": total([engine], "prompt_tokens_by_source_total", source="local_compute"),
        "failed": total([engine], "nixl_num_failed_transfers_total"),
    }


def since(engine: Engine, before: dict[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in seen(engine).items() if value != before[name]}


@pytest.mark.parametrize("fault", SHOWN, ids=str)
def test_what_the_object_shows_never_reaches_d(fault: Fault, engines: EngineFleet):
    async def run() -> tuple[Answer, float]:
        async with spoilt(engines, fault.spoil, "D0") as router:
            answer = await turn(router, text, stream=fault.kills)
            await router.settle()
            return answer, router.metric("trimtab_leg_failures_total", node="P0", kind="handover")

    text, before = opening(), seen(engines["D0"])
    answer, refused = asyncio.run(run())
    right = alone(engines["P0"], text, max_tokens=TOKENS, stream=False)
    assert answer.status == 200 and answer.route == (LOCAL, REDONE) and refused == 1
    assert answer.text == right.text
    prompt = right.json["usage"]["prompt_tokens"]
    assert since(engines["D0"], before) == {"answered": 1, "computed": prompt}, "D was asked for all of it, once"


@pytest.mark.parametrize("fault", HIDDEN, ids=str)
def test_what_only_d_finds_out_is_prefilled_again_for_another_d(fault: Fault, engines: EngineFleet):
    given: list[Body] = []

    def first_only(handle: Body) -> Body:
        given.append(handle)
        return fault.spoil(handle) if len(given) == 1 else handle

    async def run() -> tuple[Answer, float]:
        async with spoilt(engines, first_only, "D0", "D1") as router:
            answer = await turn(router, text)
            await router.settle()
            return answer, router.metric("trimtab_leg_failures_total", node="D0", kind="error")

    text, d0, d1 = opening(), seen(engines["D0"]), seen(engines["D1"])
    answer, failed = asyncio.run(run())
    right = alone(engines["P0"], text, max_tokens=TOKENS, stream=False)
    assert answer.status == 200 and answer.done and failed == 1
    assert answer.route == (TRANSFER, Reason.DECODE_FAILED.value)
    assert answer.text == right.text
    assert given[0]["remote_request_id"] != given[1]["remote_request_id"], "a new object, never the old one again"
    assert "moved" not in since(engines["D0"], d0)
    assert since(engines["D1"], d1)["moved"] == right.json["usage"]["prompt_tokens"]


@pytest.mark.full
@pytest.mark.parametrize("fault", HIDDEN, ids=str)
def test_it_ends_in_a_clean_error_where_no_other_d_is_left(fault: Fault, engines: EngineFleet):
    async def run() -> tuple[Answer, list[Outcome]]:
        async with spoilt(engines, fault.spoil, "D0") as router:
            answer = await turn(router, opening(), stream=False)
            await router.settle()
            return answer, [record.outcome for record in router.records]

    answer, outcomes = asyncio.run(run())
    assert answer.status >= 500 and answer.error["message"]
    assert outcomes == [Outcome.FAILED]


@pytest.mark.parametrize("fault", HIDDEN, ids=str)
def test_a_d_of_the_recompute_policy_computes_it_itself(fault: Fault, engines: EngineFleet):
    async def run() -> Answer:
        async with spoilt(engines, fault.spoil, "D1") as router:
            answer = await turn(router, text)
            await router.settle()
            assert [record.attempts for record in router.records] == [1], "the router is not told"
            return answer

    text, before = opening(), seen(engines["D1"])
    answer = asyncio.run(run())
    right = alone(engines["P0"], text, max_tokens=TOKENS, stream=False)
    assert answer.status == 200 and answer.done and answer.text == right.text
    found = since(engines["D1"], before)
    assert found["computed"] == right.json["usage"]["prompt_tokens"] and "moved" not in found


def test_an_object_that_p_gives_again_is_not_passed_on(engines: EngineFleet):
    first: list[Body] = []

    def again(handle: Body) -> Body:
        first.append(handle)
        return first[0]

    async def run() -> tuple[Answer, Answer]:
        async with spoilt(engines, again, "D0") as router:
            one = await turn(router, text)
            moved.append(seen(engines["D0"]))
            # Another conversation of the same length, whose KV is not what the object offers.
            other = await turn(router, text[::-1])
            await router.settle()
            assert router.metric("trimtab_leg_failures_total", node="P0", kind="handover") == 1
            return one, other

    moved: list[dict[str, float]] = []
    text = opening()
    one, other = asyncio.run(run())
    assert (one.route[0], other.route) == (TRANSFER, (LOCAL, REDONE))
    assert "moved" not in since(engines["D0"], moved[0])
    assert one.text == alone(engines["P0"], text, max_tokens=TOKENS).text
    assert other.text == alone(engines["P0"], text[::-1], max_tokens=TOKENS).text


@pytest.mark.full
def test_a_reply_held_back_beyond_the_lease_is_prefilled_again(engines: EngineFleet):
    """The default lease, by what the network does to a reply. P's own clock tells: the header is passed on."""
    held: list[bool] = []

    async def hold() -> None:
        if len(held) == 1:  # the first reply tells how long they take
            await asyncio.sleep(engines["P0"].options.kv_lease_duration_s + 2.0)
        held.append(True)

    async def run() -> tuple[Answer, Answer]:
        async with spoilt(engines, lambda handle: handle, "D0", then=hold) as router:
            quick = await turn(router, opening())
            before.append(seen(engines["D0"]))
            answer = await turn(router, text)
            await router.settle()
            return quick, answer

    text, before = opening(), list[dict[str, float]]()
    quick, answer = asyncio.run(run())
    right = alone(engines["P0"], text, max_tokens=TOKENS, stream=False)
    assert quick.route == (TRANSFER, Reason.FIRST_TURN.value) and len(held) == 3
    assert answer.route == (TRANSFER, REDONE) and answer.text == right.text
    assert since(engines["D0"], before[0]) == {"answered": 1, "moved": right.json["usage"]["prompt_tokens"]}


@pytest.mark.full
def test_a_router_that_stood_still_beyond_the_lease_prefills_again(engines: EngineFleet, tmp_path: Path):
    """A stopped process, with P's reply in its socket."""
    lease_s = engines["P0"].options.kv_lease_duration_s
    resumed: list[asyncio.Task[None]] = []

    async def run() -> Answer:
        async def stand_still() -> None:
            if not resumed:
                router.pause()
                resumed.append(asyncio.ensure_future(resume()))

        async def resume() -> None:
            await asyncio.sleep(lease_s + 2.0)
            router.go_on()

        p = stand_in(engines, lambda handle: handle, stand_still)
        await p.start()
        try:
            url = engines["D0"].url
            async with router_process(tmp_path, MODEL, [p.url], [url], lease_s=lease_s) as router:
                body = chat(text, model=MODEL, temperature=0, max_tokens=TOKENS)
                answer = await ask(router.url, body, headers={"Content-Type": "application/json"})
            assert p.calls == 2
            return answer
        finally:
            await p.stop()

    text, before = opening(), seen(engines["D0"])
    answer = asyncio.run(run())
    right = alone(engines["P0"], text, max_tokens=TOKENS, stream=False)
    assert answer.route == (TRANSFER, REDONE) and answer.text == right.text
    assert since(engines["D0"], before) == {"answered": 1, "moved": right.json["usage"]["prompt_tokens"]}
