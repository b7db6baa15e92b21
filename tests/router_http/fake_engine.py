"""An engine that does what a test tells it: just enough of vLLM's face for the router, with faults by rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class FakeEngine:
    """One node on an ephemeral loopback port. `fault` may take over a request: it gets the engine, the request and its body."""

    name: str
    words: tuple[str, ...] = ("one ", "two ", "three ", "four")
    gap_s: float = 0.0
    fault: Callable[[FakeEngine, web.Request, dict], object] | None = None
    bodies: list[dict] = field(default_factory=list)
    raw_bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    aborted: int = 0
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._handle)
        app.router.add_post("/v1/completions", self._handle)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, shutdown_timeout=0.1)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text='vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="25000"} 1.0\n')

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m"}]})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.raw_bodies.append(raw)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        try:
            if self.fault is not None:
                taken = self.fault(self, request, body)
                if asyncio.iscoroutine(taken):
                    taken = await taken
                if taken is not None:
                    return taken  # type: ignore[return-value]
            return await self.answer(request, body)
        except asyncio.CancelledError:
            self.aborted += 1
            raise

    def usage(self, body: dict) -> dict:
        prompt = json.dumps(body.get("messages", body.get("prompt")))
        return {
            "prompt_tokens": max(1, len(prompt) // 4),
            "completion_tokens": len(self.words),
            "total_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    async def answer(self, request: web.Request, body: dict) -> web.StreamResponse:
        params = body.get("kv_transfer_params") or {}
        if params.get("do_remote_decode"):
            handle = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [list(range(1, 400))],
                "remote_engine_id": self.name,
                "remote_request_id": f"chatcmpl-{request.headers['X-Request-Id']}-0",
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
                "remote_num_tokens": 9,
            }
            choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}]
            return web.json_response({"choices": choices, "usage": self.usage(body), "kv_transfer_params": handle})
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(self.words)}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            return web.json_response({"id": "x", "choices": choices, "usage": self.usage(body)})
        response = await self.begin(request)
        await self.chunk(response, {"role": "assistant", "content": ""})
        for word in self.words:
            if self.gap_s:
                await asyncio.sleep(self.gap_s)
            await self.chunk(response, {"content": word})
        await self.chunk(response, {}, "stop")
        if (body.get("stream_options") or {}).get("include_usage"):
            await self.frame(response, {"id": "x", "choices": [], "usage": self.usage(body)})
        await self.write(response, b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def begin(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        return response

    async def chunk(self, response: web.StreamResponse, delta: dict, reason: str | None = None) -> None:
        await self.frame(response, {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    async def frame(self, response: web.StreamResponse, value: dict) -> None:
        await self.write(response, b"data: " + json.dumps(value).encode() + b"\n\n")

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        self.sent.append(data)
        await response.write(data)
