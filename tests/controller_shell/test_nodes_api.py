"""Nodes over the admin API, and by the command line: added, drained, and told to routers."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from controller.app import create_app
from controller.metrics import ControlCollector
from controller.nodes_api import MAX_BYTES, mount_nodes
from controller.pin import PinFile
from controller.scheduler import Scheduler
from controller.status import status
from router.membership.orders import Orders, orders_from_json, read_orders
from router.wire import SourceView
from tests.controller_shell.reports import loop_in, report
from trimtab.cli import app as cli


@pytest.fixture
def control(tmp_path: Path) -> Iterator[tuple[TestClient, Any, Path]]:
    loop, clock = loop_in(tmp_path)
    collector = ControlCollector(loop, Scheduler(clock=clock), "test")
    app = create_app(loop, collector, CollectorRegistry(), version="test")
    mount_nodes(app, loop)
    with TestClient(app, base_url="http://127.0.0.1:9400") as client:
        yield client, loop, tmp_path


def test_a_node_is_added_drained_and_removed_and_routers_get_what_is_newer(control):
    client, loop, folder = control
    added = client.post(
        "/api/v1/nodes", json={"url": "http://10.0.0.9:8000/", "role": "decode", "weight": 2, "by": "me"}
    )
    assert added.status_code == 200, added.text
    (one,) = added.json()["orders"]["added"]
    assert (one["url"], one["role"], one["by"], one["weight"]) == ("http://10.0.0.9:8000", "decode", "me", 2.0)
    answer = client.get("/internal/v1/nodes", params={"after": 0})
    assert orders_from_json(answer.content) == read_orders(folder)
    assert client.get("/internal/v1/nodes", params={"after": 1}).status_code == 204
    drained = client.post("/api/v1/nodes/drain", json={"node": "http://10.0.0.9:8000", "drain": True})
    assert [each["url"] for each in drained.json()["orders"]["drained"]] == ["http://10.0.0.9:8000"]
    undrained = client.post("/api/v1/nodes/drain", json={"node": "http://10.0.0.9:8000", "drain": False})
    assert undrained.json()["orders"]["drained"] == []
    gone = client.request("DELETE", "/api/v1/nodes", json={"url": "http://10.0.0.9:8000"})
    assert gone.json()["orders"]["added"] == [] and gone.json()["orders"]["version"] == 4
    actions = [(row.actor, row.action) for row in loop.store.audits()]
    assert actions == [("api", "node remove"), ("api", "node undrain"), ("api", "node drain"), ("me", "node add")]


def test_a_node_may_be_named_as_the_status_names_it(control):
    client, loop, _ = control
    assert client.post("/api/v1/nodes/drain", json={"node": "D0", "drain": True}).status_code == 400
    loop.accept(report(), loop.monotonic())
    drained = client.post("/api/v1/nodes/drain", json={"node": "D0", "drain": True})
    assert [each["url"] for each in drained.json()["orders"]["drained"]] == ["http://127.0.0.1:2"]
    wrong = client.post("/api/v1/nodes/drain", json={"node": "D7", "drain": True})
    assert wrong.status_code == 400 and "there are D0, P0" in wrong.text


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("POST", "", {"url": "http://a:1", "role": "x"}, "write prefill, decode or replica"),
        ("POST", "", {"url": "http://u:secret@a:1", "role": "decode"}, "write http://HOST:PORT"),
        ("POST", "", {"url": "http://a:1"}, "role"),
        ("POST", "", {"url": "http://a:1", "role": "decode", "weight": 1000}, "write 0.01 to 100"),
        ("POST", "", {"url": "x" * MAX_BYTES, "role": "decode"}, "at most"),
        ("DELETE", "", {"url": "http://a:1"}, "was not added here"),
        ("POST", "/drain", {"node": "http://a:1", "drain": False}, "is not drained"),
        ("POST", "/drain", {"node": "http://a:1"}, "drain"),
        ("POST", "/drain", [1], "object"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_write(control, method: str, path: str, body: Any, told: str):
    client, _, folder = control
    answer = client.request(method, f"/api/v1/nodes{path}", json=body)
    assert answer.status_code == 400 and told in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert read_orders(folder) == Orders()


def test_another_site_changes_nothing(control):
    client, _, folder = control
    for changes in ({"origin": "http://evil.example"}, {"content-type": "text/plain"}):
        body = b'{"url": "http://a:1", "role": "decode"}'
        headers = {"content-type": "application/json", **changes}
        assert client.post("/api/v1/nodes", content=body, headers=headers).status_code == 403
    assert read_orders(folder) == Orders()


def test_nodes_and_sources_are_shown_with_their_state(control):
    client, loop, folder = control
    assert client.get("/api/v1/nodes").json()["nodes"] == []
    told = report()
    nodes = tuple(dataclasses.replace(node, state="draining", why="operator") for node in told.nodes)
    sources = (SourceView("file", 2, 1.5, "nodes.yaml:2:9 E104 ...; its last good set stays"),)
    loop.accept(dataclasses.replace(told, nodes=nodes, sources=sources), loop.monotonic())
    shown = client.get("/api/v1/nodes").json()
    assert [(node["id"], node["state"], node["why"]) for node in shown["nodes"]] == [
        ("P0", "draining", "operator"),
        ("D0", "draining", "operator"),
    ]
    assert shown["sources"][0]["problem"].startswith("nodes.yaml:2:9")
    whole: dict[str, Any] = status(loop, PinFile(), "test")
    assert whole["sources"] == shown["sources"] and whole["nodes"] == shown["nodes"]
    assert f"Nodes from file, router router-0: {sources[0].problem}, read 2 s ago." in whole["warnings"]
    (folder / "nodes.json").write_text("{")
    assert "holds no orders" in client.get("/api/v1/nodes").json()["problem"]
    assert client.get("/internal/v1/nodes").status_code == 500


# -- the command line --------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["nodes", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_drain_and_undrain_work_with_the_control_process_dead(tmp_path: Path):
    here = ("--state-dir", str(tmp_path))
    assert run("drain", "http://10.0.0.1:8000", *here)[0] == 0
    assert [each.url for each in read_orders(tmp_path).drained] == ["http://10.0.0.1:8000"]
    assert run("undrain", "http://10.0.0.1:8000", *here)[0] == 0
    assert run("add", "http://10.0.0.2:8000", "--role", "decode", "--weight", "0.5", *here)[0] == 0
    assert [each.weight for each in read_orders(tmp_path).added] == [0.5]
    assert run("remove", "http://10.0.0.2:8000", *here)[0] == 0
    assert read_orders(tmp_path) == Orders(4)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("drain", "D0", "--admin", "http://127.0.0.1:9"), "name the node by its URL, or give --admin"),
        (("list", "--admin", "nowhere"), "write http://HOST:PORT"),
        (("undrain", "http://a:1"), "is not drained"),
        (("remove", "http://a:1"), "was not added here"),
        (("add", "nowhere", "--role", "decode"), "write http://HOST:PORT"),
    ],
)
def test_bad_input_ends_with_one_message(tmp_path: Path, arguments: tuple[str, ...], told: str):
    where = () if arguments[0] == "list" else ("--state-dir", str(tmp_path))
    code, output = run(*arguments, *where)
    assert code == 2 and told in " ".join(output.split())


def test_a_folder_without_an_installation_is_told(tmp_path: Path):
    code, output = run("drain", "http://a:1", "--state-dir", str(tmp_path / "none"))
    assert code == 2 and "give --state-dir or --port" in " ".join(output.split())


def test_list_shows_nodes_and_sources_and_a_name_is_looked_up(control):
    client, loop, folder = control
    sources = (SourceView("dns:decode", 1, None, "d.svc: Name or service not known"),)
    loop.accept(dataclasses.replace(report(), sources=sources), loop.monotonic())
    server = uvicorn.Server(uvicorn.Config(client.app, port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        end_s = time.monotonic() + 10
        while not (server.started and server.servers) and time.monotonic() < end_s:
            time.sleep(0.01)
        admin = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        code, output = run("list", "--admin", admin)
        assert code == 0 and "D0" in output and "http://127.0.0.1:2" in output
        assert "source dns:decode: nothing yet: d.svc" in output
        assert run("drain", "D0", "--admin", admin, "--state-dir", str(folder))[0] == 0
        assert [each.url for each in read_orders(folder).drained] == ["http://127.0.0.1:2"]
    finally:
        server.should_exit = True
        thread.join(10)
