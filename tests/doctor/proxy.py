"""An emulated engine behind something that spoils it: requests and replies pass through a test's hands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web


@dataclass
class Passed:
    """A reply on its way; a test changes it."""

    path: str
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Proxy:
    """`request` may change a body on its way in, `reply` an answer on its way out."""

    engine: str
    request: Callable[[str, bytes], bytes] = lambda path, body: body
    reply: Callable[[Passed], None] = lambda passed: None
    keep_alive_s: float = 75.0
    seen: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def _pass(self, request: web.Request) -> web.Response:
        body = self.request(request.path, await request.read())
        self.seen.append((request.path, request.headers, body))
        headers = {name: request.headers[name] for name in ("Content-Type", "X-Request-Id") if name in request.headers}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.request(request.method, self.engine + request.path, data=body, headers=headers) as answer,
        ):
            kept = {name: answer.headers[name] for name in ("Content-Type", "X-Request-Id") if name in answer.headers}
            passed = Passed(request.path, answer.status, kept, await answer.read())
        self.reply(passed)
        return web.Response(status=passed.status, body=passed.body, headers=passed.headers)


@asynccontextmanager
async def proxied(proxy: Proxy) -> AsyncIterator[Proxy]:
    """It listens on the loopback while the block runs."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", proxy._pass)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, keepalive_timeout=proxy.keep_alive_s)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        await runner.cleanup()
