"""Engine routes that are no turns: embeddings, tokenizers, other APIs. They go to the least busy node that decodes, as
they are, and the answer comes back as it is, streamed or not. No handshake, no conversation, no record.

Which routes those are says `engine_routes.py`. A JSON body is read as far as it takes to
see which model is meant, and that it asks for no KV of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from .answers import Header, Receive, Scope, Send, answer, error_event, fail, named
from .body import check_passed_on
from .dispatch import MAX_ANSWER_BYTES, Admitted, DispatchOptions, disconnected
from .doors import forwarded
from .engine_routes import METHODS, may_pass
from .errors import Code, RequestError
from .metrics import RouterMetrics
from .models import Directory, Pool
from .turn import NodeId, Reason
from .upstream import NodeError, NodeTimeout, OwnLimit, UpstreamReply

log = logging.getLogger("trimtab.passthrough")

ATTEMPTS = 2
MAX_QUERY_BYTES = 2048


class Passthrough:
    """Passes requests on."""

    def __init__(
        self,
        directory: Directory,
        metrics: RouterMetrics,
        options: DispatchOptions,
        allowed: Iterable[str] = (),
    ) -> None:
        self._directory = directory
        self._metrics = metrics
        self._options = options
        self._allowed = frozenset(allowed)
        self._running: Counter[NodeId] = Counter()

    @property
    def running(self) -> int:
        """Requests on their way."""
        return self._running.total()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, from its headers to its last byte."""
        await self._directory.front.admit(scope, send, lambda admitted: self._serve(admitted, scope, receive, send))

    async def _serve(self, admitted: Admitted, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises RequestError, ClientGone."""
        path, method, headers = scope["path"], scope["method"], admitted.headers
        if not may_pass(path, self._allowed):
            raise RequestError(Code.NOT_FOUND, "there is no such route")
        if method not in METHODS:
            raise RequestError(Code.METHOD_NOT_ALLOWED, f"this route takes {' and '.join(METHODS)}")
        front = self._directory.front
        body = await front.read(receive, admitted.slot)
        content_type, model = _kind(headers, path, body) if method == "POST" else ("", "")
        pool = self._directory.find(model) if model else self._directory.pools[0]
        sent = {
            **forwarded(headers, self._options.forward_headers),
            **({"Content-Type": content_type} if content_type else {}),
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "X-Request-Id": front.new_id(),
        }
        query = scope.get("query_string", b"")
        if len(query) > MAX_QUERY_BYTES or not query.isascii():
            raise RequestError(Code.BAD_REQUEST, "the query is too long, or no ASCII")
        target = f"{path}?{query.decode()}" if query else path
        await self._pass_on(pool, method, target, body, sent, admitted.request_id, receive, send)

    async def _pass_on(
        self,
        pool: Pool,
        method: str,
        target: str,
        body: bytes,
        headers: dict[str, str],
        request_id: str,
        receive: Receive,
        send: Send,
    ) -> None:
        nodes = sorted(pool.nodes(), key=lambda node: pool.core.load[node.id].sequences + self._running[node.id])
        if not nodes:
            raise RequestError(Code.NO_NODE, "no engine can serve this request")
        gone = asyncio.ensure_future(disconnected(receive))
        failure: NodeError | None = None
        try:
            for node in nodes[:ATTEMPTS]:
                self._running[node.id] += 1
                try:
                    work = asyncio.ensure_future(
                        self._relay(pool, node.id, method, target, body, headers, request_id, send)
                    )
                    try:
                        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
                        if not work.done():
                            self._metrics.passed(str(node.id), "client_gone")
                            return
                        await work
                        self._metrics.passed(str(node.id), "answered")
                        return
                    finally:
                        work.cancel()
                        await asyncio.gather(work, return_exceptions=True)
                except NodeError as error:
                    failure = error
                    self._metrics.passed(str(node.id), "failed")
                    log.warning("request %s: passed on to %s: %s", request_id, node.id, error)
                    if not error.refused:
                        break  # it may have been done: not a second time
                    pool.watch.refused(node.id)
                finally:
                    self._running[node.id] -= 1
        finally:
            gone.cancel()
        if isinstance(failure, OwnLimit):
            await fail(send, Code.BUSY, "this router is at a limit of its host", _headers(request_id))
            return
        code = Code.UPSTREAM_TIMEOUT if isinstance(failure, NodeTimeout) else Code.UPSTREAM_ERROR
        await fail(send, code, "no engine answered this request", _headers(request_id))

    async def _relay(
        self,
        pool: Pool,
        node: NodeId,
        method: str,
        target: str,
        body: bytes,
        headers: dict[str, str],
        request_id: str,
        send: Send,
    ) -> None:
        """Raises NodeError as long as nothing has gone out."""
        reply: UpstreamReply | None = None
        try:
            timeouts = pool.upstream.timeouts
            reply = await pool.upstream.open(pool.watch.url(node, target), body, headers, timeouts.answer_s, method)
            if not reply.content_type.startswith("text/event-stream"):
                with self._directory.front.admission.answer() as room:
                    content = await reply.body(MAX_ANSWER_BYTES, room.hold)
                    await answer(send, reply.status, content, reply.content_type, _headers(request_id))
                return
            start = [(b"content-type", reply.content_type.encode()), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": reply.status, "headers": start + _headers(request_id)})
            try:
                async for data in reply.chunks():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                end = b""
            except NodeError as error:
                log.warning("request %s: passed on to %s: %s", request_id, node, error)
                code = Code.UPSTREAM_TIMEOUT if isinstance(error, NodeTimeout) else Code.UPSTREAM_BROKE_OFF
                end = error_event(code, "the engine broke off in the middle of this answer")
            await send({"type": "http.response.body", "body": end, "more_body": False})
        finally:
            if reply is not None:
                reply.abort()


def _kind(headers: Mapping[bytes, bytes], path: str, body: bytes) -> tuple[str, str]:
    """(the content type to send on, the model asked for). Raises RequestError."""
    given = headers.get(b"content-type", b"").decode("latin-1")
    kind = given.partition(";")[0].strip().lower()
    if kind == "multipart/form-data" and path.startswith("/v1/audio/"):
        if len(given) > 200 or not given.isascii() or not given.isprintable():
            raise RequestError(Code.BAD_REQUEST, "the Content-Type is too long, or no ASCII")
        return given, ""
    if kind not in ("", "application/json"):
        raise RequestError(Code.UNSUPPORTED_TYPE, "send application/json; multipart/form-data is for /v1/audio/ only")
    if not body:
        return "application/json", ""
    return "application/json", check_passed_on(body)


def _headers(request_id: str) -> list[Header]:
    return [named(request_id), (b"x-trimtab-reason", Reason.PASSTHROUGH.value.encode())]
