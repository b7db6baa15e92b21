"""What goes wrong with an engine, as rules for `FakeEngine.fault`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count

import aiohttp
from aiohttp import web

from .fake_engine import Body, FakeEngine

Fault = Callable[[FakeEngine, web.Request, Body], Awaitable[web.StreamResponse | None]]
Spoil = Callable[[Body], Body]
DONE = b"data: [DONE]\n\n"


def is_prefill(body: Body) -> bool:
    return bool((body.get("kv_transfer_params") or {}).get("do_remote_decode"))


def answers(status: int, body: object = None, content_type: str = "application/json") -> Fault:
    """That status; a body that is no bytes goes out as JSON."""

    async def fault(engine: FakeEngine, request: web.Request, _: Body) -> web.StreamResponse:
        value = {"error": {"message": f"{engine.name} says {status}", "code": status}} if body is None else body
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return web.Response(status=status, body=data, content_type=content_type)

    return fault


def hangs() -> Fault:
    """No answer, until the connection is closed."""

    async def fault(engine: FakeEngine, request: web.Request, _: Body) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return fault


def breaks() -> Fault:
    """The connection is reset before the headers."""

    async def fault(engine: FakeEngine, request: web.Request, _: Body) -> web.StreamResponse:
        _reset(request)
        return web.Response()

    return fault


def hands_over(**changes: object) -> Fault:
    """A prefill's answer whose handle has these values; `...` leaves one out."""

    async def fault(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse:
        handle = {**engine.handle(request, body), **changes}
        return engine.prefilled(request, body, {name: value for name, value in handle.items() if value is not ...})

    return fault


def hands_over_object(handle: object) -> Fault:
    """A prefill's answer with that in the place of the handle."""

    async def fault(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse:
        return engine.prefilled(request, body, handle)

    return fault


def passes_on(at: str, spoil: Spoil, then: Callable[[], Awaitable[None]] | None = None) -> Fault:
    """A P that lets another work, and spoils what that hands over; `then` comes between the two's answers."""

    async def fault(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse:
        async with aiohttp.ClientSession() as session:
            headers = {"X-Request-Id": request.headers["X-Request-Id"]}
            async with session.post(at + request.path, json=body, headers=headers) as reply:
                answer, date = await reply.json(), reply.headers["Date"]
        answer["kv_transfer_params"] = spoil(answer["kv_transfer_params"])
        if then is not None:
            await then()
        return web.json_response(answer, headers={"Date": date})

    return fault


def streams(*frames: bytes | Body | float, then: str = "ends") -> Fault:
    """A stream of those frames (bytes as they are, a number is a pause), which then ends, hangs or breaks."""

    async def fault(engine: FakeEngine, request: web.Request, _: Body) -> web.StreamResponse:
        response = await engine.begin(request)
        for frame in frames:
            if isinstance(frame, float):
                await asyncio.sleep(frame)
            elif isinstance(frame, bytes):
                await engine.write(response, frame)
            else:
                await engine.frame(response, frame)
        if then == "hangs":
            await asyncio.Event().wait()
        if then == "breaks":
            await asyncio.sleep(0.02)  # a reset takes along what the peer has not read yet
            _reset(request)
        else:
            await response.write_eof()
        return response

    return fault


def content(text: str) -> Body:
    """A chunk of text."""
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


ROLE: Body = {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
STOP: Body = {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE: Body = {"id": "x", "choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 2, "total_tokens": 32}}
ERROR: Body = {"error": {"message": "engine core died", "type": "InternalServerError", "code": 500}}


def only(which: range | set[int], fault: Fault) -> Fault:
    """The fault for those requests of the engine, counted from 1; none for the others."""
    counter = count(1)

    async def rule(engine: FakeEngine, request: web.Request, body: Body) -> web.StreamResponse | None:
        return await fault(engine, request, body) if next(counter) in which else None

    return rule


def _reset(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
