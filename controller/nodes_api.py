"""Nodes over the admin API: who there is and why, nodes added by hand, drains.

    GET    /api/v1/nodes                                             nodes, their sources, and the orders in force
    POST   /api/v1/nodes        {"url", "role", "address"?, "model"?, "weight"?, "by"?}     a node more
    DELETE /api/v1/nodes        {"url", "by"?}                                   and away with it again
    POST   /api/v1/nodes/drain  {"node": name or URL, "drain": true | false, "by"?}
    GET    /internal/v1/nodes   ?after=V                             for routers: the orders if newer, else 204

The orders are a file in the state directory (`router/membership/orders.py`), so that `trimtab nodes` gives them with
this process dead. What is a change and who may make it is `app.py`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict

import msgspec
from fastapi import FastAPI, Query, Request, Response
from starlette.responses import JSONResponse

from router.errors import Code
from router.membership.orders import Added, Drained, Orders, change_orders, orders_to_json, read_orders

from .answers import body_as, refused
from .audit import AuditRow
from .loop import ControlLoop
from .status import iso

MAX_BYTES = 4096


class _Add(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    role: str
    address: str = ""
    model: str = ""
    weight: float = 1.0
    by: str = "api"


class _Remove(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    by: str = "api"


class _Drain(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    drain: bool
    by: str = "api"


def mount_nodes(app: FastAPI, loop: ControlLoop) -> None:
    """Add the routes."""
    folder = loop.config.state_dir

    def url_of(node: str) -> str:
        """Of a node's name as the status has it; a URL is its own. Raises ValueError."""
        if "://" in node:
            return node
        known = {each.id: each.url for each in loop.intake.nodes(loop.monotonic())[1]}
        if node not in known:
            raise ValueError(f"{node[:80]!r} is no node; there are {', '.join(sorted(known)) or 'none'}")
        return known[node]

    async def ordered(by: str, action: str, detail: str, change: Callable[[Orders], Orders]) -> Response:
        try:
            orders = await asyncio.to_thread(change_orders, folder, change)
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        except OSError as error:
            return refused(500, Code.INTERNAL, f"the orders could not be written to {folder}: {error.strerror}")
        loop.store.audit(AuditRow(loop.wall(), by[:200], action, detail))
        return JSONResponse({"orders": asdict(orders)})

    @app.get("/api/v1/nodes")
    async def get_nodes() -> Response:
        now_s = loop.monotonic()
        reporter, nodes = loop.intake.nodes(now_s)
        orders, problem = Orders(), ""
        try:
            orders = await asyncio.to_thread(read_orders, folder)
        except ValueError as error:
            problem = str(error)
        return JSONResponse(
            {
                "nodes_as_seen_by": reporter,
                "nodes": [asdict(node) for node in nodes],
                "sources": [asdict(source) for source in loop.intake.sources(now_s)],
                "orders": asdict(orders),
                "problem": problem,
            }
        )

    @app.post("/api/v1/nodes")
    async def add(request: Request) -> Response:
        try:
            told = await body_as(request, MAX_BYTES, _Add)
            one = Added(told.url, told.role, told.address, told.model, told.by[:200], iso(loop.wall()), told.weight)
            one.member()
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        return await ordered(told.by, "node add", f"{one.url} {one.role}", lambda orders: orders.add(one))

    @app.delete("/api/v1/nodes")
    async def remove(request: Request) -> Response:
        try:
            told = await body_as(request, MAX_BYTES, _Remove)
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        return await ordered(told.by, "node remove", told.url[:200], lambda orders: orders.remove(told.url))

    @app.post("/api/v1/nodes/drain")
    async def drain(request: Request) -> Response:
        try:
            told = await body_as(request, MAX_BYTES, _Drain)
            url = url_of(told.node)
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        if not told.drain:
            return await ordered(told.by, "node undrain", url[:200], lambda orders: orders.undrain(url))
        one = Drained(url, told.by[:200], iso(loop.wall()))
        return await ordered(told.by, "node drain", url[:200], lambda orders: orders.drain(one))

    @app.get("/internal/v1/nodes")
    async def for_routers(after: int = Query(0, ge=0)) -> Response:
        try:
            orders = await asyncio.to_thread(read_orders, folder)
        except ValueError as error:
            return refused(500, Code.INTERNAL, str(error))
        if orders.version <= after:
            return Response(status_code=204)
        return Response(orders_to_json(orders), media_type="application/json")
