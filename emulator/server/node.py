"""One node: a port that speaks vLLM's HTTP, in front of one engine of the fleet.

aiohttp's low-level server: no application, no router, no access log. It was chosen over an ASGI server because a
chunk can be written from the agenda's callback straight to the transport (`stream.py`), where ASGI needs a task
that wakes up, and a queue between the two, for every token; and because a handler is cancelled as soon as its client
is gone, in every phase, which is the abort. What it can write is measured in `run.py`.

What befalls single requests by rule, or by their header `X-Emulator-Fault`, is `mishaps.py`'s; what is wrong with the
node itself is its `condition`.

A node dies in two ways. `kill` is SIGKILL: nothing listens, open connections break off. A hand-over that kills the
engine gives those in flight vLLM's own words (status 500, or an event in the stream), then nothing listens.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from ..fleet import Fleet, Role
from ..kv_blocks import KvBlocks
from ..rules import HEADER, Condition, Mishap, Pages, Rules, of_header
from . import doors, errors, mishaps, nixl
from .bodies import Ask, Limits, read_chat, read_text
from .bootstrap import Bootstrap
from .clock import WallClock
from .errors import ApiError, Detail
from .exposition import CONTENT_TYPE, lag_page, page, under_old_names
from .lag import Lag
from .metrics import Counts
from .mishaps import Interrupted
from .replies import Envelope, fingerprint
from .stream import DONE, Stream
from .taint import Taint
from .turn import Turn
from .web_counts import WebCounts

if TYPE_CHECKING:
    from .kv_events import Publisher

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 2**20
KEEP_ALIVE_S = 5.0
"""vLLM's: it closes an idle connection after this time, and so a client that pools meets the same race."""
_LAST_WORDS_S = 0.1
"""Between an engine's death and the end of its connections."""

Handler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Options:
    """What all nodes of a fleet have in common."""

    model: str
    max_model_len: int
    api_key: str | None


class _Connection(web.RequestHandler):
    """Remembers when it last received something. One more than the node takes is reset."""

    __slots__ = ("_node", "received")

    def __init__(self, manager: web.Server, node: Node, **options: Any) -> None:
        self.received = 0.0
        self._node = node
        super().__init__(manager, **options)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        most = self._node.condition.connections
        if most and self._manager is not None and len(self._manager.connections) > most:
            mishaps.reset(transport)

    def data_received(self, data: bytes) -> None:
        self.received = time.monotonic()
        super().data_received(data)


class Node:
    """An engine and its port."""

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        clock: WallClock,
        lag: Lag,
        options: Options,
        side_ports: dict[str, int],
        rules: Rules | None = None,
    ) -> None:
        self.name = name
        self.fleet = fleet
        self.clock = clock
        self.lag = lag
        self.counts = Counts()
        self.taint = Taint()
        self.aborted = 0
        self.publisher: Publisher | None = None
        """Of its KV events, if they are published."""
        self.rules = rules or Rules()
        self.condition = Condition()
        self._last_page = ""
        self.host, self.port = "", 0
        self.bootstrap: Bootstrap | None = None
        self._options = options
        self._side_ports = side_ports
        self.web = WebCounts(options.model)
        self._limits = Limits(options.model, options.max_model_len, self.block_tokens)
        self._fingerprint = fingerprint(fleet.profile.name)
        self._next_block = 1
        self._listener: asyncio.Server | None = None
        self._server: web.Server | None = None
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._text},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._door(doors.tokenize)},
            "/detokenize": {"POST": self._door(doors.detokenize)},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._door(doors.version)},
            "/load": {"GET": self._door(doors.load)},
            "/metrics": {"GET": self._metrics},
            "/metrics/": {"GET": self._metrics},
        }

    @property
    def role(self) -> Role:
        """P, D or R."""
        return self.fleet.roles[self.name]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """Where it hands over, if its protocol needs an address for that; else empty."""
        if self.bootstrap is not None:
            return self.bootstrap.url
        if self.fleet.hand_over is None or self.engine_id() or self.role is Role.REPLICA:
            return ""
        return self.fleet.hand_over.address(self.name)

    def engine_id(self) -> str:
        """What its present process calls itself, if its protocol asks; else empty."""
        return "" if self.fleet.hand_over is None else self.fleet.hand_over.engine_id(self.name)

    @property
    def listening(self) -> bool:
        """Whether its port takes connections."""
        return self._listener is not None

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.fleet.profile.block_tokens

    def step(self, tokens: int) -> None:
        """The engine made a step."""
        self.counts.step_tokens.observe(tokens)

    # -- life ------------------------------------------------------------------------------------------------

    async def open(self, host: str, port: int) -> None:
        """Listen; port 0 takes any. Raises OSError."""
        loop = asyncio.get_running_loop()
        server = web.Server(self._handle, handler_cancellation=True, request_factory=self._request)
        self._server = server
        self._listener = await loop.create_server(
            lambda: _Connection(server, self, loop=loop, access_log=None, keepalive_timeout=self._keep_alive_s()),
            host,
            port,
            backlog=1024,
        )
        self.host, self.port = host, self._listener.sockets[0].getsockname()[1]
        if self.bootstrap is not None:
            await self.bootstrap.open(host)

    def _keep_alive_s(self) -> float:
        return KEEP_ALIVE_S if self.condition.keep_alive_s is None else self.condition.keep_alive_s

    def set_condition(self, condition: Condition) -> None:
        """From now on; connections that are open keep their keep-alive."""
        self.condition = condition
        with self.clock:
            self.fleet.engines[self.name].slow(condition.slow)

    def evict(self) -> None:
        """Its prefix cache is reset, as by `POST /reset_prefix_cache`: what no request uses is gone."""
        with self.clock:
            self.fleet.engines[self.name].cache.forget_idle()

    def publish(self, publisher: Publisher) -> None:
        """Publish KV events from now on. Raises OSError."""
        publisher.open()
        self.publisher = publisher
        self.fleet.engines[self.name].cache.watcher = KvBlocks(self.block_tokens, publisher.tell)

    def kill(self) -> None:
        """SIGKILL."""
        self._stop_publishing()
        self._stop_listening()
        self._break_off()
        with self.clock:
            self.fleet.kill(self.name)

    async def revive(self) -> None:
        """A new process on the same port."""
        if self.listening:
            return
        self._break_off()
        self.counts = Counts()
        self.web = WebCounts(self._options.model)
        self.taint.clear()
        if self.publisher is not None:
            self._stop_publishing()
            self.publisher.open()
        with self.clock:
            self.fleet.revive(self.name)
        await self.open(self.host, self.port)
        log.info("node %s is back on %s", self.name, self.url)

    def engine_died(self) -> None:
        """The engine is gone; those in flight are being told."""
        if self.listening:
            log.error("node %s: its engine died, the port closes", self.name)
            self._stop_publishing()
            self._stop_listening()
            server = self._server
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, lambda: self._break_off(server))

    async def close(self) -> None:
        """The end: connections break off, and handlers are done when this returns."""
        self._stop_publishing()
        self._stop_listening()
        self._break_off()
        if self._server is not None:
            await self._server.shutdown(1.0)

    def _stop_publishing(self) -> None:
        if self.publisher is not None:
            self.publisher.close()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self.bootstrap is not None:
            self.bootstrap.close()

    def _break_off(self, server: web.Server | None = None) -> None:
        server = server or self._server
        for connection in server.connections if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()

    # -- requests --------------------------------------------------------------------------------------------

    @staticmethod
    def _request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        echoed = _request_id(request) or uuid4().hex
        since_s = time.monotonic()
        known = request.path in self._routes
        try:
            if self._options.api_key is not None and request.path.startswith("/v1") and not self._authorized(request):
                response: web.StreamResponse = _json(errors.UNAUTHORIZED, 401, echoed)
            else:
                response = await self._route(request, echoed)
        except ApiError as error:
            response = _json(error.body(), error.status, echoed, error.headers)
        path, took_s = request.path if known else None, time.monotonic() - since_s
        received, sent = request.content_length or 0, response.content_length or 0
        self.web.answered(path, request.method, response.status, received, sent, took_s)
        return response

    async def _route(self, request: web.BaseRequest, echoed: str) -> web.StreamResponse:
        methods = self._routes.get(request.path)
        if methods is None:
            shorter = request.path.rstrip("/")
            if shorter in self._routes:
                where = {"Location": f"http://{request.host}{shorter}"}
                return web.Response(status=307, headers=_headers(None, echoed) | where)
            raise Detail(404, "Not Found")
        if request.method not in methods:
            raise Detail(405, "Method Not Allowed", Allow=", ".join(sorted(methods)))
        return await methods[request.method](request, echoed)

    def _arrived_s(self, request: web.BaseRequest) -> float:
        """Engine time at which the request was here: what is done with it since then is part of the front's time."""
        connection = request.protocol
        since_s = time.monotonic() - connection.received if isinstance(connection, _Connection) else 0.0
        return self.clock.now_s - since_s * self.clock.speed

    def _authorized(self, request: web.BaseRequest) -> bool:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        expected = (self._options.api_key or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(key.encode("utf-8", "replace"), expected)

    async def _chat(self, request: web.BaseRequest, echoed: str) -> web.StreamResponse:
        return await self._generate(request, echoed, read_chat)

    async def _text(self, request: web.BaseRequest, echoed: str) -> web.StreamResponse:
        return await self._generate(request, echoed, read_text)

    async def _generate(
        self, request: web.BaseRequest, echoed: str, read: Callable[[bytes, Limits], Ask]
    ) -> web.StreamResponse:
        raw = await _body(request)
        arrived_s = self._arrived_s(request)
        mishap = self._mishap(request, raw)
        try:
            if mishap is not None:
                response = await self._befallen(mishap, request)
                if response is not None:
                    return response
            ask = read(raw, self._limits)
        except ApiError as error:
            if error.status < 500:
                self._refuse_hand_over(raw)
            raise
        if mishap is not None:
            ask = mishaps.retold(mishap, ask)
        if not self.fleet.engines[self.name].alive:
            raise errors.internal(errors.ENGINE_DEAD)
        base = _request_id(request) or ask.request_id or uuid4().hex[:16]
        envelope = Envelope(
            f"{'chatcmpl' if ask.chat else 'cmpl'}-{base}",
            int(time.time()),
            self._options.model,
            self._fingerprint,
            ask.chat,
            ask.include_usage,
            ask.extras,
        )
        session = ask.session_id or request.headers.get("X-Session-ID")
        turn = Turn(self, ask, base, arrived_s, self._hand_over(ask), session)
        try:
            if ask.stream:
                response = await self._stream(request, echoed, turn, envelope, mishap)
                self._parsed(ask)
                return response
            with self.clock:
                turn.begin()
            await turn.done
            if mishap is not None and mishap.after is not None:  # there are no chunks: before the answer, then
                response = await self._befallen(replace(mishap, after=None), request)
                if response is not None:
                    return response
        finally:
            if not turn.over:  # its client is gone
                self.aborted += 1
                with self.clock:
                    turn.abort()
        self._parsed(ask)
        answers = [(sequence.part, sequence.script) for sequence in turn.sequences]
        return _json(envelope.whole(answers, turn.usage(), self._handle_for_client(turn)), 200, echoed)

    def _parsed(self, ask: Ask) -> None:
        if ask.tools:
            for part in ask.parts:
                self.web.parsed(ask.stream, part.script.tool is not None)

    async def _stream(
        self, request: web.BaseRequest, echoed: str, turn: Turn, envelope: Envelope, mishap: Mishap | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_headers("text/event-stream; charset=utf-8", echoed))
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise asyncio.CancelledError
        chunked, parts = request.version >= HttpVersion11, turn.ask.parts
        stalled = None
        if mishap is None or mishap.after is None:
            turn.stream = Stream(transport, chunked, envelope, parts)
        else:
            turn.stream = stalled = Interrupted(transport, chunked, envelope, parts, mishap, turn)
        with self.clock:
            turn.begin()
        try:
            await turn.done
        except ApiError as error:  # the status is out: vLLM says it in the stream
            turn.stream.write(error.event(), DONE)
        if stalled is not None:
            await stalled.settle()
        return response

    def _mishap(self, request: web.BaseRequest, raw: bytes) -> Mishap | None:
        """What is to befall the request: by its own header, or by rule. Raises ApiError."""
        told = request.headers.get(HEADER)
        if told is not None:
            try:
                return of_header(told)
            except ValueError as error:
                raise errors.bad_request(f"{HEADER}: {error}") from None
        if not self.rules.rules:
            return None
        try:
            body = json.loads(raw)
        except ValueError:
            return None
        return self.rules.strike(self.name, request.path, body) if isinstance(body, dict) else None

    async def _befallen(self, mishap: Mishap, request: web.BaseRequest) -> web.StreamResponse | None:
        try:
            return await mishaps.before_headers(mishap, request)
        except asyncio.CancelledError:  # its client would not wait
            self.aborted += 1
            raise

    # -- the hand-over ---------------------------------------------------------------------------------------

    def _hand_over(self, ask: Ask) -> dict[str, object] | None:
        if ask.kv_transfer_params is None:
            return None
        if self.fleet.hand_over is not None:
            whole = all(part.script.finish == "length" for part in ask.parts)
            return dict(ask.kv_transfer_params) if whole or self.role is not Role.PREFILL else None
        profile = self.fleet.profile
        blocks = max(-(-part.rendered.tokens // profile.block_tokens) for part in ask.parts)
        node_blocks = 1 + profile.kv_capacity_tokens // profile.block_tokens
        met = self.fleet.met(self.name)
        return dict(nixl.from_wire(ask.kv_transfer_params, blocks, node_blocks, self._side_ports, met))

    def _handle_for_client(self, turn: Turn) -> dict[str, object] | None:
        reply = turn.sequences[0].reply
        if reply is None or reply.kv_transfer_params is None:
            return None
        # P keeps what it has computed: all but the last token that it made.
        kept = reply.prompt_tokens + turn.sequences[0].script.tokens - 1
        blocks = -(-kept // self.block_tokens)
        first, room = self._next_block, self.fleet.profile.kv_capacity_tokens // self.block_tokens
        if first + blocks > room:
            first = 1
        self._next_block = first + blocks
        numbers = range(first, first + blocks)
        return nixl.to_wire(reply.kv_transfer_params, turn.ask.chat, numbers, kept, self._side_ports[self.name])

    def _refuse_hand_over(self, raw: bytes) -> None:
        """A decode leg that never reaches the engine lets P's blocks go, as in vLLM."""
        try:
            params = json.loads(raw).get("kv_transfer_params")
        except (ValueError, AttributeError):
            return
        if isinstance(params, dict) and params.get("do_remote_prefill"):
            with self.clock:
                self.fleet.refuse({"remote_request_id": nixl.lease_id(params)})

    # -- the rest --------------------------------------------------------------------------------------------

    def _door(self, answer: doors.Door) -> Handler:
        async def handle(request: web.BaseRequest, echoed: str) -> web.StreamResponse:
            raw = await _body(request) if request.method == "POST" else b""
            return _json(json.dumps(answer(raw, self._limits), ensure_ascii=False).encode(), 200, echoed)

        return handle

    async def _models(self, request: web.BaseRequest, echoed: str) -> web.StreamResponse:
        return _json(doors.models(self._limits, int(self.counts.started)), 200, echoed)

    async def _health(self, request: web.BaseRequest, echoed: str) -> web.StreamResponse:
        alive = self.fleet.engines[self.name].alive
        return web.Response(status=200 if alive else 503, headers=_headers(None, echoed))

    async def _metrics(self, request: web.BaseRequest, echoed: str) -> web.StreamResponse:
        pages = self.condition.pages
        if pages is Pages.FROZEN and self._last_page:
            return web.Response(body=self._last_page.encode(), headers=_headers(CONTENT_TYPE, echoed))
        with self.clock:
            self.counts.look(self.fleet.engines[self.name])
        text = page(self.counts, self.role, self._options.model, self.fleet.profile, self._options.max_model_len)
        text += self.web.page()
        if pages is Pages.OLD_NAMES:
            text = under_old_names(text)
        elif pages is Pages.MISSING:
            text = "".join(line for line in text.splitlines(keepends=True) if "vllm:" not in line)
        text += lag_page(self.lag, self.clock.speed, {"emulator_aborted_requests_total": self.aborted})
        self._last_page = text
        return web.Response(body=text.encode(), headers=_headers(CONTENT_TYPE, echoed))


def _request_id(request: web.BaseRequest) -> str | None:
    """The client's id of the request, if it can go into a header again."""
    named = request.headers.get("X-Request-Id")
    return named if named and named.isascii() else None


async def _body(request: web.BaseRequest) -> bytes:
    """A JSON body. Raises ApiError."""
    if request.content_type != "application/json":
        raise errors.unsupported()
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise ApiError(413, f"Request body exceeds {MAX_BODY_BYTES} bytes", "Request Entity Too Large") from None


def _json(body: bytes, status: int, echoed: str, more: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=_headers("application/json", echoed) | (more or {}))


def _headers(content_type: str | None, echoed: str) -> dict[str, str]:
    headers = {"Server": "uvicorn", "Vary": "Origin", "X-Request-Id": echoed}
    if content_type is not None:
        headers["Content-Type"] = content_type
    return headers
