"""P2P-NCCL's exchange over HTTP, as read from the last upstream source: addresses in the request id, a push, a wait."""

from __future__ import annotations

import asyncio

import pytest

from tests.emulator_http.harness import Answer, Client, fleet, in_loop, until

ASK = ("You are terse. " * 40, "What is a trim tab?")


def shared(client: Client, p: str = "P0", d: str = "D0", digits: str = "0123456789abcdef" * 2) -> dict[str, str]:
    addresses = client.running.addresses
    return {"X-Request-Id": f"___prefill_addr_{addresses[p]}___decode_addr_{addresses[d]}_{digits}"}


async def prefill(client: Client, headers: dict[str, str]) -> Answer:
    return await client.chat("P0", *ASK, max_tokens=1, headers=headers)


def p2p(topology: str = "1P_2D_1R", speed: float = 20.0):
    return fleet(topology, speed=speed, connector="p2p_nccl")


@in_loop
async def test_p_pushes_the_whole_prompt_before_it_answers_and_d_says_what_one_engine_says():
    async with p2p() as client:
        assert set(client.running.addresses) == {"P0", "D0", "D1"}
        alone = await client.chat("R0", *ASK, max_tokens=20)
        at_p = await prefill(client, shared(client))
        sent = client.running.fleet.transferred_tokens
        at_d = await client.chat("D0", *ASK, max_tokens=20, headers=shared(client))
        again = shared(client, digits="f" * 32)
        await prefill(client, again)  # D has all of it, and gets it nevertheless
        assert client.running.fleet.transferred_tokens == 2 * sent
        assert (await client.chat("D0", *ASK, max_tokens=20, headers=again)).content == alone.content
    assert sent == at_p.usage["prompt_tokens"] and at_p.body.get("kv_transfer_params") is None
    assert at_d.content == alone.content
    assert at_d.body["id"] == f"chatcmpl-{shared(client)['X-Request-Id']}"


@pytest.mark.parametrize("wrong", ["no P", "another id", "another D"])
@in_loop
async def test_a_d_that_nothing_is_sent_to_waits_until_its_client_leaves(wrong: str):
    async with p2p(speed=200.0) as client:
        headers = shared(client)
        if wrong == "another id":
            await prefill(client, shared(client, digits="f" * 32))
        elif wrong == "another D":
            await prefill(client, headers)
        node = "D1" if wrong == "another D" else "D0"
        at_d = asyncio.create_task(client.chat(node, *ASK, max_tokens=5, headers=headers))
        await until(lambda: client.running.fleet.engines[node].waiting == 1)
        await asyncio.sleep(0.1)
        assert not at_d.done()
        at_d.cancel()
        await until(lambda: client.running.nodes[node].aborted == 1)


@in_loop
async def test_a_d_that_comes_before_its_p_waits_for_it():
    async with p2p() as client:
        at_d = asyncio.create_task(client.chat("D0", *ASK, max_tokens=5, headers=shared(client)))
        await until(lambda: client.running.fleet.engines["D0"].waiting == 1)
        await prefill(client, shared(client))
        assert (await at_d).status == 200


@in_loop
async def test_a_p_without_addresses_in_its_id_dies_and_a_d_without_them_answers_by_itself():
    async with p2p() as client:
        assert (await client.chat("D0", *ASK, max_tokens=5)).status == 200
        assert (await client.chat("P0", *ASK, max_tokens=1)).status == 500
        assert not client.running.fleet.engines["P0"].alive


@in_loop
async def test_another_prompt_under_the_same_id_is_taken_for_this_one_and_poisons():
    async with p2p() as client:
        right = await client.chat("R0", *ASK, max_tokens=10)
        await client.chat("P0", "Something else.", max_tokens=1, headers=shared(client))
        wrong = await client.chat("D0", *ASK, max_tokens=10, headers=shared(client))
        assert client.running.fleet.poisoned_reads == 1
    assert wrong.status == 200 and wrong.content != right.content
