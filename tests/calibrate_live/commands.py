"""`trimtab` as processes: an emulated fleet, a calibration of a fleet, and a router that serves with the table."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from tests.router_http.client import Answer, ask, chat
from trimtab.installation import free_port

START_S = 60.0


def trimtab(*arguments: object, log: Path) -> subprocess.Popen[bytes]:
    """The command, started; what it prints goes into `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "trimtab", *map(str, arguments)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "200"},
        )


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process, gently first."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def emulated(topology: str, folder: Path) -> Iterator[dict[str, str]]:
    """A fleet on free ports; its urls by node."""
    ready = folder / "ready.json"
    process = trimtab("emulate", topology, "--port", 0, "--ready-file", ready, log=folder / "emulate.log")
    try:
        waited(ready.exists, process)
        yield json.loads(ready.read_text())["urls"]
    finally:
        ended(process)


def live(prefill: Sequence[str], decode: Sequence[str], *more: object) -> tuple[object, ...]:
    """The arguments of a calibration of these nodes."""
    nodes = [("--prefill", url) for url in prefill] + [("--decode", url) for url in decode]
    return ("calibrate", "--live", *(word for pair in nodes for word in pair), *more)


@contextmanager
def serving(prefill: Sequence[str], decode: Sequence[str], table: Path, folder: Path) -> Iterator[str]:
    """`trimtab serve` with that table; the router's address."""
    port, admin = free_port(), free_port()
    nodes = [("--prefill", url) for url in prefill] + [("--decode", url) for url in decode]
    process = trimtab(
        "serve",
        *(word for pair in nodes for word in pair),
        *("--table", table, "--port", port, "--admin-port", admin, "--state-dir", folder / "state"),
        log=folder / "serve.log",
    )
    try:
        waited(lambda: answers(f"http://127.0.0.1:{port}/ready"), process)
        yield f"http://127.0.0.1:{port}"
    finally:
        ended(process)


def reason(url: str, model: str, session: str) -> str:
    """Why the second turn of a conversation went where it went."""
    first = turn(url, model, session, "a first question " * 12)
    return turn(url, model, session, "a first question " * 12, first.text, "and a second").headers["x-trimtab-reason"]


def turn(url: str, model: str, session: str, *texts: str) -> Answer:
    """One answered turn."""
    headers = {"Content-Type": "application/json", "X-Session-ID": session}
    answer = asyncio.run(ask(url, chat(*texts, model=model, max_tokens=16), headers=headers))
    assert answer.status == 200, answer
    return answer


def waited(for_it: object, process: subprocess.Popen[bytes], within_s: float = START_S) -> None:
    """Return once `for_it()` holds; fails if the process ends before or takes too long."""
    assert callable(for_it)
    end_s = monotonic() + within_s
    while not for_it():
        assert process.poll() is None, f"ended with {process.returncode}"
        assert monotonic() < end_s, "took too long"
        sleep(0.1)


def answers(url: str) -> bool:
    """Whether there is a 200."""
    with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2) as response:
        return bool(response.status == 200)
    return False
