"""The fleet's control port: who is where, who is down, and how to change that. Loopback only.

    GET  /emulator          nodes with role, url and state; leases; the emulator's lag
    POST /emulator/kill     {"node": "D0"}: its process dies as by SIGKILL
    POST /emulator/revive   {"node": "D0"}: it is back on its port, empty
    GET  /metrics           the emulator's own metrics

Faults by rule (the nth request, a header, a delay) will be further paths here.
"""

from __future__ import annotations

import json
from typing import Protocol

from aiohttp import web

from ..fleet import Fleet
from .clock import WallClock
from .exposition import CONTENT_TYPE, lag_page
from .lag import Lag
from .node import Node

LOOPBACK = "127.0.0.1"


class Controlled(Protocol):
    """A fleet that runs."""

    nodes: dict[str, Node]
    fleet: Fleet
    clock: WallClock
    lag: Lag


class Control:
    """Answers on the control port."""

    def __init__(self, running: Controlled) -> None:
        self._running = running

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        where = (request.method, request.path)
        if where == ("GET", "/emulator"):
            return _json(200, self._state())
        if where == ("GET", "/metrics"):
            return web.Response(body=self._metrics().encode(), headers={"Content-Type": CONTENT_TYPE})
        if where == ("GET", "/health"):
            return web.Response()
        if where not in (("POST", "/emulator/kill"), ("POST", "/emulator/revive")):
            return _json(404, {"error": f"no {request.method} {request.path} here"})
        name = await _node_name(request)
        node = self._running.nodes.get(name)
        if node is None:
            return _json(404, {"error": f"no node {name!r}; there are {', '.join(self._running.nodes)}"})
        if request.path.endswith("/kill"):
            node.kill()
        else:
            await node.revive()
        return _json(200, {"node": name, "listening": node.listening})

    def _state(self) -> dict[str, object]:
        running = self._running
        with running.clock:
            nodes = {
                name: {
                    "role": node.role.value,
                    "url": node.url,
                    "listening": node.listening,
                    "epoch": running.fleet.engines[name].epoch,
                    "running": running.fleet.engines[name].running,
                    "waiting": running.fleet.engines[name].waiting,
                    "kv_usage": running.fleet.engines[name].kv_usage,
                    "aborted": node.aborted,
                }
                for name, node in running.nodes.items()
            }
        return {
            "nodes": nodes,
            "speed": running.clock.speed,
            "behind": running.lag.behind,
            "lag_p99_s": running.lag.p99_s,
            **{name.removeprefix("emulator_"): number for name, number in self._numbers().items()},
        }

    def _metrics(self) -> str:
        return lag_page(self._running.lag, self._running.clock.speed, self._numbers())

    def _numbers(self) -> dict[str, float]:
        fleet = self._running.fleet
        return {
            "emulator_aborted_requests_total": sum(node.aborted for node in self._running.nodes.values()),
            "emulator_open_leases": fleet.open_leases,
            "emulator_leases_expired_total": fleet.leases_expired,
            "emulator_poisoned_reads_total": fleet.poisoned_reads,
            "emulator_transferred_tokens_total": fleet.transferred_tokens,
        }


async def _node_name(request: web.BaseRequest) -> str:
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError:
        body = {}
    named = body.get("node") if isinstance(body, dict) else None
    return str(named or request.query.get("node", ""))


def _json(status: int, body: dict[str, object]) -> web.Response:
    return web.Response(status=status, body=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
