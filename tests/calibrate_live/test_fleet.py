"""Who the engines are: what is asked of them, and what an operator is told when they do not fit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from router.nodes import endpoints
from router.upstream import Timeouts, Upstream
from tests.emulator_http.harness import MODEL, Client, fleet, in_loop
from trimtab.cells import cells_named
from trimtab.measure.counter import TokenCounter
from trimtab.measure.fleet import Fleet, FleetError, look, until_idle
from trimtab.measure.run import Order, sourced, unfit


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    connections = Upstream(Timeouts(1.0, 5.0, 5.0))
    await connections.start()
    try:
        yield connections
    finally:
        await connections.close()


async def seen(client: Client, model: str | None = None) -> Fleet:
    urls = client.running.urls
    async with upstream() as connections:
        return await look(endpoints([urls["P0"]], [urls["D0"]], ()), model, connections)


def order(*names: str) -> Order:
    return Order(("http://p",), ("http://d",), tuple(cells_named(names)))


@in_loop
async def test_a_fleet_says_what_it_serves_and_that_it_is_emulated():
    async with fleet("1P_1D", speed=1.0) as client:
        found = await seen(client)
    assert (found.model, found.topology, found.emulated) == (MODEL, "1P_1D", True)
    assert found.max_tokens and found.max_tokens > 8000
    assert found.describe() == "trimtab emulator over HTTP, as vllm 0.32.0, blocks of 16 tokens"
    assert [engine.name for engine in found.engines] == ["P0", "D0"]


@in_loop
async def test_a_fleet_in_fast_motion_is_refused():
    async with fleet("1P_1D", speed=10.0) as client:
        with pytest.raises(FleetError, match=r"P0 .* is emulated at speed 10: start it with --speed 1"):
            await seen(client)


@in_loop
async def test_an_engine_that_does_not_answer_is_named_with_its_address():
    async with fleet("1P_1D", speed=1.0) as client:
        url = client.running.urls["D0"]
        await client.post("control", "/emulator/kill", {"node": "D0"})
        with pytest.raises(FleetError, match=rf"decode node D0 \({url}\) does not answer \(connection refused\)"):
            await seen(client)


@in_loop
async def test_a_model_that_nobody_serves_is_refused_with_what_they_serve():
    async with fleet("1P_1D", speed=1.0) as client:
        with pytest.raises(FleetError, match=rf"P0 .* does not serve 'gpt'; it serves {MODEL}"):
            await seen(client, "gpt")


@in_loop
async def test_a_busy_engine_is_named_and_waited_for():
    async with fleet("1P_1D", speed=1.0) as client, upstream() as connections:
        found = await seen(client)
        await until_idle(found, connections, 1.0)
        async with client.session.post(
            client.url("D0", "/v1/chat/completions"),
            json={"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 400, "stream": True},
        ) as answer:
            await answer.content.readline()
            with pytest.raises(FleetError, match=r"D0 .* still has 1 requests after 0\.5 s: nobody else may use"):
                await until_idle(found, connections, 0.5)
            answer.close()
        await until_idle(found, connections, 5.0)


@in_loop
async def test_without_tokenize_an_engine_counts_by_usage():
    async with fleet("1P_1D", speed=1.0) as client, upstream() as connections:
        counter = TokenCounter(connections, await seen(client))
        await counter.choose()
        said, tokens = await counter.anchor()
        assert [message["role"] for message in said] == ["user", "assistant"]
        follow_up = {"role": "user", "content": "abcd" * 5}
        assert await counter.count([*said, follow_up]) - tokens == 5 + 2 * 4  # its text, its header, the answer's


@in_loop
async def test_the_fingerprint_tells_fleets_seeds_and_windows_apart():
    async with fleet("1P_1D", speed=1.0) as client:
        found = await seen(client)
    one = order("quick")
    assert one.fingerprint(found) == replace(one, cells=()).fingerprint(found), "cells may be added later"
    newer = replace(found, engines=tuple(replace(engine, version="0.33.0") for engine in found.engines))
    swapped = replace(found, engines=(replace(found.engines[0], url="http://elsewhere"), found.engines[1]))
    prints = [
        one.fingerprint(found),
        one.fingerprint(newer),
        one.fingerprint(swapped),
        replace(one, seed=1).fingerprint(found),
        replace(one, window=replace(one.window, limit_s=7.0)).fingerprint(found),
    ]
    assert all(a != b for at, a in enumerate(prints) for b in prints[:at])


@in_loop
async def test_the_word_beside_the_numbers_must_be_true():
    async with fleet("1P_1D", speed=1.0) as client:
        emulated = await seen(client)
    real = replace(emulated, engines=tuple(replace(engine, emulated=False) for engine in emulated.engines))
    assert [sourced(None, emulated), sourced(None, real), sourced("vllm-cpu", real)] == [
        "emulated",
        "measured",
        "vllm-cpu",
    ]
    with pytest.raises(FleetError, match="this fleet is emulated: say --source emulated"):
        sourced("measured", emulated)
    with pytest.raises(FleetError, match="this fleet is not emulated: say measured or vllm-cpu"):
        sourced("emulated", real)


def test_cells_that_do_not_fit_the_context_are_left_out_with_the_reason():
    cells = cells_named(["small/tiny@2", "large/tiny@2", "huge/tiny@2"])
    assert unfit(cells, None) == {} == unfit(cells, 8192 + 512 + 16 + 32 + 64)
    assert unfit(cells, 8192) == {"huge/tiny@2": "needs 8816 tokens of context, the engines take 8192"}
    assert list(unfit(cells, 512)) == ["large/tiny@2", "huge/tiny@2"]
