"""The whole process on real sockets: reports in, policies out, a crash, a stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from router.wire import Report, report_to_json
from tests.controller_shell.reports import config, report, turns
from trimtab.control import Control, run_control
from trimtab.processes import StartError

SLOW_D = turns(60, tpot_s=0.09)


@contextlib.asynccontextmanager
async def running(
    state_dir: Path, extend: Callable[[Control], None] | None = None, **changes: object
) -> AsyncIterator[tuple[str, Control, asyncio.Event]]:
    """A control process inside this one: (url, parts, the event that stops it)."""
    stop, made = asyncio.Event(), asyncio.Queue[Control]()

    def extended(control: Control) -> None:
        if extend is not None:
            extend(control)
        made.put_nowait(control)

    settings = config(state_dir, **{"tick_s": 0.1, **changes})
    task = asyncio.create_task(run_control(settings, extend=extended, stop=stop))
    try:
        control = await asyncio.wait_for(made.get(), 10)
        await asyncio.wait_for(control.listening.wait(), 10)
        yield f"http://127.0.0.1:{control.port}", control, stop
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)


async def send(session: aiohttp.ClientSession, url: str, sent: Report) -> int:
    async with session.post(f"{url}/internal/v1/turns", data=report_to_json(sent)) as response:
        assert response.status == 200, await response.text()
        return int((await response.json())["accepted_seq"])


def test_a_router_gets_the_price_that_its_turns_call_for(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (url, control, _), aiohttp.ClientSession() as session:
            poll = asyncio.create_task(session.get(f"{url}/internal/v1/policy?after=1"))
            await asyncio.sleep(0.05)
            assert await send(session, url, report(1, records=SLOW_D)) == 1
            response = await asyncio.wait_for(poll, 5)
            wire = await response.json()
            weights = wire["arms"]["main"]["model_weights"]["m"]
            assert wire["version"] >= 2 and weights["w_tpot"] / weights["w_ttft"] > 0.4
            async with session.get(f"{url}/") as page:
                assert page.status == 200
            async with session.get(f"{url}/metrics") as metrics:
                text = await metrics.text()
                assert "process_resident_memory_bytes" in text and 'trimtab_control_info{law="z_integral"' in text
            assert control.loop.ticks > 0

    asyncio.run(scene())


def test_a_stop_lets_pollers_go_and_leaves_everything_on_disk(tmp_path: Path) -> None:
    async def scene() -> None:
        closed: list[str] = []

        async def close() -> None:
            closed.append("yes")

        def extend(control: Control) -> None:
            control.closing.append(close)

        async with aiohttp.ClientSession() as session:
            async with running(tmp_path, extend) as (url, control, stop):
                await send(session, url, report(1, records=SLOW_D))
                await asyncio.sleep(0.25)
                poll = asyncio.create_task(session.get(f"{url}/internal/v1/policy?after=999"))
                await asyncio.sleep(0.1)
                begun = time.monotonic()
                stop.set()
                assert (await asyncio.wait_for(poll, 3)).status == 204
                last = control.loop.publication
            assert time.monotonic() - begun < 3
            assert closed == ["yes"] and last.version > 1
            async with running(tmp_path) as (_, control, _):
                assert control.loop.publication.version == last.version + 1
                before, after = last.arms["main"].model_weights, control.loop.policy.model_weights
                assert after == before
                assert control.store.series(0.0)

    asyncio.run(scene())


def test_other_parts_join_with_jobs_and_observers(tmp_path: Path) -> None:
    async def scene() -> None:
        seen, ran = [], []

        async def job() -> None:
            ran.append(1)

        def extend(control: Control) -> None:
            control.scheduler.add(("scrape", 0.1, job))
            control.loop.observers.append(lambda now_s, outputs, counts: seen.append(counts))

        async with running(tmp_path, extend):
            await asyncio.sleep(0.3)
        assert ran and seen and seen[0].keys() == {"later-ttft", "tpot"}

    asyncio.run(scene())


def test_a_second_process_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path):
            with pytest.raises(StartError, match=f"in use by another control process \\(pid {os.getpid()}\\)"):
                await run_control(config(tmp_path), stop=asyncio.Event())

    asyncio.run(scene())


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "a") as (_, control, _):
            with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{control.port}"):
                await run_control(config(tmp_path / "b", port=control.port), stop=asyncio.Event())

    asyncio.run(scene())


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.controller_shell.reports import config
from trimtab.control import run_control

tasks = []

def extend(control):
    async def tell():
        await control.listening.wait()
        print(control.port, flush=True)
    tasks.append(asyncio.get_running_loop().create_task(tell()))

asyncio.run(run_control(config(Path(sys.argv[1]), tick_s=0.1), extend=extend))
"""


class Child:
    """A control process of its own, to be killed."""

    def __init__(self, state_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(state_dir)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        code = self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def test_kill_9_costs_no_jump_and_sigterm_ends_cleanly(tmp_path: Path) -> None:
    async def scene() -> None:
        version = 1
        async with aiohttp.ClientSession() as session:

            async def policy(url: str, after: int) -> tuple[int, float]:
                async with session.get(f"{url}/internal/v1/policy?after={after}") as response:
                    assert response.status == 200
                    wire = await response.json()
                weights = wire["arms"]["main"]["model_weights"]["m"]
                return wire["version"], weights["w_tpot"] / weights["w_ttft"]

            with Child(tmp_path) as child:
                for seq in range(1, 9):
                    await send(session, child.url, report(seq, records=SLOW_D, version=version))
                    version, price = await policy(child.url, version)
                assert child.end(signal.SIGKILL) == -signal.SIGKILL
            with Child(tmp_path) as child:
                version_after, price_after = await policy(child.url, 0)
                assert version_after >= version
                assert price > 0.45 and abs(price_after / price - 1) < 0.1, "one step of the law at most"
                # The router tells what it acts on; had the last publication not reached the disk, it is taken back.
                said = report(9, version=version, prices={"m": price})
                assert await send(session, child.url, said) == 9
                version_now, price_now = await policy(child.url, version)
                assert version_now > version and abs(price_now / price - 1) < 0.1
                assert child.end(signal.SIGTERM) == 0

    asyncio.run(scene())
