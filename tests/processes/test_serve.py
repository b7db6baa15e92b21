"""The processes of an installation, as real processes: what happens when one is killed, and when it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from emulator.workload import CHAT, Phase, conversations
from slos.objective import Outcome
from trimtab.clients import Crowd
from trimtab.installation import Installation, free_port, install
from trimtab.scenarios import promises

pytestmark = pytest.mark.slow

PROFILE = "llama-3.1-8b-h100"
SPEED = 4.0


@contextlib.asynccontextmanager
async def installed(folder: Path, topology: str = "1P_2D", ttft_s: float = 2.0) -> AsyncIterator[Installation]:
    installation = await install(folder, PROFILE, topology, promises(ttft_s, 0.05), speed=SPEED)
    try:
        yield installation
    finally:
        installation.stop()


def crowd_for(installation: Installation, seconds: float, rate_hz: float = 1.5) -> Crowd:
    plans = conversations((Phase("x", seconds, ((CHAT, rate_hz),)),), np.random.default_rng(3))
    return Crowd(installation.router_url, installation.model, plans, speed=SPEED)


def children(installation: Installation) -> dict[str, int]:
    """Process ids of the supervisor's children by name."""
    supervisor = installation.processes[-1].pid
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if entry.name.isdigit() and f"\nPPid:\t{supervisor}\n" in (entry / "status").read_text():
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[words[words.index(b"trimtab") + 1].decode()] = int(entry.name)
    return found


def get(url: str) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


async def until(true, within_s: float = 20.0) -> float:
    began = monotonic()
    while not true():
        assert monotonic() - began < within_s, "it did not come true in time"
        await asyncio.sleep(0.1)
    return monotonic() - began


def price(installation: Installation) -> tuple[float, int]:
    _, status = get(f"{installation.admin_url}/api/v1/status")
    return status["models"][installation.model]["price"], status["publication"]["version"]


def test_streams_go_on_while_the_control_process_is_dead_and_it_comes_back_without_a_jump(tmp_path):
    async def scene() -> None:
        # A promise that cannot be kept moves the price, so that going on where it was is not the start price by chance.
        async with installed(tmp_path, ttft_s=0.001) as installation:
            crowd = crowd_for(installation, 140.0, 3.0)
            running = asyncio.ensure_future(crowd.run(160.0))
            await until(lambda: bool(get(f"{installation.admin_url}/api/v1/status")[1].get("models")))
            await until(lambda: price(installation)[0] < 0.35, 30.0)
            before, version = price(installation)
            victim = children(installation)["control"]
            os.kill(victim, signal.SIGKILL)
            await until(lambda: children(installation).get("control") not in (None, victim))
            await until(lambda: get(f"{installation.admin_url}/health")[0] == 200)
            await until(lambda: bool(get(f"{installation.admin_url}/api/v1/status")[1].get("models")))
            after, later_version = price(installation)
            await running
            assert 0.6 * before < after <= before * 1.01, "at most two more ticks of the same law"
            assert later_version > version
            assert crowd.turns
            assert all(turn.outcome is Outcome.COMPLETED for turn in crowd.turns)
            assert all(turn.text_matches for turn in crowd.turns)
            log = (tmp_path / "serve.log").read_text()
            assert "the control process ended (signal 9)" in log

    asyncio.run(scene())


def test_a_killed_router_is_back_in_seconds_and_goes_on_with_its_conversations(tmp_path):
    async def scene() -> None:
        async with installed(tmp_path) as installation:
            crowd = crowd_for(installation, 60.0)
            running = asyncio.ensure_future(crowd.run(100.0))
            await until(lambda: len(crowd.turns) > 20)
            victim = children(installation)["router"]
            os.kill(victim, signal.SIGKILL)
            await until(lambda: children(installation).get("router") not in (None, victim))
            took_s = await until(lambda: get(f"{installation.router_url}/ready")[0] == 200)
            seen = len(crowd.turns)
            await running
            assert took_s < 15
            later = [turn for turn in crowd.turns[seen:] if turn.turn > 1 and turn.outcome is Outcome.COMPLETED]
            assert later, "conversations that began before the kill go on"
            assert all(turn.text_matches for turn in later)
            assert "starting from publication" in (tmp_path / "serve.log").read_text()

    asyncio.run(scene())


def test_a_pin_works_with_the_control_process_stopped(tmp_path):
    async def scene() -> None:
        async with installed(tmp_path) as installation:
            os.kill(children(installation)["control"], signal.SIGSTOP)
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "trimtab", "pin", "x0", "--state-dir", str(tmp_path / "state")],
                    capture_output=True,
                    text=True,
                    timeout=30,
                )
                assert done.returncode == 0, done.stderr
                await asyncio.sleep(1.5)
                crowd = crowd_for(installation, 20.0)
                await crowd.run(60.0)
                later = [turn for turn in crowd.turns if turn.turn > 1]
                assert later
                assert {turn.reason for turn in later} == {"pinned"}
                assert not any(turn.went_local for turn in later)
            finally:
                os.kill(children(installation)["control"], signal.SIGCONT)

    asyncio.run(scene())


def test_a_dead_prefill_node_at_start_and_a_decode_node_that_dies_mid_stream_are_survived(tmp_path):
    async def scene() -> None:
        async with installed(tmp_path, "1P_2D") as installation:
            await installation.node("kill", "P0")
            await asyncio.sleep(0.3)
            crowd = crowd_for(installation, 40.0)
            running = asyncio.ensure_future(crowd.run(90.0))
            await until(lambda: len(crowd.turns) > 10)
            assert {turn.reason for turn in crowd.turns} <= {"p_unavailable", "prefill_failed"}
            await installation.node("kill", "D0")
            await running
            failed = [turn for turn in crowd.turns if turn.outcome is not Outcome.COMPLETED]
            answered = [turn for turn in crowd.turns if turn.outcome is Outcome.COMPLETED]
            assert len(failed) < len(answered)
            assert all(turn.text_matches for turn in answered)

    asyncio.run(scene())


def test_a_fleet_that_is_all_down_is_answered_with_503_and_recovers(tmp_path):
    async def scene() -> None:
        async with installed(tmp_path, "1P_1D") as installation:
            for node in ("P0", "D0"):
                await installation.node("kill", node)
            await until(lambda: get(f"{installation.router_url}/ready")[0] == 503)
            request = urllib.request.Request(
                f"{installation.router_url}/v1/chat/completions",
                data=json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode(),
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                await asyncio.to_thread(urllib.request.urlopen, request, None, 5)
            assert refused.value.code == 503
            assert json.load(refused.value)["error"]["code"] == "no_node"
            for node in ("P0", "D0"):
                await installation.node("revive", node)
            await until(lambda: get(f"{installation.router_url}/ready")[0] == 200)

    asyncio.run(scene())


def test_a_port_in_use_ends_serve_with_one_sentence_that_names_it(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "trimtab", "serve", "--decode", "http://127.0.0.1:9", "--port", str(port)),
                *("--admin-port", str(free_port()), "--state-dir", str(tmp_path)),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
