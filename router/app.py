"""The router's HTTP face: the hot POST routes go straight to the dispatcher, everything else is FastAPI.

POST /v1/chat/completions, /v1/completions    ahead of FastAPI
GET  /v1/models                               what the engines say
GET  /health                                  this process answers
GET  /ready                                   it can serve: a publication and somebody to decode
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from .answers import Receive, Scope, Send
from .body import Api
from .core import RouterCore
from .dispatch import Dispatcher
from .errors import Code, error_body
from .nodes import NodeWatch
from .turn import Role
from .upstream import NodeError, Upstream

MODELS_TIMEOUT_S = 5.0


class HotRoutes:
    """An ASGI application that takes the two hot routes and leaves the rest to another."""

    def __init__(self, dispatcher: Dispatcher, rest: FastAPI) -> None:
        self._dispatcher = dispatcher
        self._rest = rest
        self._apis = {api.value: api for api in Api}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] == "http" and scope["method"] == "POST":
            api = self._apis.get(scope["path"])
            if api is not None:
                await self._dispatcher.handle(api, scope, receive, send)
                return
        await self._rest(scope, receive, send)


def create_app(core: RouterCore, dispatcher: Dispatcher, watch: NodeWatch, upstream: Upstream) -> HotRoutes:
    """The application of one router process."""
    rest = FastAPI(title="Trimtab router", docs_url=None, redoc_url=None)

    @rest.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @rest.get("/ready")
    async def ready() -> JSONResponse:
        decoders = [node for node in core.nodes.values() if node.usable and node.role is not Role.PREFILL]
        reason = "draining" if dispatcher.draining else "" if decoders else "no decode node answers its health check"
        body = {"ready": not reason, "reason": reason, "topology": core.topology}
        return JSONResponse(body, status_code=503 if reason else 200)

    @rest.get("/v1/models")
    async def models() -> Response:
        for node in sorted(core.nodes.values(), key=lambda n: n.role is Role.PREFILL):
            if not node.usable:
                continue
            try:
                status, body = await upstream.get(watch.url(node.id, "/v1/models"), MODELS_TIMEOUT_S)
            except NodeError:
                continue
            return Response(body, status_code=status, media_type="application/json")
        return Response(error_body(Code.NO_NODE, "no engine answers"), status_code=503, media_type="application/json")

    @rest.exception_handler(404)
    async def not_found(request: Request, error: Exception) -> Response:
        text = f"no route {request.method} {request.url.path}"
        return Response(error_body(Code.BAD_REQUEST, text), status_code=404, media_type="application/json")

    @rest.exception_handler(405)
    async def not_allowed(request: Request, error: Exception) -> Response:
        text = f"{request.url.path} does not take {request.method}"
        return Response(error_body(Code.BAD_REQUEST, text), status_code=405, media_type="application/json")

    return HotRoutes(dispatcher, rest)
