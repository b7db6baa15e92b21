"""Each connector against emulated engines that speak it: the answer is the engine's own, whatever dies or leaves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import aiohttp
import pytest

from router.connectors import CONNECTORS
from router.dispatch import DispatchOptions
from router.upstream import Timeouts
from slos.objective import Outcome

from .client import CHAT, COMPLETIONS, Answer, ask, chat, in_loop, until
from .emulated import MODEL, Emulated, emulated
from .test_client_leaves import calling

every_connector = pytest.mark.parametrize("connector", sorted(CONNECTORS))
LONG = "Tell me all of it. " * 400
SLOW = 0.25
"""P works on that for long enough to be caught at it on a busy machine."""
QUICK: dict[str, Any] = {"timeouts": Timeouts(2.0, 3.0, 3.0, 6.0), "options": DispatchOptions(prefill_timeout_s=3.0)}


def said(*texts: str, stream: bool = True, max_tokens: int = 24, **more: Any) -> dict[str, Any]:
    return chat(*texts, stream=stream, max_tokens=max_tokens, **{"model": MODEL, **more})


async def alone(here: Emulated, body: dict[str, Any], path: str = CHAT) -> str:
    """What one engine by itself answers."""
    headers = {"Content-Type": "application/json"}
    return (await ask(here.fleet.urls["R0"], body, path=path, headers=headers)).text


async def settled(here: Emulated) -> None:
    """Nothing is in flight in the router, and no leg of it at an engine that could still be at work for it."""
    await here.router.settle()
    assert here.fleet.fleet.poisoned_reads == 0


@every_connector
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@in_loop
async def test_turns_by_both_routes_say_what_one_engine_says(connector: str, stream: bool):
    for x, route in ((0.0, "prefill_transfer"), (1.0, "append_local")):
        async with emulated(connector, pin_x=x) as here:
            texts = ["What is a trim tab?"]
            for number in range(3):
                body = said(*texts, stream=stream)
                answer = await ask(here.router.url, body)
                assert answer.status == 200 and answer.text == await alone(here, body)
                assert answer.route[0] == ("prefill_transfer" if number == 0 else route)
                texts += [answer.text, f"And then, for the {number}. time?"]
            await settled(here)
            assert [record.attempts for record in here.router.records] == [1, 1, 1]
            transferred = here.fleet.fleet.transferred_tokens
            assert transferred > 0
            assert not any(here.sequences().values())


@every_connector
@in_loop
async def test_completions_hand_over_too(connector: str):
    async with emulated(connector) as here:
        body = {"model": MODEL, "prompt": "a" * 2000, "max_tokens": 12, "stream": True}
        answer = await ask(here.router.url, body, path=COMPLETIONS)
        assert answer.text == await alone(here, body, COMPLETIONS) and answer.route[0] == "prefill_transfer"
        await settled(here)


@every_connector
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@in_loop
async def test_the_clients_request_id_is_the_clients_and_no_address_reaches_it(connector: str, stream: bool):
    async with emulated(connector) as here:
        body = said("hello", stream=stream)
        answer = await ask(here.router.url, body, headers={"X-Request-Id": "mine-7"})
        assert answer.headers["x-request-id"] == "mine-7"
        refusal = await ask(here.router.url, said("hello", stream=stream, max_tokens=10**9))
        assert refusal.status == 400
        for each in (answer, refusal):
            shown = each.body + repr(each.headers).encode()
            assert b"_addr_" not in shown and b"bootstrap" not in shown and b"xfer-" not in shown
            assert not any(address.encode() in shown for address in here.fleet.addresses.values())
        ids = {event["id"] for event in answer.events} if stream else {answer.json["id"]}
        assert ids == {f"chatcmpl-{here.router.records[0].request_id}"}
        await settled(here)


@every_connector
@in_loop
async def test_a_p_that_is_dead_costs_an_attempt_and_then_it_is_out(connector: str):
    async with emulated(connector) as here:
        here.fleet.kill("P0")
        body = said("hello")
        answers = [await ask(here.router.url, body)]
        answers.append(await ask(here.router.url, body))
        assert [answer.text for answer in answers] == [await alone(here, body)] * 2
        first, second = here.router.records
        assert (first.attempts, first.placement.prefill, second.attempts) == (2, "P1", 1)
        await settled(here)


@every_connector
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@in_loop
async def test_a_p_that_dies_at_work_loses_the_turn_to_the_other_p(connector: str, stream: bool):
    async with emulated(connector, speed=SLOW) as here:
        body = said(LONG, stream=stream)
        asked = asyncio.ensure_future(ask(here.router.url, body))
        await until(lambda: here.sequences().get("P0"))
        here.fleet.kill("P0")
        answer = await asked
        assert answer.text == await alone(here, body)
        (record,) = here.router.records
        assert (record.outcome, record.attempts, record.placement.prefill) == (Outcome.COMPLETED, 2, "P1")
        await settled(here)


@every_connector
@in_loop
async def test_without_any_p_the_turn_runs_where_it_decodes(connector: str):
    async with emulated(connector, speed=SLOW) as here:
        body = said(LONG)
        here.fleet.kill("P1")
        asked = asyncio.ensure_future(ask(here.router.url, body))
        await until(lambda: here.sequences().get("P0"))
        here.fleet.kill("P0")
        answer = await asked
        assert answer.text == await alone(here, body)
        assert answer.route == ("append_local", "prefill_failed")
        await settled(here)


@every_connector
@in_loop
async def test_a_d_that_is_dead_before_the_first_byte_loses_the_turn_to_the_other_d(connector: str):
    async with emulated(connector) as here:
        first = await ask(here.router.url, said("hello"))
        home = here.router.records[0].placement.decode
        here.fleet.kill(home)
        body = said("hello", first.text, "and now?")
        answer = await ask(here.router.url, body)
        assert answer.text == await alone(here, body)
        record = here.router.records[1]
        assert record.outcome is Outcome.COMPLETED and record.placement.decode != home
        await settled(here)


@every_connector
@in_loop
async def test_a_d_that_dies_in_the_middle_ends_the_stream_with_an_error_and_p_is_free(connector: str):
    async with emulated(connector, speed=2.0) as here:
        asked = asyncio.ensure_future(ask(here.router.url, said("hello", max_tokens=2000)))
        await until(lambda: any(f.watch.first_s is not None for f in here.router.core.flights()))
        (flight,) = here.router.core.flights()
        here.fleet.kill(flight.placement.decode)
        answer = await asked
        assert not answer.done and answer.error["code"]
        assert [record.outcome for record in here.router.records] == [Outcome.FAILED]
        await settled(here)
        assert here.sequences()["P0"] == 0


@every_connector
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("phase", ["P is at work", "D is in the middle"])
@in_loop
async def test_a_client_that_leaves_ends_every_leg(connector: str, stream: bool, phase: str):
    async with emulated(connector, "1P_1D", speed=SLOW) as here:
        body = said(LONG if phase == "P is at work" else "hello", stream=stream, max_tokens=1000)
        legs_out = {"P0", "D0"} if connector == "mooncake" else {"P0"}
        async with calling(here.router, body) as caller:
            if phase == "P is at work":
                await until(lambda: all(here.sequences()[name] for name in legs_out))
            else:
                legs_out = {"D0"}
                await until(lambda: here.fleet.fleet.engines["D0"].decoding)
            caller.leave()
            await until(lambda: all(here.aborted()[name] for name in legs_out))
        await settled(here)
        assert here.router.records[0].outcome is Outcome.CLIENT_GONE
        if phase == "D is in the middle":
            await until(lambda: not any(here.sequences().values()))


@every_connector
@in_loop
async def test_what_an_engine_says_of_the_request_itself_goes_to_the_client_once(connector: str):
    async with emulated(connector) as here:
        for stream in (True, False):
            answer = await ask(here.router.url, said("hello", stream=stream, n=0))
            assert answer.status == 400 and "n must be at least 1" in answer.error["message"]
        await settled(here)
        assert {record.outcome for record in here.router.records} == {Outcome.CLIENT_ERROR}
        assert {record.attempts for record in here.router.records} == {1}


@every_connector
@pytest.mark.parametrize("seed", [1])
@in_loop
async def test_fifty_conversations_at_once_while_nodes_die_and_clients_leave(connector: str, seed: int):
    print(f"seed {seed}")
    dice = random.Random(seed)
    asked = whole = right = 0
    statuses: Counter[int] = Counter()

    async with emulated(connector, pin_x=0.5, **QUICK) as here:
        watching = asyncio.ensure_future(here.router.watch.run())

        async def turn(texts: list[str], stream: bool) -> Answer | None:
            nonlocal asked
            asked += 1
            request = asyncio.ensure_future(ask(here.router.url, said(*texts, stream=stream)))
            if dice.random() < 0.15:
                await asyncio.sleep(dice.random() * 0.05)
                request.cancel()
            try:
                answer = await request
            except (asyncio.CancelledError, aiohttp.ClientError):
                return None
            statuses[answer.status] += 1
            return answer

        async def converse(name: int) -> None:
            nonlocal whole, right
            texts = [f"hello, I am {name}"]
            for number in range(3):
                stream = dice.random() < 0.7
                answer = await turn(texts, stream)
                if answer is None or answer.status != 200 or (stream and not answer.done):
                    continue
                whole += 1
                expected = await alone(here, said(*texts, stream=stream))
                right += answer.text == expected
                texts += [answer.text, f"and {number}?"]
                await asyncio.sleep(dice.random() * 0.2)

        async def reap() -> None:
            for name in ("P1", "D1"):
                await asyncio.sleep(0.3)
                here.fleet.kill(name)
                await asyncio.sleep(0.4)
                await here.fleet.revive(name)

        await asyncio.gather(*(converse(name) for name in range(50)), reap())
        await settled(here)
        watching.cancel()
        for _ in range(3):
            await here.router.watch.probe_all()
        assert here.router.core.topology == "2P_2D"
        assert (await ask(here.router.url, said("all well?"))).status == 200
        outcomes = Counter(record.outcome for record in here.router.records)
        routes = Counter(record.placement.realised for record in here.router.records)
    print(f"{asked} requests, {right} of {whole} right: {dict(outcomes)}; statuses {dict(statuses)}; {dict(routes)}")
    assert right == whole > asked // 2
    assert min(routes.values()) > 10 and len(routes) == 2
    assert set(statuses) <= {200, 502, 503, 504}
