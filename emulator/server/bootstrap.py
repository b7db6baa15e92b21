"""A P's Mooncake bootstrap server: who its engine is, for routers and for the D nodes that take from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from aiohttp import web


class Bootstrap:
    """`GET /query` on a port of its own, open as long as its node is."""

    def __init__(self, engine_id: Callable[[], str], port: int = 0) -> None:
        self._engine_id = engine_id
        self.host, self.port = "", port
        self._listener: asyncio.Server | None = None
        self._server: web.Server | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    async def open(self, host: str) -> None:
        """Listen; port 0 takes any, and keeps it. Raises OSError."""
        self._server = web.Server(self._handle, access_log=None)
        self._listener = await asyncio.get_running_loop().create_server(self._server, host, self.port)
        self.host, self.port = host, self._listener.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Its process is gone."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in self._server.connections if self._server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if (request.method, request.path) != ("GET", "/query"):
            return web.Response(status=404)
        worker = {"0": {"0": f"tcp://{self.host}:{self.port}"}}
        answer = {"0": {"engine_id": self._engine_id(), "worker_addr": worker}}
        return web.Response(body=json.dumps(answer).encode(), headers={"Content-Type": "application/json"})
