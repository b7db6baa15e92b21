"""The HTTP face of the control process: what routers call, and what people and Prometheus read.

    POST /internal/v1/turns    a report (router/wire.py)              -> {"accepted_seq": n}
    GET  /internal/v1/policy   ?after=V&have=d1,d2, waits up to 25 s  -> a publication, or 204 (wait_s: less)
    GET  /api/v1/status  /series?minutes=60&model=M  /slos  /policy
    /api/v1/pin, /controls, /bounds, /weights, /resume, /audit         controls_api.py
    /api/v1/nodes              nodes_api.py
    GET  /health  /metrics

With a token, `/internal` and POST ask for `Authorization: Bearer`. A POST under `/api` also has to be JSON, and to come
from this very site if it comes from a browser, so that no other web page can steer a fleet through an operator's
browser.
"""

from __future__ import annotations

import asyncio
import hmac
from urllib.parse import urlsplit

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.registry import CollectorRegistry
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.errors import Code
from router.wire import WireError, publication_to_wire, report_from_json

from . import exposition
from .answers import TooLarge, answered, body_of, refused
from .config import LOOPBACK, ControlConfig
from .controls_api import mount_controls
from .intake import IntakeFull
from .loop import ControlLoop, TooManyPollers
from .metrics import ControlCollector
from .pin import PinFile, look
from .series import MAX_MINUTES, series
from .status import iso, problems, slo_rows, status

MAX_REPORT_BYTES = 8 << 20
POLL_S = 25.0
MAX_HAVE = 256


def create_app(
    loop: ControlLoop,
    collector: ControlCollector,
    registry: CollectorRegistry,
    *,
    version: str,
    poll_s: float = POLL_S,
) -> FastAPI:
    """The app around a loop. Nothing is started: ticks and flushes are the scheduler's."""
    config = loop.config
    app = FastAPI(title="Trimtab", version=version, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Guard, config=config)

    @app.exception_handler(HTTPException)
    async def not_answered(_: Request, error: HTTPException) -> Response:
        return refused(error.status_code, Code.BAD_REQUEST, str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return refused(400, Code.BAD_REQUEST, told)

    # -- routers -------------------------------------------------------------------------------------------------------

    @app.post("/internal/v1/turns")
    async def turns(request: Request) -> Response:
        try:
            body = await body_of(request, MAX_REPORT_BYTES)
        except TooLarge:
            collector.refused += 1
            return refused(413, Code.TOO_LARGE, f"a report has at most {MAX_REPORT_BYTES} bytes")
        try:
            accepted = loop.accept(report_from_json(body), loop.monotonic())
        except WireError as error:
            collector.refused += 1
            return refused(400, Code.BAD_REQUEST, str(error))
        except IntakeFull as error:
            collector.refused += 1
            return refused(503, Code.INTERNAL, str(error))
        return answered({"accepted_seq": accepted})

    @app.get("/internal/v1/policy")
    async def policy_for_routers(
        after: int = Query(-1), have: str = Query(""), wait_s: float = Query(POLL_S, ge=0)
    ) -> Response:
        try:
            publication = await loop.newer(after, min(wait_s, poll_s))
        except TooManyPollers as error:
            return refused(503, Code.INTERNAL, str(error))
        if publication is None:
            return Response(status_code=204)
        held = have.split(",", MAX_HAVE)
        return answered(publication_to_wire(publication, config.documents, held))

    # -- people --------------------------------------------------------------------------------------------------------

    @app.get("/api/v1/status")
    async def get_status() -> Response:
        pin = await asyncio.to_thread(look, config.state_dir)
        return answered(status(loop, pin, version))

    @app.get("/api/v1/series")
    async def get_series(minutes: float = Query(60.0, gt=0, le=MAX_MINUTES), model: str | None = None) -> Response:
        return answered(await asyncio.to_thread(series, loop.store, loop.wall(), config, minutes, model))

    @app.get("/api/v1/slos")
    async def get_slos() -> Response:
        return answered({"source": config.source, "slos": slo_rows(loop)})

    @app.get("/api/v1/policy")
    async def get_policy() -> Response:
        document = publication_to_wire(loop.publication, config.documents, list(config.documents))
        del document["tables"]
        return answered({"source": config.source, "published_at": iso(loop.published_at_s), **document})

    mount_controls(app, loop)

    # -- machines ------------------------------------------------------------------------------------------------------

    @app.get("/health")
    async def health() -> Response:
        now_s = loop.monotonic()
        late = loop.late(now_s)
        body = {
            "status": "degraded" if late else "ok",
            "tick_age_s": round(now_s - loop.ticked_s, 2),
            "problems": problems(loop, PinFile(), now_s),
        }
        return answered(body, 503 if late else 200)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        now_s = loop.monotonic()
        texts = {name: view.report.metrics for name, view in loop.intake.speaking(now_s).items()}
        # Gathered here, for the values belong to this event loop; parsing the routers' text is work for a thread.
        own = list(registry.collect())
        text, content_type = await asyncio.to_thread(exposition.render, own, texts, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type, "vary": "accept"})

    return app


class _Guard:
    """Refuses what must not be answered, before anything else looks at it."""

    def __init__(self, app: ASGIApp, config: ControlConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = _refusal(Request(scope), self._config)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("cache-control", "no-store")
                headers["x-content-type-options"] = "nosniff"
            await send(message)

        await self._app(scope, receive, sent)


def _refusal(request: Request, config: ControlConfig) -> Response | None:
    """Why this request must not be answered."""
    internal = request.url.path.startswith("/internal/")
    changes = request.method not in ("GET", "HEAD")
    if not internal and changes and not _same_site(request, config):
        return refused(403, Code.BAD_REQUEST, "a change has to be JSON and to come from this site")
    if config.token and (internal or changes):
        given = request.headers.get("authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, f"Bearer {config.token}".encode()):
            refusal = refused(401, Code.UNAUTHORIZED, "a token is needed: Authorization: Bearer ...")
            refusal.headers["www-authenticate"] = "Bearer"
            return refusal
    return None


def _same_site(request: Request, config: ControlConfig) -> bool:
    host = request.headers.get("host", "")
    if config.loopback and (urlsplit(f"//{host}").hostname or "") not in LOOPBACK:
        return False  # a name that somebody has pointed at this address
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return False
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
