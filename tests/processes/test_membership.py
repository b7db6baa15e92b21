"""An installation that names no node: its nodes come from a file, from heartbeats and from an operator, as real
processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.server import serve
from tests.processes.test_serve import get, until
from tests.router_http.client import ask
from trimtab.installation import free_port

pytestmark = pytest.mark.slow
zmq = pytest.importorskip("zmq", reason="pyzmq is not installed (extra heartbeats)")


def change(method: str, url: str, body: object) -> int:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return int(answer.status)


@contextlib.contextmanager
def trimtab(folder: Path, *command: str):
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "trimtab", *command], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_nodes_come_from_a_file_from_heartbeats_and_from_an_operator(tmp_path: Path):
    async def scene() -> None:
        fleet = await serve("1P_3D", LLAMA_3_1_8B_H100, base_port=0, speed=20.0)
        url, port, admin_port, heartbeats = fleet.urls, free_port(), free_port(), f"tcp://127.0.0.1:{free_port()}"
        admin = f"http://127.0.0.1:{admin_port}"
        nodes = tmp_path / "nodes.yaml"
        nodes.write_text(yaml.safe_dump({"version": 1, "prefill": [url["P0"]], "decode": [url["D0"]]}))
        config = tmp_path / "trimtab.yaml"
        document = {
            "version": 1,
            "listen": {"host": "127.0.0.1", "port": port},
            "admin": {"host": "127.0.0.1", "port": admin_port},
            "state_dir": str(tmp_path / "state"),
            "source": "emulated",
            "models": {fleet.model: {"discover": {"file": "nodes.yaml", "heartbeats": {"bind": heartbeats}}}},
        }
        config.write_text(yaml.safe_dump(document))

        def known() -> dict[str, str]:
            return {node["url"]: node["state"] for node in get(f"{admin}/api/v1/nodes")[1].get("nodes", ())}

        def page() -> str:
            with urllib.request.urlopen(f"{admin}/metrics", timeout=5) as answer:
                return str(answer.read().decode())

        async def sees(**states: str) -> None:
            wanted = {url[name]: state for name, state in states.items()}
            await until(lambda: known() == wanted)

        async def command(*words: str) -> None:
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "trimtab", "nodes", *words)
            assert await process.wait() == 0

        body = {"model": fleet.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        try:
            with trimtab(tmp_path, "serve", str(config)):
                await sees(P0="serving", D0="serving")
                with zmq.Context() as context, context.socket(zmq.DEALER) as engine:
                    engine.setsockopt(zmq.LINGER, 0)
                    engine.connect(heartbeats)
                    engine.send(json.dumps({"type": "D", "http_address": url["D1"]}).encode())
                    await sees(P0="serving", D0="serving", D1="serving")
                assert change("POST", f"{admin}/api/v1/nodes", {"url": url["D2"], "role": "decode"}) == 200
                await sees(P0="serving", D0="serving", D1="serving", D2="serving")
                await command("drain", url["D0"], "--state-dir", str(tmp_path / "state"))
                await sees(P0="serving", D0="draining", D1="serving", D2="serving")
                answer = await ask(f"http://127.0.0.1:{port}", body)
                assert answer.status == 200 and answer.route[0] == "prefill_transfer"
                await until(lambda: 'trimtab_engine_scrapes_total{node="D2",result="ok"}' in page())
                nodes.write_text("version: 1\ndecode: [nonsense]\n")
                await until(lambda: "E104" in str(get(f"{admin}/api/v1/nodes")[1]["sources"]))
                metrics = page()
                assert 'trimtab_source_up{process="router-0",source="file"} 0.0' in metrics
                assert 'trimtab_source_up{process="router-0",source="heartbeats"} 1.0' in metrics
                assert 'trimtab_node_draining{node="D0",process="router-0"} 1.0' in metrics
                assert change("DELETE", f"{admin}/api/v1/nodes", {"url": url["D2"]}) == 200
                await sees(P0="serving", D0="draining", D1="serving")
        finally:
            await fleet.close()

    asyncio.run(scene())
