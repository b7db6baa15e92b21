"""The NIXL exchange over HTTP: P to D, what each wrong hand-over does, and what a poisoned cache answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from emulator.server.nixl import SIDE_PORT
from tests.emulator_http.harness import PROFILE, START_PREFILL, Answer, Client, fleet, in_loop, until
from tests.emulator_http.test_streams import records, shape, without_nulls

SYSTEM = {"role": "system", "content": "You are terse. " * 40}
ASK = (SYSTEM, "What is a trim tab?")
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


async def prefill(client: Client, *messages: object, node: str = "P0", **body: Any) -> Answer:
    return await client.chat(node, *messages, max_tokens=1, kv_transfer_params=START_PREFILL, **body)


@in_loop
async def test_a_prompt_that_p_prefilled_is_answered_by_d_as_one_node_would():
    async with fleet("1P_1D_1R") as client:
        alone = await client.chat("R0", *ASK, max_tokens=30)
        at_p = await prefill(client, *ASK)
        at_d = await client.chat("D0", *ASK, max_tokens=30, kv_transfer_params=at_p.handle, **USAGE)
        numbers = await client.numbers("D0")
        assert client.running.fleet.open_leases == 0
    assert at_d.content == alone.content and alone.content.startswith(at_p.content)
    assert at_d.usage["prompt_tokens"] == at_p.usage["prompt_tokens"] == alone.usage["prompt_tokens"]
    assert numbers['prompt_tokens_by_source_total{source="external_kv_transfer"}'] == at_d.usage["prompt_tokens"]
    assert numbers['prompt_tokens_by_source_total{source="local_compute"}'] == 0
    assert numbers["nixl_xfer_time_seconds_count"] == 1
    assert numbers["nixl_bytes_transferred_sum"] == at_d.usage["prompt_tokens"] * PROFILE.kv_bytes_per_token


@in_loop
async def test_completions_hand_over_too_under_their_own_ids():
    real = records()["compl:P"]["resp"]["kv_transfer_params"]
    async with fleet("1P_1D") as client:
        at_p = await client.complete("P0", "a" * 1000, max_tokens=1, kv_transfer_params=START_PREFILL, request_id="q")
        at_d = await client.complete("D0", "a" * 1000, max_tokens=8, kv_transfer_params=at_p.handle)
        alone = await client.complete("D0", "a" * 1000, max_tokens=8)
        poisoned = client.running.fleet.poisoned_reads
    assert at_p.handle["remote_request_id"].startswith("cmpl-q-0-")
    assert real["remote_request_id"].count("-") >= 2 and real["remote_request_id"].startswith("cmpl-")
    assert at_d.content == alone.content and poisoned == 0


@in_loop
async def test_the_handle_has_every_key_of_the_captured_one_in_its_order():
    real = records()["chat-stream:P"]["resp"]["kv_transfer_params"]
    async with fleet("2P_1D") as client:
        first, second = (await prefill(client, *ASK)).handle, (await prefill(client, "x", node="P1")).handle
    assert shape(without_nulls(first)) == shape(real)
    keys = list(first)
    assert keys.index("remote_blocks_expiry_time") == keys.index("remote_num_tokens") + 1
    assert len(first["remote_block_ids"][0]) == -(-first["remote_num_tokens"] // PROFILE.block_tokens)
    assert (first["remote_engine_id"], first["remote_port"]) == ("P0", SIDE_PORT)
    assert (second["remote_engine_id"], second["remote_port"]) == ("P1", SIDE_PORT + 1)


@in_loop
async def test_d_reports_ps_hits_as_its_cached_tokens():
    async with fleet("1P_1D") as client:
        first = await prefill(client, *ASK)
        await client.chat("D0", *ASK, max_tokens=1, kv_transfer_params=first.handle)
        again = await prefill(client, *ASK)
        at_d = await client.chat("D0", *ASK, max_tokens=3, kv_transfer_params=again.handle, **USAGE)
    hits = again.usage["prompt_tokens_details"]["cached_tokens"]
    assert first.usage["prompt_tokens_details"]["cached_tokens"] == 0 < hits
    assert again.handle["remote_prefill_cached_tokens"] == hits
    assert at_d.usage["prompt_tokens_details"] == {"cached_tokens": hits, "created_cache_tokens": 0}


@in_loop
async def test_a_streaming_p_sends_no_handle_and_its_blocks_wait_for_their_leases_end():
    real = records()["P-stream"]["first_events"]
    async with fleet("1P_1D", replace(PROFILE, lease_s=4.0)) as client:
        answer = await client.chat("P0", *ASK, max_tokens=1, kv_transfer_params=START_PREFILL, **USAGE)
        assert [sorted(event) for event in answer.events][1] == sorted(["choices", "created", "id", "model", "object"])
        assert len(answer.events) == len(real) and "kv_transfer_params" not in answer.text
        assert client.running.fleet.open_leases == 1
        await until(lambda: client.running.fleet.open_leases == 0)
        assert (await client.numbers("P0"))["nixl_num_kv_expired_reqs_total"] == 1


@in_loop
async def test_an_expired_lease_gives_other_text_poisons_the_cache_and_is_counted():
    async with fleet("1P_2D", replace(PROFILE, lease_s=1.0)) as client:
        right = await client.chat("D1", *ASK, max_tokens=20)
        handle = (await prefill(client, *ASK)).handle
        await until(lambda: client.running.fleet.leases_expired == 1)
        wrong = await client.chat("D0", *ASK, max_tokens=20, kv_transfer_params=handle)
        later = await client.chat("D0", *ASK, max_tokens=20)  # no hand-over, but D0 hits what it keeps
        salted = await client.chat("D0", *ASK, max_tokens=20, cache_salt="fresh")
        reads = client.running.fleet.poisoned_reads
        at_p = await client.numbers("P0")
        client.running.kill("D0")
        await client.running.revive("D0")
        healed = await client.chat("D0", *ASK, max_tokens=20)
    assert wrong.status == 200 and reads == 1
    assert wrong.content != right.content and len(wrong.content) == len(right.content)
    assert later.content != right.content and later.usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert salted.content not in (wrong.content, later.content)
    assert at_p["nixl_num_notifications_after_expiry_total"] == 1
    assert healed.content == right.content


@in_loop
async def test_another_prompts_handle_is_read_without_a_look_and_poisons():
    async with fleet("1P_1D_1R") as client:
        right = await client.chat("R0", *ASK, max_tokens=10)
        other = await prefill(client, SYSTEM, "What is a trim tap?")
        wrong = await client.chat("D0", *ASK, max_tokens=10, kv_transfer_params=other.handle)
    assert wrong.status == 200 and wrong.content != right.content


@pytest.mark.parametrize(
    ("change", "record"),
    [
        ({"remote_engine_id": "wrong-id"}, "badengine:D"),
        ({"remote_engine_id": "nosuch-D0", "remote_port": 5999}, "badport:D"),
        ({"remote_port": 5999}, "badport:D"),
        ({"remote_block_ids": [list(range(10**6, 10**6 + 100))]}, "badblocks:D"),
    ],
)
@in_loop
async def test_what_d_cannot_read_is_a_500_and_nothing_else_breaks(change, record):
    real = records()[record]
    async with fleet("1P_1D") as client:
        handle = {**(await prefill(client, *ASK)).handle, **change}
        answer = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=handle)
        streamed = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=handle, stream=True)
        after = await client.chat("D0", *ASK, max_tokens=8)
        numbers = await client.numbers("D0")
    assert answer.status == real["status"] == 500
    assert without_nulls(answer.body) == real["resp"]
    # The status of a stream is out before the engine looks: vLLM says it in the stream.
    assert streamed.status == 200 and streamed.done and without_nulls(streamed.events[0]) == real["resp"]
    assert after.status == 200
    assert numbers["nixl_num_failed_transfers_total"] == 2
    assert numbers['request_success_total{finished_reason="error"}'] == 2
    # Planned loads count as hits, those that failed too; the tokens by source know better.
    assert numbers["external_prefix_cache_hits_total"] > 0
    assert numbers['prompt_tokens_by_source_total{source="external_kv_transfer"}'] == 0


@in_loop
async def test_a_p_that_died_is_a_500_at_d():
    real = records()["pdead:D"]
    async with fleet("1P_1D") as client:
        handle = (await prefill(client, *ASK)).handle
        client.running.kill("P0")
        answer = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=handle)
        assert (answer.status, without_nulls(answer.body)) == (500, real["resp"])
        assert (await client.chat("D0", *ASK, max_tokens=8)).status == 200


@pytest.mark.parametrize(
    "change",
    [{"remote_block_ids": None}, {"remote_block_ids": [[1, 2]]}],
    ids=["no blocks", "too few blocks"],
)
@in_loop
async def test_a_hand_over_that_kills_ds_engine_ends_all_its_turns_and_closes_its_port(change):
    real = records()["fewblocks:D"]
    async with fleet("1P_1D", speed=2.0) as client:
        handle = {**(await prefill(client, *ASK)).handle, **change}
        bystander = asyncio.create_task(client.chat("D0", "Long.", max_tokens=2000, stream=True))
        await until(lambda: client.running.fleet.engines["D0"].running == 1)
        answer = await client.chat("D0", *ASK, max_tokens=8, kv_transfer_params=handle)
        assert (answer.status, without_nulls(answer.body)) == (500, real["resp"])
        told = await bystander
        assert told.done and without_nulls(told.events[-1]) == real["resp"]
        with pytest.raises(OSError, match="Cannot connect"):
            await client.chat("D0", "Anyone there?", max_tokens=1)
        await client.running.revive("D0")
        assert (await client.chat("D0", "And now?", max_tokens=1)).status == 200


@in_loop
async def test_a_decode_leg_that_is_refused_lets_ps_blocks_go():
    async with fleet("1P_1D") as client:
        handle = (await prefill(client, *ASK)).handle
        assert client.running.fleet.open_leases == 1
        refused = await client.chat("D0", *ASK, max_tokens=0, kv_transfer_params=handle)
        assert refused.status == 400 and client.running.fleet.open_leases == 0
        assert client.running.fleet.leases_expired == 0


@in_loop
async def test_token_ids_in_the_transfer_parameters_replace_the_messages():
    real = records()["ptoks:P"]
    async with fleet("1P_1D") as client:
        ids = list(range(1504))
        answer = await client.chat(
            "P0", "x", max_tokens=1, kv_transfer_params={**START_PREFILL, "prompt_token_ids": ids}
        )
    assert answer.usage["prompt_tokens"] == real["resp"]["usage"]["prompt_tokens"] == 1504
