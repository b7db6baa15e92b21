"""What befalls requests by rule or by their own header, and nodes by their condition."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from emulator.rules import HEADER, Rule, rule

from .harness import MODEL, START_PREFILL, Client, fleet, in_loop, until

CHAT = "/v1/chat/completions"


def body(stream: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "stream": stream,
        "max_tokens": 6,
        **more,
    }


def befalls(client: Client, *values: dict[str, str]) -> None:
    rules: tuple[Rule, ...] = tuple(rule(each) for each in values)
    client.running.rules.replace(rules)


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_a_status_by_rule_strikes_the_nth_request_and_no_other(stream: bool):
    async with fleet("1D") as client:
        befalls(client, {"fault": "status", "status": "503", "nth": "2"})
        assert [(await client.post("D0", CHAT, body(stream))).status for _ in range(3)] == [200, 503, 200]


@in_loop
async def test_a_request_brings_its_own_fault_in_a_header():
    async with fleet("1D") as client:
        answer = await client.post("D0", CHAT, body(), {HEADER: "status status=429"})
        assert (answer.status, answer.body["error"]["code"]) == (429, 429)
        assert (await client.post("D0", CHAT, body(), {HEADER: "quake"})).status == 400
        assert (await client.post("D0", CHAT, body())).status == 200


@pytest.mark.parametrize("told", ["reset", "reset after=2"])
@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_a_reset_breaks_the_connection(told: str, stream: bool):
    async with fleet("1D") as client:
        with pytest.raises(aiohttp.ClientError):
            await client.post("D0", CHAT, body(stream), {HEADER: told})
        await until(lambda: client.running.fleet.engines["D0"].running == 0)
        assert (await client.post("D0", CHAT, body())).status == 200


@in_loop
async def test_a_reset_in_the_middle_comes_after_so_many_chunks():
    async with fleet("1D") as client:
        got = bytearray()

        async def read() -> None:
            told = {HEADER: "reset after=3"}
            async with client.session.post(client.url("D0", CHAT), json=body(), headers=told) as response:
                async for part in response.content.iter_any():
                    got.extend(part)

        with pytest.raises(aiohttp.ClientError):
            await read()
        assert got.count(b"data: ") == 3  # the role, and two tokens


@in_loop
async def test_an_error_in_the_middle_is_an_event_and_done_as_vllm_says_it():
    async with fleet("1D") as client:
        answer = await client.post("D0", CHAT, body(), {HEADER: "error after=3"})
        assert answer.status == 200 and answer.done
        assert "error" in answer.events[-1] and len(answer.events) == 4
        assert (await client.post("D0", CHAT, body(), {HEADER: "error"})).status == 500


@pytest.mark.parametrize(("told", "least_s"), [("stall for=0.3", 0.3), ("stall after=2 for=0.3", 0.3)])
@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_a_stall_ends_and_the_answer_is_whole(told: str, least_s: float, stream: bool):
    async with fleet("1D") as client:
        plain = await client.post("D0", CHAT, body(stream))
        begun = asyncio.get_running_loop().time()
        late = await client.post("D0", CHAT, body(stream), {HEADER: told})
        assert asyncio.get_running_loop().time() - begun >= least_s
        assert late.content == plain.content and late.status == 200


@pytest.mark.parametrize("told", ["stall", "stall after=2"])
@in_loop
async def test_a_stall_without_an_end_ends_with_its_client(told: str):
    async with fleet("1D") as client:
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.5):
                await client.post("D0", CHAT, body(), {HEADER: told})
        node = client.running.nodes["D0"]
        await until(lambda: node._server is not None and not node._server.connections)
        assert client.running.fleet.engines["D0"].running == 0


@in_loop
async def test_an_empty_answer_a_first_eos_and_a_lost_request():
    async with fleet("1P_1D") as client:
        empty = await client.post("D0", CHAT, body(False), {HEADER: "empty"})
        assert (empty.status, empty.text) == (200, "")
        lost = await client.post("D0", CHAT, body(), {HEADER: "finish_error"})
        assert lost.events[-1]["choices"][0]["finish_reason"] == "error" and lost.content == ""
        params = {"kv_transfer_params": START_PREFILL}
        ended = await client.post("P0", CHAT, body(False, **params), {HEADER: "eos"})
        assert (ended.choice["finish_reason"], ended.content) == ("stop", "")


@in_loop
async def test_rules_and_conditions_are_set_and_read_at_the_control_port():
    async with fleet("1P_1D") as client:
        told = {"requests": [{"node": "D", "has": "min_tokens", "fault": "status", "status": 400}]}
        assert (await client.post("control", "/emulator/faults", told)).status == 200
        assert (await client.post("D0", CHAT, body(min_tokens=2))).status == 400
        assert (await client.post("D0", CHAT, body())).status == 200
        rules = (await client.get("control", "/emulator/faults")).body
        assert rules == {"requests": [{"fault": "status", "met": 1, "struck": 1}]}
        wrong = await client.post("control", "/emulator/faults", {"requests": [{"fault": "quake"}]})
        assert wrong.status == 400 and "quake" in wrong.text
        assert (await client.post("control", "/emulator/node", {"node": "D0", "slow": 10})).status == 200
        assert client.running.fleet.engines["D0"].slowdown == 10
        assert (await client.post("control", "/emulator/node", {"node": "D0", "slow": 0})).status == 400


@in_loop
async def test_a_slow_node_is_slow_and_an_evicted_cache_is_empty():
    async with fleet("1D") as client:
        prompt = body(max_tokens=40) | {"messages": [{"role": "user", "content": "word " * 400}]}
        engine = client.running.fleet.engines["D0"]
        await client.post("D0", CHAT, prompt)
        assert engine.cache.resident_tokens > 0
        await client.post("control", "/emulator/evict", {"node": "D0"})
        assert engine.cache.resident_tokens == 0
        usage = (await client.post("D0", CHAT, prompt | {"stream": False})).usage
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("pages", "there", "gone"),
    [
        ("old_names", "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("old_names", "vllm:time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"),
        ("missing", "process_start_time_seconds", "vllm:"),
    ],
)
@in_loop
async def test_metrics_have_other_names_or_are_missing(pages: str, there: str, gone: str):
    async with fleet("1D") as client:
        await client.post("control", "/emulator/node", {"node": "D0", "metrics": pages})
        text = (await client.get("D0", "/metrics")).text
        assert there in text and gone not in text


@in_loop
async def test_a_frozen_page_stays_as_it_was():
    async with fleet("1D") as client:
        before = (await client.get("D0", "/metrics")).text
        await client.post("control", "/emulator/node", {"node": "D0", "metrics": "frozen"})
        await client.post("D0", CHAT, body())
        assert (await client.get("D0", "/metrics")).text == before
        await client.post("control", "/emulator/node", {"node": "D0", "metrics": "fresh"})
        assert (await client.get("D0", "/metrics")).text != before


@in_loop
async def test_connections_above_the_cap_are_reset_and_idle_ones_are_closed():
    async with fleet("1D") as client:
        await client.post("control", "/emulator/node", {"node": "D0", "connections": 1, "keep_alive": "200ms"})
        port = client.running.nodes["D0"].port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.read(1000)
        with pytest.raises(aiohttp.ClientError):
            await client.get("D0", "/health")
        assert await asyncio.wait_for(reader.read(), 2.0) == b""  # closed, as it was idle
        writer.close()
        server = client.running.nodes["D0"]._server
        assert server is not None
        await until(lambda: not server.connections)
        assert (await client.get("D0", "/health")).status == 200
