"""A live run: an emulated fleet, router and controller as real processes on the loopback, and clients in
front of them.

Everything that it starts it ends. The fleet's clock may run `speed` times as fast as the wall's; all times
here are engine seconds.
"""

from __future__ import annotations

import asyncio
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
from tempfile import TemporaryDirectory
from time import monotonic

import aiohttp
import yaml

from emulator.profiles import PROFILES
from slos.objective import Slo

from .clients import Crowd, SeenTurn
from .scenarios import Scenario
from .score import RunScore, score
from .simulate import Unfinished

START_S = 30.0
STOP_S = 15.0
SAY_S = 5.0


class LiveError(RuntimeError):
    """The live run could not be set up; the message holds the last lines of the process that failed."""


@dataclass(slots=True)
class Installation:
    """Processes and addresses of one run."""

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
) -> Installation:
    """Start fleet, router and controller, and wait until they serve. Raises LiveError."""
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
        port, admin_port = free_port(), free_port()
        config = folder / "trimtab.yaml"
        config.write_text(_config(told["urls"], told["model"], slos, port, admin_port, folder, pin_x), encoding="utf-8")
        serving = _start(folder, "serve", [str(config)])
        installation.processes.append(serving)
        installation.router_url = f"http://127.0.0.1:{port}"
        installation.admin_url = f"http://127.0.0.1:{admin_port}"
        await _until_ready(installation, serving)
    except BaseException:
        installation.stop()
        raise
    return installation


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What came of it."""

    score: RunScore
    turns: tuple[SeenTurn, ...]
    unfinished: int
    wall_s: float
    page_url: str


async def run_live(scenario: Scenario, seed: int, say: Callable[[str], None], *, keep_page: bool = True) -> LiveRun:
    """Play a scenario once, with its faults, in front of real sockets."""
    with TemporaryDirectory(prefix="trimtab-live-") as folder:
        installation = await install(Path(folder), scenario.profile, scenario.topology, scenario.slos)
        try:
            say(f"status page: {installation.admin_url}/    clients: {installation.router_url}/v1")
            plans = scenario.conversations(seed)
            crowd = Crowd(installation.router_url, installation.model, plans)
            began = monotonic()
            faults = asyncio.ensure_future(_faults(scenario, installation, say))
            talk = asyncio.ensure_future(_talk(scenario, installation, crowd, say))
            try:
                await crowd.run(scenario.duration_s)
                late = [Unfinished(turn, sent_s, None) for (_, turn), sent_s in crowd.left_waiting]
                return LiveRun(
                    score(scenario, crowd.turns, late, ()),
                    tuple(crowd.turns),
                    len(late),
                    monotonic() - began,
                    installation.admin_url,
                )
            finally:
                for task in (faults, talk):
                    task.cancel()
                await asyncio.gather(faults, talk, return_exceptions=True)
        finally:
            installation.stop()


async def _faults(scenario: Scenario, installation: Installation, say: Callable[[str], None]) -> None:
    began, at_s = monotonic(), 0.0
    out: tuple[str, ...] = ()
    for phase in scenario.phases:
        await asyncio.sleep(max(0.0, began + at_s - monotonic()))
        for node in out:
            await installation.node("revive", node)
        for node in phase.out:
            await installation.node("kill", node)
        out = phase.out
        say(f"-- {phase.label}, {phase.duration_s:.0f} s --")
        at_s += phase.duration_s


async def _talk(scenario: Scenario, installation: Installation, crowd: Crowd, say: Callable[[str], None]) -> None:
    """A line every few seconds that says in plain words what is going on."""
    while True:
        await asyncio.sleep(SAY_S)
        status = await installation.status()
        headline = status.get("headline", "the control process does not answer; the router goes on alone")
        recent = [turn for turn in crowd.turns if turn.turn > 1 and turn.accepted_s > crowd.now_s - 30]
        local = f", {sum(turn.went_local for turn in recent) / len(recent):.0%} local" if recent else ""
        say(f"{crowd.now_s:4.0f} s  {headline} {len(crowd.turns)} turns, {len(crowd.waiting)} waiting{local}")


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


def _config(
    urls: Mapping[str, str],
    model: str,
    slos: Sequence[Slo],
    port: int,
    admin_port: int,
    folder: Path,
    pin_x: float | None,
) -> str:
    pools = {
        role: [url for name, url in urls.items() if name.startswith(letter)]
        for letter, role in (("P", "prefill"), ("D", "decode"), ("R", "replica"))
    }
    document: dict[str, object] = {
        "version": 1,
        "listen": {"host": "127.0.0.1", "port": port},
        "admin": {"host": "127.0.0.1", "port": admin_port},
        "state_dir": str(folder / "state"),
        "source": "emulated",
        "models": {model: {role: nodes for role, nodes in pools.items() if nodes}},
        "slos": [_slo(slo) for slo in slos],
        "router": {"drain": "5s"},
    }
    if pin_x is not None:
        document["control"] = {"pin_x": pin_x}
    return yaml.safe_dump(document, sort_keys=False)


def _slo(slo: Slo) -> dict[str, object]:
    entry: dict[str, object] = {"name": slo.name, "signal": slo.signal.value, "percent": round(slo.objective * 100, 6)}
    if slo.threshold_s is not None:
        entry["max"] = f"{slo.threshold_s * 1e3:g}ms"
    if slo.match.turn_min > 1:
        entry["match"] = {"turn": f">={slo.match.turn_min}"}
    return entry


def free_port() -> int:
    """A port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
