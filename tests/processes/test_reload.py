"""SLOs of real processes follow their file: on change and on SIGHUP, in router and control process, never a bad one."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from .test_serve import children, crowd_for, get, installed, until

pytestmark = pytest.mark.slow


def document(admin_url: str) -> dict[str, Any]:
    return get(f"{admin_url}/api/v1/status")[1]


def rows(admin_url: str) -> dict[str, dict[str, Any]]:
    return {row["slo"]: row for row in get(f"{admin_url}/api/v1/slos")[1].get("slos", [])}


def edit(path: Path, change) -> None:
    """As an editor does: a new file in the place of the old one."""
    whole = yaml.safe_load(path.read_text("utf-8"))
    change(whole)
    partial = path.with_suffix(".new")
    partial.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
    partial.replace(path)


def test_an_edited_file_is_followed_by_all_processes_and_a_bad_one_by_none(tmp_path: Path):
    async def scene() -> None:
        async with installed(tmp_path) as installation:
            admin, config = installation.admin_url, tmp_path / "trimtab.yaml"
            supervisor = installation.processes[-1].pid
            crowd = crowd_for(installation, 200.0, 3.0)
            running = asyncio.ensure_future(crowd.run(240.0))
            try:
                await until(lambda: rows(admin).get("tpot", {}).get("valid", 0) >= 20)
                pids = children(installation)
                before = document(admin)["declaration"]

                def change(whole: dict[str, Any]) -> None:
                    whole["slos"][0]["objective"] = "p99(ttft) <= 1234ms"
                    whole["slos"].append({"name": "answers", "objective": "success >= 99%"})

                kept = rows(admin)["tpot"]["valid"]
                edit(config, change)
                await until(lambda: document(admin)["declaration"]["reloads"] == 1)
                found = rows(admin)
                ttft = found["later-ttft"]
                assert ttft["threshold_s"] == 1.234
                assert found["tpot"]["valid"] >= kept, "what means the same goes on counting"
                revisions = document(admin)["declaration"]["revisions"]
                assert revisions["tpot"] == before["revisions"]["tpot"]
                assert revisions["later-ttft"] != before["revisions"]["later-ttft"]
                # The router counts by the new file too: its counts of the new SLO and of the changed one arrive.
                await until(lambda: rows(admin)["answers"]["valid"] > 0 and rows(admin)["later-ttft"]["valid"] > 0)
                assert not [each for each in document(admin)["warnings"] if "another version" in each]

                edit(config, lambda whole: whole["slos"][0].update(objective="p99(ttft) <= 1"))
                await until(lambda: document(admin)["declaration"]["failed_at_s"] is not None)
                told = document(admin)
                (problem,) = told["declaration"]["problems"]
                assert "E203" in problem and "write 1s" in problem
                assert [each for each in told["warnings"] if "stay" in each]
                assert rows(admin)["later-ttft"]["threshold_s"] == 1.234
                log = (tmp_path / "serve.log").read_text()
                await until(lambda: (tmp_path / "serve.log").read_text().count("E203") >= 2)

                def mend(whole: dict[str, Any]) -> None:
                    whole["slos"][0]["objective"] = "p99(ttft) <= 777ms"

                edit(config, mend)
                os.kill(supervisor, signal.SIGHUP)
                await until(lambda: rows(admin)["later-ttft"]["threshold_s"] == 0.777)
                assert document(admin)["declaration"]["problems"] == []
                assert children(installation) == pids, "nobody was started again"
                log = (tmp_path / "serve.log").read_text()
                assert "later-ttft is judged exactly from now on" in log

                # A control process that is started again goes on from the file, not from the first declaration.
                os.kill(pids["control"], signal.SIGKILL)
                await until(lambda: children(installation).get("control") not in (None, pids["control"]))
                await until(lambda: rows(admin).get("later-ttft", {}).get("threshold_s") == 0.777)
                await until(lambda: rows(admin)["answers"]["valid"] > 0)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())


WAITING = """
import asyncio
from trimtab.reload import on_hangup

async def wait():
    with on_hangup(lambda: print("READ", flush=True)):
        print("READY", flush=True)
        await asyncio.sleep(30)

asyncio.run(wait())
"""


def test_a_terminal_that_closes_ends_the_process_and_a_hangup_from_elsewhere_does_not():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", WAITING])
    said = b""
    while b"READY" not in said:
        said += os.read(terminal, 1024)
    os.kill(pid, signal.SIGHUP)
    while b"READ\r\n" not in said:
        said += os.read(terminal, 1024)
    os.close(terminal)
    for _ in range(200):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail("it outlived its terminal")
    assert os.WTERMSIG(status) == signal.SIGTERM
