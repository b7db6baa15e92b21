"""The router's HTTP face: the hot POST routes go straight to the dispatcher, other routes of engines are passed on, and
what the router answers itself is FastAPI.

POST /v1/chat/completions, /v1/completions    ahead of FastAPI
GET  /v1/models                               what the engines of all models say
GET  /health                                  this process answers
GET  /ready                                   it can serve: a publication and somebody to decode
GET  /openapi.json                            these routes, described
*                                             other routes of engines (`passthrough.py`)
"""

from __future__ import annotations

import logging
from contextlib import suppress

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from .answers import Receive, Scope, Send, answer, beside, fail
from .body import Api
from .doors import Doors
from .errors import STATUS, Code, RequestError, error_body
from .models import Directory
from .openapi import DOCUMENT
from .passthrough import Passthrough

log = logging.getLogger("trimtab.app")

OWN = {
    **dict.fromkeys((api.value for api in Api), "POST"),
    **dict.fromkeys(("/v1/models", "/health", "/ready", "/openapi.json"), "GET"),
}
"""Routes that the router answers itself, and how."""


class HotRoutes:
    """An ASGI application that takes the hot routes, passes engines' own on, and leaves the rest to another."""

    def __init__(self, directory: Directory, passthrough: Passthrough, rest: FastAPI) -> None:
        self._dispatcher = directory.front
        self._passthrough = passthrough
        self._rest = rest
        self._apis = {api.value: api for api in Api}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send)
        except Exception:
            log.exception("a request failed inside the router")
            with suppress(RuntimeError):  # its answer had begun: the connection is closed in the middle of it
                await fail(send, Code.INTERNAL, "the router failed on this request", [])

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        takes = OWN.get(path)
        if takes is None:
            await self._passthrough.handle(scope, receive, send)
        elif method != takes and (method, takes) != ("HEAD", "GET"):
            body = error_body(Code.METHOD_NOT_ALLOWED, f"this route takes {takes}")
            await answer(send, STATUS[Code.METHOD_NOT_ALLOWED], body, "application/json", [(b"allow", takes.encode())])
        elif takes == "POST":
            await self._dispatcher.handle(self._apis[path], scope, receive, send)
        else:
            await self._rest(scope, receive, send)


def create_app(directory: Directory, passthrough: Passthrough, doors: Doors) -> HotRoutes:
    """The application of one router process."""
    rest = FastAPI(title="Trimtab router", docs_url=None, redoc_url=None, openapi_url=None)

    @rest.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @rest.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> JSONResponse:
        without = [pool.name for pool in directory.pools if not pool.decodes]
        reason = ""
        if directory.front.draining:
            reason = "draining"
        elif len(without) == len(directory.pools):
            reason = "no decode node answers its health check"
        body: dict[str, object] = {"ready": not reason, "reason": reason, "topology": directory.pools[0].core.topology}
        if len(directory.pools) > 1:
            body["models"] = {
                pool.name: {"ready": pool.decodes, "topology": pool.core.topology} for pool in directory.pools
            }
        return JSONResponse(body, status_code=503 if reason else 200)

    @rest.api_route("/v1/models", methods=["GET", "HEAD"])
    async def models(request: Request) -> Response:
        try:
            doors.caller(dict(request.scope["headers"]))
        except RequestError as error:
            headers = {name.decode(): value.decode() for name, value in beside(error.code)}
            return Response(error.body(), error.status, headers, "application/json")
        found = await directory.listing()
        if found is None:
            text = error_body(Code.NO_NODE, "no engine answers")
            return Response(text, status_code=STATUS[Code.NO_NODE], media_type="application/json")
        return Response(found, media_type="application/json")

    @rest.api_route("/openapi.json", methods=["GET", "HEAD"])
    async def openapi() -> JSONResponse:
        return JSONResponse(DOCUMENT)

    return HotRoutes(directory, passthrough, rest)
