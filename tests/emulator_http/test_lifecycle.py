"""Clients that leave, processes that die and come back, ports that are taken, an emulator that is too slow."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

from emulator.fleet import Role
from emulator.server import PortInUse, serve
from emulator.server.lag import Lag
from tests.emulator_http.harness import PROFILE, START_PREFILL, Client, fleet, in_loop, until

SLOW = replace(PROFILE, front_ms=800.0)  # a request is still at the front when its client leaves


async def leave(client: Client, node: str, phase: str, **body: Any) -> float:
    """Ask, leave in that phase, and say how long the engine did not know."""
    engine = client.running.fleet.engines[node]
    ask = asyncio.create_task(client.chat(node, "word " * 4000, max_tokens=5000, **body))
    if phase == "front":
        await asyncio.sleep(0.1)
        assert engine.running == 0
    else:
        await until(lambda: engine.running > 0 or engine.waiting > 0)
        if phase == "decode":
            await until(lambda: engine.decoding > 0)
    left = time.monotonic()
    ask.cancel()
    await until(lambda: client.running.nodes[node].aborted == 1)
    took_s = time.monotonic() - left
    await until(lambda: engine.running == engine.waiting == 0 and engine.kv_usage == 0)
    return took_s


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("phase", "profile"), [("front", SLOW), ("prefill", PROFILE), ("decode", PROFILE)])
@in_loop
async def test_a_client_that_leaves_frees_the_engine_in_every_phase(phase, profile, stream):
    async with fleet("1D", profile, speed=1.0) as client:
        assert await leave(client, "D0", phase, stream=stream) < 0.5
        assert (await client.chat("D0", "Still there?", max_tokens=1)).status == 200


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_client_that_leaves_a_prefill_leg_or_a_transfer_leaves_nothing_behind(stream):
    slow_link = replace(PROFILE, link=replace(PROFILE.link, fixed_ms=2000.0), lease_s=3.0)
    async with fleet("1P_1D", slow_link, speed=2.0) as client:
        assert await leave(client, "P0", "prefill", kv_transfer_params=START_PREFILL) < 0.5
        handle = (await client.chat("P0", "word " * 4000, max_tokens=1, kv_transfer_params=START_PREFILL)).handle
        took_s = await leave(client, "D0", "transfer", stream=stream, kv_transfer_params=handle)
        assert took_s < 0.5
        await until(lambda: client.running.fleet.open_leases == 0)
        assert client.running.fleet.engines["P0"].kv_usage == 0


@in_loop
async def test_a_killed_node_breaks_off_its_streams_and_refuses_and_a_revived_one_is_empty():
    async with fleet("1P_2D", speed=1.0) as client:
        started = asyncio.create_task(client.chat("D0", "Long.", max_tokens=5000, stream=True))
        other = asyncio.create_task(client.chat("D1", "Long.", max_tokens=50))
        await until(lambda: client.running.fleet.engines["D0"].decoding == 1)
        url = client.url("D0", "/health")
        answer = await client.post("control", "/emulator/kill", {"node": "D0"})
        assert (answer.status, answer.body) == (200, {"node": "D0", "listening": False})
        with pytest.raises(Exception, match=r"(?i)payload|closed|reset|transfer"):
            await started
        with pytest.raises(OSError, match="Cannot connect"):
            await client.get("D0", "/health")
        assert (await other).status == 200  # the others live on
        state = (await client.get("control", "/emulator")).body
        assert [node["listening"] for node in state["nodes"].values()] == [True, False, True]

        answer = await client.post("control", "/emulator/revive?node=D0", b"")
        assert answer.body == {"node": "D0", "listening": True} and client.url("D0", "/health") == url
        again = await client.chat("D0", "Long.", max_tokens=3)
        assert again.usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert (await client.get("control", "/emulator")).body["nodes"]["D0"]["epoch"] == 1


@in_loop
async def test_killing_twice_and_reviving_the_living_change_nothing():
    async with fleet("1D") as client:
        running = client.running
        await running.revive("D0")
        assert (await client.chat("D0", "Hello", max_tokens=1)).status == 200
        running.kill("D0")
        running.kill("D0")
        await running.revive("D0")
        await running.revive("D0")
        assert (await client.chat("D0", "Hello", max_tokens=1)).status == 200
        assert (await client.post("control", "/emulator/kill", {"node": "D7"})).status == 404
        assert (await client.post("control", "/emulator/kill", b"{")).status == 404
        assert (await client.get("control", "/nothing")).status == 404
        assert "emulator_behind" in (await client.get("control", "/metrics")).text


def three_free_ports() -> int:
    """The first of three in a row, below those that the kernel hands to whoever connects meanwhile."""
    for first in range(21_000, 32_000, 3):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no three free ports in a row")


@in_loop
async def test_ports_count_up_from_the_base_and_a_taken_one_is_named():
    with socket.socket() as taken:
        port = three_free_ports() + 1
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(PortInUse, match=f"port {port} is in use"):
            await serve("1P_1D", PROFILE, base_port=port - 1)
    running = await serve("1P_1D", PROFILE, base_port=port - 1)  # the first attempt left no port behind
    try:
        assert running.urls == {"P0": f"http://127.0.0.1:{port - 1}", "D0": f"http://127.0.0.1:{port}"}
        assert running.control_url == f"http://127.0.0.1:{port + 1}"
        assert running.urls_of(Role.DECODE) == [running.urls["D0"]] and running.urls_of(Role.REPLICA) == []
    finally:
        await running.close()


@pytest.mark.parametrize(("topology", "speed"), [("2X", 1.0), ("1P", 1.0), ("1D", 0.0), ("1D", -2.0)])
@in_loop
async def test_a_fleet_that_cannot_be_is_refused(topology, speed):
    with pytest.raises(ValueError, match=r"topology|speed"):
        await serve(topology, PROFILE, base_port=0, speed=speed)


@in_loop
async def test_closing_ends_what_is_in_flight_and_leaves_no_task():
    async with fleet("1P_1D", speed=1.0) as client:
        asks = [asyncio.create_task(client.chat("D0", f"{n}", max_tokens=9000, stream=n > 0)) for n in range(2)]
        await until(lambda: client.running.fleet.engines["D0"].decoding == 2)
        await client.running.close()
        ended = await asyncio.gather(*asks, return_exceptions=True)
        assert all(isinstance(end, Exception) for end in ended)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_lag_is_behind_when_more_than_a_hundredth_is_over_the_bound(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr("emulator.server.lag.time.monotonic", lambda: now[0])
    lag = Lag(0.01)

    def seen() -> tuple[bool, float]:
        return lag.behind, lag.p99_s

    assert seen() == (False, 0.0)
    for _ in range(990):
        lag.note(0.0004)
    for _ in range(10):
        lag.note(0.2)
    now[0] += 1
    assert seen() == (False, 0.0005)
    with caplog.at_level(logging.WARNING):
        lag.note(0.2)
        now[0] += 1
        assert seen() == (True, 0.25) and "is behind: P99 of its lag is up to 250.0 ms" in caplog.text
        now[0] += 10
        assert seen() == (False, 0.0) and "keeps up again" in caplog.text
    assert sum(lag.counts) == 1001 and lag.max_s == 0.2


@in_loop
async def test_a_process_that_stalls_says_that_it_is_behind_and_catches_up_on_the_old_schedule():
    async with fleet("1D", speed=1.0) as client:
        ask = asyncio.create_task(client.chat("D0", "Hello", max_tokens=60, stream=True))
        engine = client.running.fleet.engines["D0"]
        await until(lambda: engine.decoding == 1)
        begun = time.monotonic()
        time.sleep(0.2)  # the whole process, as under a heavy load
        answer = await ask
        took_s = time.monotonic() - begun
        await until(lambda: client.running.lag.behind, within_s=3)
        page = (await client.get("D0", "/metrics")).text
    assert len(answer.events) == 61
    step_s = 0.0078
    assert took_s < 60 * step_s + 0.15, "late tokens must not push the later ones back"
    assert "emulator_behind 1.0" in page
