"""EndpointSlices through the kubernetes client, against a server that speaks the API's HTTP.

What an API server said to this source is on a tape (`recorded/slices.json`, by `record_slices.py`;
`api_server/README.md` says what server it was): lists, watches, readiness, termination, two families, a selector that
finds a slice no longer, bookmarks, the end of a watch, 410. The tape is played back byte for byte, and the source has
to ask the same again. Refusals and outages, which a server cannot be asked for, are by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from router.membership.endpoint_slices import EndpointSlices
from router.membership.member import Member
from router.membership.source import Tell
from tests.router.membership.test_sources import Line, endpoint, slice_of

kubernetes = pytest.importorskip("kubernetes", reason="the kubernetes client is not installed (extra kubernetes)")
from router.membership import kubernetes as shell  # noqa: E402

PATH = "/apis/discovery.k8s.io/v1/namespaces/inference/endpointslices"
TAPE = Path(__file__).parent / "recorded" / "slices.json"


class FakeApi:
    """A script: lists by their documents, watches by their lines, either as text too. Without more to say, a watch
    stays open."""

    def __init__(self) -> None:
        self.lists: list[tuple[int, dict[str, Any] | str]] = []
        self.watches: list[list[dict[str, Any] | str]] = []
        self.asked: list[dict[str, str]] = []
        self.done = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if api.done.is_set():
                    self.close_connection = True
                    return
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                api.asked.append({"path": parts.path, "accept": self.headers["Accept"], **query})
                if query.get("watch"):
                    self._watch()
                else:
                    status, document = api.lists.pop(0) if len(api.lists) > 1 else api.lists[0]
                    body = _text(document).encode()
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def _watch(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):
                    if not api.watches:
                        api.done.wait(20.0)
                    for event in api.watches.pop(0) if api.watches else ():
                        line = _text(event).rstrip("\n").encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def source(self, namespace: str = "inference") -> shell.KubernetesSource:
        configuration = kubernetes.client.Configuration()
        configuration.host = f"http://127.0.0.1:{self.server.server_port}"
        configuration.retries = 0
        client = kubernetes.client.DiscoveryV1Api(kubernetes.client.ApiClient(configuration))
        return shell.KubernetesSource(client, namespace, "app=vllm", EndpointSlices())

    def stop(self) -> None:
        self.done.set()
        self.server.shutdown()
        self.server.server_close()


def _text(document: dict[str, Any] | str) -> str:
    return document if isinstance(document, str) else json.dumps(document)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    monkeypatch.setattr(shell, "AGAIN_S", 0.02)
    monkeypatch.setattr(shell, "BETWEEN_S", 0.02)
    found = FakeApi()
    yield found
    found.stop()


def listed(version: str, *slices: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, {
        "kind": "EndpointSliceList",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "items": list(slices),
    }


def versioned(version: str, item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "metadata": {**item["metadata"], "resourceVersion": version}}


def event(kind: str, version: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": versioned(version, item)}


def follow(api: FakeApi, line: Line, *states: object, namespace: str = "inference") -> None:
    """Run a source until the line has had each of the states, in order."""

    async def scene() -> None:
        task = asyncio.ensure_future(api.source(namespace).run(line.tell))
        try:
            async with asyncio.timeout(15.0):
                for state in states:
                    while not state():  # type: ignore[operator]
                        assert not task.done(), task.exception()
                        await asyncio.sleep(0.005)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(scene())


class Kept(Tell):
    """Keeps every set that was told."""

    __slots__ = ("sets",)

    def nodes(self, members: Iterable[Member], *, may_be_empty: bool = False) -> None:
        told = list(members)
        self.sets = [*getattr(self, "sets", []), [each.url for each in told]]
        super().nodes(told, may_be_empty=may_be_empty)


def test_the_recorded_traffic_of_an_api_server_gives_the_nodes_that_were_meant(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
):
    tape = json.loads(TAPE.read_text())
    monkeypatch.setattr(shell, "WATCH_S", tape["watch_s"])
    lists = [each for each in tape["exchanges"] if "watch" not in each["asked"]]
    watches = [each for each in tape["exchanges"] if "watch" in each["asked"]]
    api.lists = [(each["status"], "".join(each["lines"])) for each in lists]
    api.watches = [[line for line in each["lines"] if line.strip()] for each in watches]
    said = "".join(line for each in tape["exchanges"] for line in each["lines"])
    for kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"):
        assert f'{{"type":"{kind}"' in said, "the tape has every kind of event"
    line = Line("kubernetes")
    line.tell = kept = Kept("kubernetes", line.roster, lambda: 0.0)
    follow(api, line, lambda: line.urls == tape["expected"][-1], namespace=tape["namespace"])
    told = iter(kept.sets)
    assert all(meant in told for meant in tape["expected"]), "each set that was meant, in their order"
    assert not line.problem
    asked = [{name: value for name, value in each.items() if name not in ("path", "accept")} for each in api.asked]
    assert asked[: len(tape["exchanges"])] == [each["asked"] for each in tape["exchanges"]]
    assert {each["path"] for each in api.asked} == {each["path"] for each in tape["exchanges"]}


ONE = slice_of("d-1", "decode", endpoint("10.0.1.1"))
TWO = slice_of("d-1", "decode", endpoint("10.0.1.1"), endpoint("10.0.1.2"))


def test_a_list_and_a_watch_from_its_version_on_tell_the_nodes(api: FakeApi):
    api.lists = [listed("100", ONE)]
    api.watches = [
        [event("MODIFIED", "101", TWO), event("ADDED", "102", slice_of("p", "prefill", endpoint("10.0.0.1")))]
    ]
    line = Line("kubernetes")
    follow(api, line, lambda: len(line.urls) == 3)
    assert line.urls == ["http://10.0.0.1:8000", "http://10.0.1.1:8000", "http://10.0.1.2:8000"]
    assert not line.problem
    assert {asked["path"] for asked in api.asked} == {PATH}
    assert {asked["labelSelector"] for asked in api.asked} == {"app=vllm"}
    assert api.asked[1]["resourceVersion"] == "100"


def test_a_watch_that_ends_is_taken_up_where_it_ended(api: FakeApi):
    api.lists = [listed("100", ONE)]
    bookmark = {"type": "BOOKMARK", "object": {"kind": "EndpointSlice", "metadata": {"resourceVersion": "150"}}}
    api.watches = [[event("MODIFIED", "101", TWO), bookmark], [event("DELETED", "151", ONE)], []]
    line = Line("kubernetes")
    follow(api, line, lambda: len(line.urls) == 2, lambda: line.problem)
    assert line.problem == "it tells no nodes; its last good set stays"
    assert len(line.urls) == 2
    assert [asked.get("resourceVersion") for asked in api.asked][:3] == [None, "100", "150"]


def test_a_version_that_the_server_no_longer_knows_is_listed_anew(api: FakeApi):
    api.lists = [listed("100", ONE), listed("900", TWO)]
    gone = {
        "kind": "Status",
        "apiVersion": "v1",
        "code": 410,
        "reason": "Expired",
        "message": "too old resource version",
    }
    api.watches = [[{"type": "ERROR", "object": gone}]]
    line = Line("kubernetes")
    follow(api, line, lambda: len(line.urls) == 2)
    assert not line.problem


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_refuses_keeps_the_nodes_and_is_asked_again(api: FakeApi, status: int):
    refusal = {"kind": "Status", "apiVersion": "v1", "code": status, "message": "no"}
    api.lists = [listed("100", ONE), (status, refusal), listed("101", TWO)]
    api.watches = [[{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Gone", "message": "x"}}]]
    line = Line("kubernetes")
    follow(api, line, lambda: line.urls and not line.problem, lambda: f"answers {status}" in line.problem,
           lambda: len(line.urls) == 2 and not line.problem)  # fmt: skip


def test_a_server_that_is_gone_keeps_the_nodes(api: FakeApi):
    api.lists = [listed("100", ONE)]
    line = Line("kubernetes")

    def gone() -> bool:
        if line.urls and not api.done.is_set():
            api.stop()
        return "cannot be reached" in line.problem

    follow(api, line, gone)
    assert line.urls == ["http://10.0.1.1:8000"]
