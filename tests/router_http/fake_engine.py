"""An engine that does what a test tells it: just enough of vLLM's face for the router, with faults by rule."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Body = dict[str, Any]
ARGUMENTS = '{"city": "Oslo"}'
"""Of every tool call; streamed by fives."""


@dataclass
class FakeEngine:
    """One node on an ephemeral loopback port.

    `fault` may take over a request: it gets the engine, the request and its body, and gives a response, or None (or an
    awaitable of either) to leave the request to the engine. A request with tools whose last message is a user's is
    answered with a call of the first tool.
    """

    name: str
    words: tuple[str, ...] = ("one ", "two ", "three ", "four")
    gap_s: float = 0.0
    fault: Callable[[FakeEngine, web.Request, Body], object] | None = None
    bodies: list[Body] = field(default_factory=list)
    raw_bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    """What it wrote into streams, write by write."""
    aborted: int = 0
    """Requests whose connection was closed before their answer was out."""
    running: int = 0
    healthy: bool = True
    engine_id: str = "engine"
    """What it says at /query, as a Mooncake bootstrap server does; empty: 404."""
    metrics: str = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="25000"} 1.0\n'
    middlewares: list[Any] = field(default_factory=list)
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def calls(self) -> int:
        """Generation requests so far."""
        return len(self.bodies)

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20, middlewares=self.middlewares)
        app.router.add_post("/v1/chat/completions", self._handle)
        app.router.add_post("/v1/completions", self._handle)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/query", self._query)
        self.add_routes(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    def add_routes(self, app: web.Application) -> None:
        """More routes, for an engine of another kind."""

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.name}]})

    async def _query(self, request: web.Request) -> web.Response:
        if not self.engine_id:
            return web.Response(status=404)
        return web.json_response({"0": {"engine_id": self.engine_id, "worker_addr": {"0": {"0": "tcp://x:1"}}}})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.raw_bodies.append(raw)
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.running += 1
        try:
            if self.fault is not None:
                taken = self.fault(self, request, body)
                if inspect.isawaitable(taken):
                    taken = await taken
                if isinstance(taken, web.StreamResponse):
                    return taken
            return await self.answer(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    def usage(self, body: Body) -> Body:
        prompt = json.dumps(body.get("messages", body.get("prompt")))
        return {
            "prompt_tokens": max(1, len(prompt) // 4),
            "completion_tokens": len(self.words),
            "total_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def handle(self, request: web.Request, body: Body) -> Body:
        """The `kv_transfer_params` of a prefill's answer; blocks hold 16 tokens."""
        prompt = self.usage(body)["prompt_tokens"]
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, -(-prompt // 16) + 1))],
            "remote_engine_id": self.name,
            "remote_request_id": f"chatcmpl-{request.headers['X-Request-Id']}-{self.calls}",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": prompt,
            "remote_blocks_expiry_time": 1782864000.1234567,
        }

    def prefilled(self, request: web.Request, body: Body, handle: object) -> web.Response:
        """A prefill's answer with that handle."""
        choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}]
        return web.json_response({"choices": choices, "usage": self.usage(body), "kv_transfer_params": handle})

    async def answer(self, request: web.Request, body: Body) -> web.StreamResponse:
        if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            return self.prefilled(request, body, self.handle(request, body))
        tool = self._tool(body)
        if not body.get("stream"):
            return web.json_response({"id": "x", "choices": [self._choice(body, tool)], "usage": self.usage(body)})
        response = await self.begin(request)
        if "messages" in body:
            await self.chunk(response, {"role": "assistant", "content": ""})
        for piece in self._pieces(body, tool):
            if self.gap_s:
                await asyncio.sleep(self.gap_s)
            await self.frame(response, {"id": "x", "choices": [piece]})
        if (body.get("stream_options") or {}).get("include_usage"):
            await self.frame(response, {"id": "x", "choices": [], "usage": self.usage(body)})
        await self.write(response, b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _tool(self, body: Body) -> str | None:
        asked = body.get("tools") and body["messages"][-1]["role"] == "user"
        return body["tools"][0]["function"]["name"] if asked else None

    def _choice(self, body: Body, tool: str | None) -> Body:
        text = "".join(self.words)
        if "messages" not in body:
            return {"index": 0, "text": text, "finish_reason": "stop"}
        if tool is None:
            return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        call = {"id": f"call-{self.calls}", "type": "function", "function": {"name": tool, "arguments": ARGUMENTS}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"index": 0, "message": message, "finish_reason": "tool_calls"}

    def _pieces(self, body: Body, tool: str | None) -> list[Body]:
        if "messages" not in body:
            return [
                {"index": 0, "text": word, "finish_reason": "stop" if at == len(self.words) - 1 else None}
                for at, word in enumerate(self.words)
            ]
        if tool is None:
            deltas: list[Body] = [{"content": word} for word in self.words]
        else:
            head = {"index": 0, "id": f"call-{self.calls}", "type": "function"}
            parts = [{**head, "function": {"name": tool, "arguments": ""}}]
            parts += [
                {"index": 0, "function": {"arguments": ARGUMENTS[at : at + 5]}} for at in range(0, len(ARGUMENTS), 5)
            ]
            deltas = [{"tool_calls": [part]} for part in parts]
        pieces = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        return [*pieces, {"index": 0, "delta": {}, "finish_reason": "stop" if tool is None else "tool_calls"}]

    async def begin(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        return response

    async def chunk(self, response: web.StreamResponse, delta: Body, reason: str | None = None) -> None:
        await self.frame(response, {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    async def frame(self, response: web.StreamResponse, value: Body) -> None:
        await self.write(response, b"data: " + json.dumps(value).encode() + b"\n\n")

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        self.sent.append(data)
        await response.write(data)
