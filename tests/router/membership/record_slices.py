"""Records what an API server says to `KubernetesSource`, for `test_kubernetes.py`: a proxy between the two keeps every
request and every answer, while this script changes EndpointSlices as their controller would.

    python -m tests.router.membership.record_slices http://127.0.0.1:8001 "kube-apiserver 1.36" \\
        tests/router/membership/recorded/slices.json

The address is that of an API server without TLS and users: `kubectl proxy`, or the one of `api_server/README.md`. The
slices are in a namespace of their own, which has to be there and has no other slices with the label `app=vllm`.

Only one thing is not as the client asked: so that the server has forgotten a version (410), the last watch is sent on
with version 1. The tape says so (`sent`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import kubernetes

from router.membership import kubernetes as shell
from router.membership.endpoint_slices import EndpointSlices
from tests.router.membership.test_sources import Line

NAMESPACE = "trimtab-recording"
PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
WATCH_S = 6
"""Of the recorded watches; a bookmark comes some two seconds before their end."""
MANAGED = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io", "app": "vllm"}


class Proxy:
    """Passes GETs on and keeps them. `forget`: the next watch is sent on with version 1."""

    def __init__(self, server: str) -> None:
        self.server = urlsplit(server)
        self.tape: list[dict[str, Any]] = []
        self.forget = False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy.pass_on(self)

            def log_message(self, *arguments: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def pass_on(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        asked = dict(parse_qsl(parts.query))
        sent = asked
        if "watch" in asked and self.forget:
            self.forget, sent = False, asked | {"resourceVersion": "1"}
        kept: dict[str, Any] = {"path": parts.path, "asked": asked, **({"sent": sent} if sent != asked else {})}
        connection = http.client.HTTPConnection(self.server.hostname or "", self.server.port or 80)
        connection.request("GET", f"{parts.path}?{urlencode(sent)}", headers={"Accept": request.headers["Accept"]})
        answer = connection.getresponse()
        kept |= {"status": answer.status, "content_type": answer.headers["Content-Type"], "lines": []}
        self.tape.append(kept)
        request.send_response(answer.status)
        request.send_header("Content-Type", kept["content_type"])
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        with contextlib.suppress(OSError):
            while line := answer.readline():
                kept["lines"].append(line.decode())
                request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            request.wfile.write(b"0\r\n\r\n")
        connection.close()


class Cluster:
    """Writes slices, as the controller of EndpointSlices does."""

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)

    def put(self, name: str, role: str, *pods: tuple[str, bool, bool], family: str = "IPv4", **labels: str) -> None:
        """Create or replace a slice. `pods`: (number, ready, terminating)."""
        known = self._call("GET", f"/{name}")
        version = known["metadata"].get("resourceVersion") if known["kind"] == "EndpointSlice" else None
        metadata: dict[str, Any] = {"name": name, "labels": {**MANAGED, "trimtab.dev/role": role} | labels}
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata | ({"resourceVersion": version} if version else {}),
            "addressType": family,
            "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
            "endpoints": [_endpoint(*pod, family) for pod in pods],
        }
        self._call("PUT" if version else "POST", f"/{name}" if version else "", body)

    def delete(self, name: str) -> None:
        self._call("DELETE", f"/{name}")

    def _call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(self._server.hostname or "", self._server.port or 80)
        data = None if body is None else json.dumps(body)
        connection.request(method, PATH + path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        if answer.status >= 400 and not (method in ("GET", "DELETE") and answer.status == 404):
            sys.exit(f"{method} {path}: {answer.status} {found.get('message')}")
        return found


def _endpoint(number: str, ready: bool, terminating: bool, family: str) -> dict[str, Any]:
    return {
        "addresses": [f"10.0.1.{number}" if family == "IPv4" else f"fd00::{number}"],
        "conditions": {"ready": ready, "serving": ready or terminating, "terminating": terminating},
        "nodeName": f"worker-{number}",
        "targetRef": {"kind": "Pod", "name": f"vllm-{number}", "namespace": NAMESPACE, "uid": f"uid-{number}"},
        "zone": "a",
    }


def decoding(*numbers: int) -> list[str]:
    return [f"http://10.0.1.{number}:8000" for number in numbers]


async def record(server: str) -> dict[str, Any]:
    """The whole scene. What is expected after each change is what this script means by it."""
    proxy, cluster, line = Proxy(server), Cluster(server), Line("kubernetes")
    shell.WATCH_S = WATCH_S
    configuration = kubernetes.client.Configuration()
    configuration.host = proxy.url
    api = kubernetes.client.DiscoveryV1Api(kubernetes.client.ApiClient(configuration))
    for name in ("d-v4", "d-v6", "p-v4", "other"):
        cluster.delete(name)
    up, out, ends = (True, False), (False, False), (False, True)
    expected: list[list[str]] = []

    def watches() -> int:
        return sum("watch" in each["asked"] for each in proxy.tape)

    async def until(so: Callable[[], object]) -> None:
        async with asyncio.timeout(4 * WATCH_S):
            while not so():
                await asyncio.sleep(0.05)

    async def told(urls: list[str]) -> None:
        await until(lambda: line.urls == urls)
        expected.append(urls)

    cluster.put("d-v4", "decode", ("1", *up), ("2", *out))
    cluster.put("other", "decode", ("9", *up), app="another")
    source = asyncio.ensure_future(shell.KubernetesSource(api, NAMESPACE, "app=vllm", EndpointSlices()).run(line.tell))
    try:
        await told(decoding(1))
        cluster.put("d-v4", "decode", ("1", *up), ("2", *up))
        await told(decoding(1, 2))
        cluster.put("p-v4", "prefill", ("7", *up))
        await told(decoding(1, 2, 7))
        cluster.put("d-v6", "decode", ("1", *up), ("2", *up), family="IPv6")
        cluster.put("d-v4", "decode", ("1", *up), ("2", *ends))
        cluster.put("d-v6", "decode", ("1", *up), ("2", *ends), family="IPv6")
        await told(decoding(1, 7))
        cluster.put("p-v4", "prefill", ("7", *up), app="another")  # the selector finds it no longer
        await told(decoding(1))
        cluster.delete("p-v4")
        before = watches()
        await until(lambda: watches() > before)
        cluster.put("d-v4", "decode", ("1", *up), ("3", *up))
        await told(decoding(1, 3))
        proxy.forget = True
        before = watches()
        await until(lambda: watches() > before + 1)  # the one that fails, and the one after the list
        cluster.put("d-v4", "decode", ("3", *up))
        cluster.delete("d-v6")
        await told(decoding(3))
    finally:
        source.cancel()
        await asyncio.gather(source, return_exceptions=True)
    return {"watch_s": WATCH_S, "namespace": NAMESPACE, "expected": expected, "exchanges": proxy.tape}


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="http://HOST:PORT of an API server")
    parser.add_argument("what", help="what it is, for the tape")
    parser.add_argument("tape", type=Path)
    given = parser.parse_args()
    tape = {"recorded_from": given.what, **asyncio.run(record(given.server))}
    given.tape.write_text(json.dumps(tape, indent=1) + "\n")
    print(f"{len(tape['exchanges'])} exchanges, {sum(len(each['lines']) for each in tape['exchanges'])} lines")


if __name__ == "__main__":
    main()
