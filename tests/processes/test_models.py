"""Two models behind one `trimtab serve`, as real processes: pools, prices and objectives of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest
import yaml

from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.server import serve
from trimtab.installation import free_port

pytestmark = pytest.mark.slow


async def _json(http: aiohttp.ClientSession, url: str, body: object = None) -> tuple[int, Any]:
    method = "GET" if body is None else "POST"
    async with http.request(method, url, json=body) as response:
        return response.status, json.loads(await response.read())


def test_two_models_are_routed_judged_and_controlled_apart(tmp_path: Path):
    async def scene() -> None:
        profiles = {name: replace(LLAMA_3_1_8B_H100, model=name) for name in ("big", "small")}
        fleets = {name: await serve("1P_1D", profile, base_port=0, speed=20.0) for name, profile in profiles.items()}
        port, admin = free_port(), free_port()
        keys = tmp_path / "keys.txt"
        keys.write_text("web:first\n")
        keys.chmod(0o600)
        config = tmp_path / "trimtab.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "version": 1,
                    "listen": {"port": port},
                    "admin": {"port": admin},
                    "state_dir": str(tmp_path / "state"),
                    "source": "emulated",
                    "models": {
                        name: {"prefill": [fleet.urls["P0"]], "decode": [fleet.urls["D0"]]}
                        for name, fleet in fleets.items()
                    },
                    "slos": [{"name": "ttft", "objective": "p99(ttft) <= 2s"}],
                    "router": {"drain": "1s", "api_keys_file": "keys.txt"},
                }
            )
        )
        data, page = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
        with ExitStack() as ending, (tmp_path / "serve.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "trimtab", "serve", str(config)], stdout=log, stderr=subprocess.STDOUT
            )
            ending.callback(process.wait, 60)
            ending.callback(process.terminate)
            headers = {"Authorization": "Bearer first"}
            async with asyncio.timeout(90), aiohttp.ClientSession(headers=headers) as http:
                await _ready(http, f"{data}/ready", process, tmp_path / "serve.log")
                await _ready(http, f"{page}/health", process, tmp_path / "serve.log")
                _, models = await _json(http, f"{data}/v1/models")
                for model in ("big", "small", "small"):
                    body = {
                        "model": model,
                        "messages": [{"role": "user", "content": f"hello {model}"}],
                        "max_tokens": 4,
                    }
                    status, answer = await _json(http, f"{data}/v1/chat/completions", body)
                    assert (status, answer["model"]) == (200, model)
                status, unknown = await _json(
                    http, f"{data}/v1/chat/completions", {"model": "none", "messages": [{"role": "user"}]}
                )
                keys.write_text("web:second\n")
                began = monotonic()
                while (await _json(http, f"{data}/v1/models"))[0] != 401:
                    assert monotonic() - began < 20
                    await asyncio.sleep(0.1)
                while True:
                    _, told = await _json(http, f"{page}/api/v1/status")
                    if set(told["models"]) >= {"big", "small"} and len(told["nodes"]) == 4:
                        break
                    await asyncio.sleep(0.2)
                async with http.get(f"{page}/metrics") as response:
                    metrics = await response.text()
        log_text = (tmp_path / "serve.log").read_text()
        assert "web" not in log_text and "first" not in log_text and log_text.count("API keys in force: 1") == 2
        assert sorted(card["id"] for card in models["data"]) == ["big", "small"]
        assert (status, unknown["error"]["code"]) == (404, "model_not_found")
        assert sorted(node["id"] for node in told["nodes"]) == ["big/D0", "big/P0", "small/D0", "small/P0"]
        assert sorted(router["router"] for router in told["routers"]) == ["router-0/big", "router-0/small"]
        turns = {
            process: sum(
                float(line.split()[-1])
                for line in metrics.splitlines()
                if line.startswith("trimtab_turns_total{") and f'process="{process}"' in line
            )
            for process in ("router-0/big", "router-0/small")
        }
        assert turns == {"router-0/big": 1.0, "router-0/small": 2.0}
        for fleet in fleets.values():
            await fleet.close()

    asyncio.run(scene())


async def _ready(http: aiohttp.ClientSession, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        assert process.poll() is None, log.read_text()
        try:
            async with http.get(url) as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)
