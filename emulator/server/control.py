"""The fleet's control port: who is where, who is down, and how to change that. Loopback only.

GET  /emulator          nodes with role, url and state; leases; the emulator's lag
POST /emulator/kill     {"node": "D0"}: its process dies as by SIGKILL
POST /emulator/revive   {"node": "D0"}: it is back on its port, empty
GET  /emulator/faults   the rules in force, and how many requests each has met and struck
POST /emulator/faults   {"requests": [{"node": "D0", "nth": "3", "fault": "reset"}]}: these rules instead
POST /emulator/node     {"node": "D0", "slow": "10"}: what is wrong with it from now on (`emulator/rules.py`)
POST /emulator/evict    {"node": "D0"}: its prefix cache is reset
GET  /metrics           the emulator's own metrics
"""

from __future__ import annotations

import json
from typing import Protocol

from aiohttp import web

from ..fleet import Fleet
from ..rules import Rules, condition, rule
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
    rules: Rules


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
        if where == ("GET", "/emulator/faults"):
            return _json(200, self._rules())
        if where == ("POST", "/emulator/faults"):
            return await self._replace_rules(request)
        doings = ("/emulator/kill", "/emulator/revive", "/emulator/evict", "/emulator/node")
        if request.method != "POST" or request.path not in doings:
            return _json(404, {"error": f"no {request.method} {request.path} here"})
        said = await _said(request)
        name = str(said.pop("node", None) or request.query.get("node", ""))
        node = self._running.nodes.get(name)
        if node is None:
            return _json(404, {"error": f"no node {name!r}; there are {', '.join(self._running.nodes)}"})
        if request.path.endswith("/kill"):
            node.kill()
        elif request.path.endswith("/revive"):
            await node.revive()
        elif request.path.endswith("/evict"):
            node.evict()
        else:
            try:
                node.set_condition(condition(_texts(said), node.condition))
            except ValueError as error:
                return _json(400, {"error": str(error)})
        return _json(200, {"node": name, "listening": node.listening})

    def _rules(self) -> dict[str, object]:
        rules = self._running.rules
        told = zip(rules.rules, rules.met, rules.struck, strict=True)
        return {"requests": [{"fault": r.mishap.trouble.value, "met": met, "struck": hit} for r, met, hit in told]}

    async def _replace_rules(self, request: web.BaseRequest) -> web.Response:
        listed = (await _said(request)).get("requests")
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            return _json(400, {"error": 'write {"requests": [{"fault": "reset", ...}]}'})
        try:
            self._running.rules.replace(tuple(rule(_texts(each)) for each in listed))
        except ValueError as error:
            return _json(400, {"error": str(error)})
        return _json(200, self._rules())

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


async def _said(request: web.BaseRequest) -> dict[str, object]:
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError:
        body = {}
    return body if isinstance(body, dict) else {}


def _texts(values: dict[str, object]) -> dict[str, str]:
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items()}


def _json(status: int, body: dict[str, object]) -> web.Response:
    return web.Response(status=status, body=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
