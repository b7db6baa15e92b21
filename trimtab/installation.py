"""One installation on the loopback for a demo, a benchmark or a test: `trimtab serve` in front of engines, emulated or
real, each a process. Everything that it starts it ends.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
import yaml

from emulator.profiles import PROFILES
from router.pin import Pin, write_pin
from slos.objective import Slo
from slos.write import slo_values

START_S = 90.0
STOP_S = 15.0
PIN_S = 1.2
"""A router looks at the pin twice a second."""


class LiveError(RuntimeError):
    """The installation could not be set up; the message holds the last lines of the process that failed."""


@dataclass(slots=True)
class Installation:
    """Processes and addresses of one run. `control_url` is the emulator's, empty with real engines."""

    router_url: str
    admin_url: str
    control_url: str
    model: str
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    async def node(self, action: str, name: str) -> None:
        """Kill or revive an emulated node."""
        url = f"{self.control_url}/emulator/{action}"
        async with aiohttp.ClientSession() as session, session.post(url, json={"node": name}) as response:
            if response.status != 200:
                raise LiveError(f"the emulator would not {action} {name}: {await response.text()}")

    async def pin(self, x: float | None) -> None:
        """Fix the share of later turns that go local, or lift that; returns when the router follows."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_pin(self.folder / "state", None if x is None else Pin(x, "installation", now))
        await asyncio.sleep(PIN_S)

    async def status(self) -> Mapping[str, object]:
        """The control process's own view; empty if it does not answer."""
        try:
            timeout = aiohttp.ClientTimeout(total=2.0)
            url = f"{self.admin_url}/api/v1/status"
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                value = await response.json()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def stop(self) -> None:
        """End every process, the last started first."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


async def install(
    folder: Path,
    profile: str,
    topology: str,
    slos: Sequence[Slo],
    *,
    speed: float = 1.0,
    pin_x: float | None = None,
    observe: bool = False,
) -> Installation:
    """Start an emulated fleet, router and controller, and wait until they serve. Raises LiveError."""
    ready_file = folder / "fleet.json"
    fleet = _start(
        folder,
        "emulate",
        [topology, "--model", profile, "--port", "0", "--speed", f"{speed:g}", "--ready-file", str(ready_file)],
    )
    installation = Installation("", "", "", PROFILES[profile].model, folder, [fleet])
    try:
        await _until(ready_file.exists, fleet, folder / "emulate.log", "the emulated fleet")
        told = json.loads(ready_file.read_text())
        installation.control_url, installation.model = told["control"], told["model"]
        pools = {
            role: [url for name, url in told["urls"].items() if name.startswith(letter)]
            for letter, role in (("P", "prefill"), ("D", "decode"), ("R", "replica"))
        }
        await _serve(installation, pools, slos, source="emulated", pin_x=pin_x, tables=(), observe=observe)
    except BaseException:
        installation.stop()
        raise
    return installation


async def install_in_front(
    folder: Path,
    pools: Mapping[str, Sequence[str]],
    model: str,
    slos: Sequence[Slo],
    *,
    source: str,
    pin_x: float | None = None,
    tables: Sequence[Path] = (),
) -> Installation:
    """Router and controller in front of engines that run already: `pools` is prefill, decode, replica → URLs. Waits
    until they serve. Raises LiveError."""
    installation = Installation("", "", "", model, folder)
    try:
        await _serve(installation, pools, slos, source=source, pin_x=pin_x, tables=tables)
    except BaseException:
        installation.stop()
        raise
    return installation


async def _serve(
    installation: Installation,
    pools: Mapping[str, Sequence[str]],
    slos: Sequence[Slo],
    *,
    source: str,
    pin_x: float | None,
    tables: Sequence[Path],
    observe: bool = False,
) -> None:
    folder, port, admin_port = installation.folder, free_port(), free_port()
    config = folder / "trimtab.yaml"
    model: dict[str, object] = {role: list(urls) for role, urls in pools.items() if urls}
    if tables:
        model["table"] = [str(path.resolve()) for path in tables]
    document: dict[str, object] = {
        "version": 1,
        "listen": {"host": "127.0.0.1", "port": port},
        "admin": {"host": "127.0.0.1", "port": admin_port},
        "state_dir": str(folder / "state"),
        "source": source,
        "models": {installation.model: model},
        "slos": [slo_values(slo) for slo in slos],
        "router": {"drain": "5s"},
    }
    control = {**({} if pin_x is None else {"pin_x": pin_x}), **({"observe": True} if observe else {})}
    if control:
        document["control"] = control
    config.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    serving = _start(folder, "serve", [str(config)])
    installation.processes.append(serving)
    installation.router_url = f"http://127.0.0.1:{port}"
    installation.admin_url = f"http://127.0.0.1:{admin_port}"
    await _until_ready(installation, serving)


def _start(folder: Path, command: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{command}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "trimtab", command, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "200"},
        )


async def _until(true: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    end_s = monotonic() + START_S
    while not true():
        if process.poll() is not None or monotonic() > end_s:
            raise LiveError(f"{what} did not start:\n{_tail(log)}")
        await asyncio.sleep(0.05)


async def _until_ready(installation: Installation, process: subprocess.Popen[bytes]) -> None:
    end_s = monotonic() + START_S
    log = installation.folder / "serve.log"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0)) as session:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with (
                    session.get(f"{installation.router_url}/ready") as ready,
                    session.get(f"{installation.admin_url}/health") as control,
                ):
                    if ready.status == 200 and control.status == 200:
                        return
            if process.poll() is not None or monotonic() > end_s:
                raise LiveError(f"router and controller did not start:\n{_tail(log)}")
            await asyncio.sleep(0.1)


def _tail(log: Path) -> str:
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    return "(no output)"


def free_port() -> int:
    """A port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
