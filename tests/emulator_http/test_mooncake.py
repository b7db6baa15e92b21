"""Mooncake's exchange over HTTP, as read from vLLM 0.32: both halves, their waits, and what a wrong one does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.emulator_http.harness import Answer, Client, fleet, in_loop, until

ASK = ("You are terse. " * 40, "What is a trim tab?")


def offer(name: str = "t1", **changes: object) -> dict[str, object]:
    return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name, **changes}


async def wish(client: Client, name: str = "t1", **changes: object) -> dict[str, object]:
    """D's parameters, as a router makes them."""
    address = client.running.addresses["P0"]
    async with client.session.get(f"{address}/query") as response:
        engine = (await response.json())["0"]["engine_id"]
    params = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": address,
        "remote_engine_id": engine,
        "transfer_id": name,
    }
    return {**params, **changes}


async def prefill(client: Client, params: dict[str, object], **body: Any) -> Answer:
    return await client.chat("P0", *ASK, max_tokens=1, kv_transfer_params=params, **body)


def mooncake(topology: str = "1P_1D_1R", speed: float = 20.0):
    return fleet(topology, speed=speed, connector="mooncake")


@pytest.mark.parametrize("first", ["P", "D", "both"])
@in_loop
async def test_the_halves_meet_whichever_comes_first(first: str):
    async with mooncake() as client:
        alone = await client.chat("R0", *ASK, max_tokens=20)
        params = await wish(client)
        if first == "P":
            at_p = asyncio.create_task(prefill(client, offer(), ignore_eos=True))
            await at_p
        at_d = asyncio.create_task(client.chat("D0", *ASK, max_tokens=20, kv_transfer_params=params, stream=True))
        if first == "D":
            await until(lambda: client.running.fleet.engines["D0"].waiting == 1)
        if first != "P":
            at_p = asyncio.create_task(prefill(client, offer(), ignore_eos=True))
        answer, prefilled = await at_d, await at_p
        assert client.running.fleet.open_leases == 0 and client.running.fleet.transferred_tokens > 0
    assert answer.content == alone.content and answer.done
    assert prefilled.status == 200 and prefilled.body.get("kv_transfer_params") is None


@in_loop
async def test_a_bootstrap_server_says_who_its_engine_is_and_a_restart_is_another():
    async with mooncake("2P_1D") as client:
        addresses = client.running.addresses
        assert set(addresses) == {"P0", "P1"}
        before = await wish(client)
        client.running.kill("P0")
        with pytest.raises(OSError, match="Cannot connect"):
            await client.session.get(f"{addresses['P0']}/query")
        await client.running.revive("P0")
        assert client.running.addresses == addresses
        after = await wish(client)
        async with client.session.get(f"{addresses['P0']}/other") as response:
            assert response.status == 404
    assert before["remote_engine_id"] != after["remote_engine_id"]


@in_loop
async def test_an_engine_that_nobody_knows_is_a_500_at_d():
    async with mooncake() as client:
        params = await wish(client, remote_engine_id="P0-7")
        answer = await client.chat("D0", *ASK, max_tokens=5, kv_transfer_params=params)
        after = await client.chat("D0", *ASK, max_tokens=5)
    assert (answer.status, after.status) == (500, 200)


@pytest.mark.parametrize("lost", ["no P", "P ends with stop", "P leaves", "P is another process"])
@in_loop
async def test_a_d_whose_p_has_nothing_for_it_waits_480_s_and_answers_500(lost: str):
    async with mooncake(speed=200.0) as client:
        params = await wish(client)
        begun_s = client.running.clock.now_s
        at_d = asyncio.create_task(client.chat("D0", *ASK, max_tokens=5, kv_transfer_params=params))
        if lost == "P ends with stop":
            said = (await client.chat("R0", *ASK, max_tokens=1)).content
            assert (await prefill(client, offer(), stop=[said.strip()])).choice["finish_reason"] == "stop"
        elif lost == "P leaves":
            at_p = asyncio.create_task(prefill(client, offer()))
            await asyncio.sleep(0)
            at_p.cancel()
        elif lost == "P is another process":
            client.running.kill("P0")
            await client.running.revive("P0")
            assert (await prefill(client, offer(), ignore_eos=True)).status == 200
        answer = await at_d
        assert answer.status == 500 and client.running.clock.now_s - begun_s > 479
        assert (await client.chat("D0", *ASK, max_tokens=5)).status == 200


@in_loop
async def test_a_p_whose_d_never_comes_keeps_the_blocks_for_480_s():
    async with mooncake(speed=200.0) as client:
        await prefill(client, offer(), ignore_eos=True)
        begun_s = client.running.clock.now_s
        assert client.running.fleet.open_leases == 1
        await until(lambda: client.running.fleet.open_leases == 0)
        assert client.running.clock.now_s - begun_s > 470


@pytest.mark.parametrize("missing", ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"])
@in_loop
async def test_a_d_without_all_of_its_parameters_waits_until_its_client_leaves(missing: str):
    async with mooncake(speed=200.0) as client:
        params = {name: value for name, value in (await wish(client)).items() if name != missing}
        at_d = asyncio.create_task(client.chat("D0", *ASK, max_tokens=5, kv_transfer_params=params))
        await until(lambda: client.running.fleet.engines["D0"].waiting == 1)
        await asyncio.sleep(0.1)
        assert not at_d.done()
        at_d.cancel()
        await until(lambda: client.running.nodes["D0"].aborted == 1)


@pytest.mark.parametrize("wrong", ["P receives", "D prefills"])
@in_loop
async def test_a_half_at_the_wrong_role_kills_the_engine(wrong: str):
    async with mooncake() as client:
        params = await wish(client) if wrong == "P receives" else offer()
        node = "P0" if wrong == "P receives" else "D0"
        answer = await client.chat(node, *ASK, max_tokens=1, kv_transfer_params=params)
        assert answer.status == 500 and not client.running.fleet.engines[node].alive


@in_loop
async def test_without_a_transfer_id_p_answers_and_keeps_nothing_and_a_plain_request_is_plain():
    async with mooncake() as client:
        assert (await prefill(client, offer(transfer_id=None))).status == 200
        assert client.running.fleet.open_leases == 0
        assert (await client.chat("D0", *ASK, max_tokens=5)).status == 200
        state = json.loads((await client.get("control", "/emulator")).text)
    assert state["transferred_tokens_total"] == 0
