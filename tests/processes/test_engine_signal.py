"""`control.signal: engine`, whole: emulated engines, their pages over HTTP, and a law in its own process that moves the
price by what they say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import numpy as np
import pytest
import yaml

from emulator.workload import CHAT, Phase, conversations
from tests.doctor.proxy import Passed, Proxy, proxied
from tests.emulator_http.harness import MODEL, Client, fleet
from trimtab.clients import Crowd
from trimtab.installation import free_port

pytestmark = pytest.mark.slow

SPEED, TTFT_S = 4.0, 0.001
"""No engine holds this TTFT, so a law that hears of it lowers the price."""


@contextlib.asynccontextmanager
async def served(folder: Path, urls: Mapping[str, str]) -> AsyncIterator[tuple[str, str]]:
    """`trimtab serve` in front of them: the router's address and the admin's."""
    port, admin_port = free_port(), free_port()
    config = {
        "version": 1,
        "listen": {"port": port},
        "admin": {"port": admin_port},
        "state_dir": str(folder / "state"),
        "source": "emulated",
        "models": {MODEL: {"prefill": [urls["P0"]], "decode": [urls["D0"]]}},
        "slos": [
            {"name": "ttft", "objective": f"p99(ttft) <= {TTFT_S * 1e3:g}ms"},
            {"name": "tpot", "objective": "p99(tpot) <= 5s"},
        ],
        "control": {"signal": "engine"},
        "router": {"drain": "1s"},
    }
    path = folder / "trimtab.yaml"
    path.write_text(yaml.safe_dump(config))
    with (folder / "serve.log").open("wb") as log:
        command = [sys.executable, "-m", "trimtab", "serve", str(path)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
    try:
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 30)


async def status(admin_url: str) -> dict[str, Any]:
    """The control process's view; empty while it does not answer."""
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with aiohttp.ClientSession() as session, session.get(f"{admin_url}/api/v1/status") as response:
            return dict(await response.json())
    return {}


async def until(admin_url: str, holds: Callable[[dict[str, Any]], bool], within_s: float) -> dict[str, Any]:
    end_s = monotonic() + within_s
    while True:
        told = await status(admin_url)
        if told.get("models") and holds(told):
            return told
        assert monotonic() < end_s, f"it did not come about: {told.get('headline')}, {told.get('engines')}"
        await asyncio.sleep(0.5)


def law(told: dict[str, Any]) -> dict[str, Any]:
    return dict(told["models"][MODEL])


async def ready(router_url: str, within_s: float = 60.0) -> None:
    end_s = monotonic() + within_s
    async with aiohttp.ClientSession() as session:
        while monotonic() < end_s:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(f"{router_url}/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.2)
    raise AssertionError("the router is not ready")


async def play(client: Client, folder: Path, urls: Mapping[str, str], look: Callable[[str], Any]) -> None:
    """Traffic, while `look(admin_url)` watches."""
    plans = conversations((Phase("x", 400.0, ((CHAT, 3.0),)),), np.random.default_rng(3))
    async with served(folder, urls) as (router_url, admin_url):
        await ready(router_url)
        crowd = asyncio.ensure_future(Crowd(router_url, client.running.model, plans, speed=SPEED).run(420.0))
        try:
            await look(admin_url)
        finally:
            crowd.cancel()
            await asyncio.gather(crowd, return_exceptions=True)


def test_the_law_moves_the_price_by_what_the_engines_say(tmp_path):
    async def story() -> None:
        async with fleet("1P_1D", speed=SPEED) as client:

            async def look(admin_url: str) -> None:
                told = await until(admin_url, lambda told: law(told)["price"] < 0.38, 90.0)
                assert told["signal"] == "engine"
                rows = {row["slo"]: row for row in told["engines"][MODEL]["slos"]}
                reading = law(told)["binding"]["ttft"]
                assert reading["value_s"] != rows["ttft"]["router_s"], "the law's reading is not the router's"
                assert rows["ttft"]["engine"]["low_s"] >= TTFT_S and rows["ttft"]["router_s"] > TTFT_S
                p99 = told["engines"][MODEL]["p99"]
                assert any(row and row["n"] >= 20 for row in p99.values()), p99
                page = await metrics(admin_url)
                for bound in ("low", "point", "high"):
                    assert f'trimtab_engine_slo_reading_seconds{{bound="{bound}",model="{MODEL}",signal="ttft"' in page
                assert f'trimtab_slo_reading_seconds{{model="{MODEL}",signal="ttft",slo="ttft"}}' in page

            await play(client, tmp_path, client.running.urls, look)

    asyncio.run(asyncio.wait_for(story(), 200.0))


def test_engines_that_do_not_tell_freeze_the_price_while_the_router_sees_all(tmp_path):
    def mute(passed: Passed) -> None:
        if passed.path == "/metrics":
            lines = passed.body.splitlines(keepends=True)
            passed.body = b"".join(line for line in lines if b"time_to_first" not in line and b"per_output" not in line)

    async def story() -> None:
        async with fleet("1P_1D", speed=SPEED) as client, contextlib.AsyncExitStack() as stack:
            urls = {}
            for name, url in client.running.urls.items():
                urls[name] = (await stack.enter_async_context(proxied(Proxy(url, reply=mute)))).url

            async def look(admin_url: str) -> None:
                def seen(told: dict[str, Any]) -> bool:
                    return any(row["value_s"] not in (None, "inf") for row in law(told)["readings"])

                told = await until(admin_url, lambda told: seen(told) and told["ticks"] >= 6, 90.0)
                assert law(told)["price"] == 0.4 and law(told)["action"] == "no_evidence"
                what = {(alarm["node"], alarm["what"]) for alarm in told["engines"][MODEL]["alarms"]}
                assert {("D0", "no time_to_first_token_seconds"), ("P0", "no time_to_first_token_seconds")} <= what
                assert told["engines"][MODEL]["slos"][0]["engine"] is None, "not zero"

            await play(client, tmp_path, urls, look)

    asyncio.run(asyncio.wait_for(story(), 200.0))


async def metrics(admin_url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{admin_url}/metrics") as response:
        return await response.text()
