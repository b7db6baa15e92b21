"""A router as an operator runs it, a process of its own without a control process, for what is done to processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import aiohttp
import yaml

from trimtab.installation import free_port

START_S = 60.0


@dataclass(frozen=True)
class RouterProcess:
    """`trimtab router`, serving."""

    url: str
    process: subprocess.Popen[bytes]

    def pause(self) -> None:
        """It stands still, and knows nothing of it."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def router_process(
    folder: Path,
    model: str,
    prefill: Sequence[str],
    decode: Sequence[str],
    *,
    lease_s: float,
    router: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[RouterProcess]:
    """In front of engines that run already; ended with the block."""
    port = free_port()
    config = folder / "trimtab.yaml"
    pools: dict[str, object] = {"decode": list(decode), "lease": f"{lease_s:g}s"}
    if prefill:
        pools["prefill"] = list(prefill)
    document = {
        "version": 1,
        "listen": {"host": "127.0.0.1", "port": port},
        "state_dir": str(folder / "state"),
        "models": {model: pools},
        **({"router": dict(router)} if router else {}),
    }
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trimtab", "router", str(config)], stdout=log, stderr=subprocess.STDOUT
        )
    found = RouterProcess(f"http://127.0.0.1:{port}", process)
    try:
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as http:
            while True:
                assert process.poll() is None, (folder / "router.log").read_text()
                with suppress(aiohttp.ClientError):
                    async with http.get(f"{found.url}/ready") as ready:
                        if ready.status == 200:
                            break
                await asyncio.sleep(0.05)
        yield found
    finally:
        found.go_on()
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 15.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
