"""Every row of the table of bad hand-overs, under both policies of a failed load: the status that the client gets, and
what it does to D. The same rows are asked of real engines by `tests/conformance_face`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from emulator.fleet import LoadFailure
from emulator.server import errors
from tests.conformance_face.faults import FAULTS, Fault, changed
from tests.emulator_http.harness import PROFILE, START_PREFILL, Client, fleet, in_loop, until

ASK = ({"role": "system", "content": "You are terse. " * 40}, "What is a trim tab?")
SURVIVED = [fault for fault in FAULTS if not fault.kills]
DEADLY = [fault for fault in FAULTS if fault.kills]

both_policies = pytest.mark.parametrize("policy", LoadFailure)


async def prefill(client: Client, **body: Any) -> dict[str, Any]:
    answer = await client.chat("P0", *ASK, max_tokens=1, kv_transfer_params=START_PREFILL, **body)
    return answer.handle


async def alone(client: Client) -> str:
    """What one node that nothing happened to says."""
    return (await client.chat("R0", *ASK, max_tokens=8)).content


@both_policies
@pytest.mark.parametrize("fault", SURVIVED, ids=str)
@in_loop
async def test_what_d_cannot_read_fails_that_request_or_is_computed_and_harms_nothing(
    fault: Fault, policy: LoadFailure
):
    async with fleet("1P_1D_1R", load_failure=policy) as client:
        right = await alone(client)
        whole = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=fault.spoil(await prefill(client)))
        told = fault.spoil(await prefill(client, cache_salt="new"))
        streamed = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=told, cache_salt="new", stream=True)
        numbers = await client.numbers("D0")
        after = await client.chat("D0", *ASK, max_tokens=8)
        assert client.running.fleet.poisoned_reads == 0
    assert (streamed.status, streamed.done) == (200, True)
    if policy is LoadFailure.FAIL:
        assert (whole.status, whole.body) == (500, {"error": errors.internal()._error()})
        assert streamed.events == [whole.body]
        assert numbers['request_success_total{finished_reason="error"}'] == 2
    else:
        assert (whole.content, streamed.content) == (right, right)
        assert numbers['prompt_tokens_by_source_total{source="local_compute"}'] == 2 * whole.usage["prompt_tokens"]
    assert after.content == right
    assert numbers["nixl_num_failed_transfers_total"] == 2
    assert numbers['prompt_tokens_by_source_total{source="external_kv_transfer"}'] == 0
    assert numbers["external_prefix_cache_hits_total"] > 0  # as in vLLM: what was planned


@both_policies
@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        ("unreachable side channel", {LoadFailure.FAIL: 5.0, LoadFailure.RECOMPUTE: 5.0}),
        ("wrong engine id", {LoadFailure.FAIL: 5.0, LoadFailure.RECOMPUTE: 0.0}),
        ("blocks that P does not have", {LoadFailure.FAIL: 0.0, LoadFailure.RECOMPUTE: 0.0}),
    ],
)
@in_loop
async def test_d_waits_for_a_side_channel_as_long_as_vllm_does(fault, seconds, policy):
    spoil = next(each for each in FAULTS if each.name == fault).spoil
    async with fleet("1P_1D", load_failure=policy, speed=10.0) as client:
        handle = spoil(await prefill(client))
        clock = client.running.clock
        begun_s = clock.now_s
        await client.chat("D0", *ASK, max_tokens=1, kv_transfer_params=handle)
        took_s = clock.now_s - begun_s
    assert seconds[policy] <= took_s < seconds[policy] + 5.0


@both_policies
@pytest.mark.parametrize("fault", DEADLY, ids=str)
@in_loop
async def test_what_kills_ds_engine_kills_it_under_either_policy(fault: Fault, policy: LoadFailure):
    hangs = fault.name == "no request id"
    async with fleet("1P_1D", load_failure=policy, speed=2.0) as client:
        handle = fault.spoil(await prefill(client))
        bystander = asyncio.create_task(client.chat("D0", "Long.", max_tokens=4000, stream=True))
        await until(lambda: client.running.fleet.engines["D0"].running == 1)
        asked = asyncio.create_task(client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=handle))
        if hangs:  # nobody is told anything, until the client loses patience
            await until(lambda: client.running.fleet.engines["D0"].waiting == 1)
            await asyncio.sleep(0.2)
            assert client.running.nodes["D0"].listening and not asked.done()
            asked.cancel()
        else:
            answer = await asked
            assert (answer.status, answer.body["error"]["message"]) == (500, errors.ENGINE_DEAD)
        told = await bystander
        assert told.done and told.events[-1]["error"]["message"] == errors.ENGINE_DEAD
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.chat("D0", "Anyone there?", max_tokens=1)
        await client.running.revive("D0")
        assert (await client.chat("D0", "And now?", max_tokens=1)).status == 200


@both_policies
@pytest.mark.parametrize("late", [False, True], ids=["read before", "lease over"])
@in_loop
async def test_a_good_object_that_comes_too_late_or_twice_is_read_and_poisons_d(late: bool, policy: LoadFailure):
    async with fleet("1P_2D_1R", replace(PROFILE, lease_s=1.0), load_failure=policy) as client:
        right = await alone(client)
        handle = await prefill(client)
        if late:
            await until(lambda: client.running.fleet.leases_expired == 1)
        else:
            await client.chat("D1", *ASK, max_tokens=8, kv_transfer_params=handle)
        wrong = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=handle)
        later = await client.chat("D0", *ASK, max_tokens=8)
        assert client.running.fleet.poisoned_reads == 1
    assert wrong.status == later.status == 200
    assert right not in (wrong.content, later.content)


@both_policies
@in_loop
async def test_a_p_that_is_gone_after_d_has_read_from_it_is_known_at_once(policy: LoadFailure):
    async with fleet("1P_1D_1R", load_failure=policy) as client:
        right = await alone(client)
        await client.chat("D0", "Other.", max_tokens=1, kv_transfer_params=await prefill(client, cache_salt="other"))
        handle = await prefill(client, cache_salt="new")
        client.running.kill("P0")
        answer = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=handle, cache_salt="new")
    if policy is LoadFailure.FAIL:
        assert answer.status == 500
    else:
        assert answer.content == right


@in_loop
async def test_once_d_has_read_from_p_the_port_in_the_object_is_not_looked_at():
    async with fleet("1P_1D_1R") as client:
        right = await alone(client)
        first = changed(remote_port=9)(await prefill(client))
        assert (await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=first)).status == 500
        await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=await prefill(client))
        again = changed(remote_port=9)(await prefill(client, cache_salt="new"))
        answer = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=again, cache_salt="new")
    assert (answer.status, answer.content) == (200, right)


@in_loop
async def test_a_p_that_is_asked_to_read_from_itself_cannot():
    async with fleet("1P_1D") as client:
        answer = await client.chat("P0", *ASK, max_tokens=8, kv_transfer_params=await prefill(client))
    assert answer.status == 500
