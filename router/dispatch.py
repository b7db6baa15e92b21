"""One request over HTTP: drives the handshake of its flight, relays the answer, and reports what it saw to
the core.

The rule for failures: as long as the client has got nothing, a leg that failed is planned again without its
node (another P, or local; another D), at most `core.MAX_ATTEMPTS` times; what an engine says about the
client's own request (4xx) goes to the client as it is. Once bytes have gone out nothing is repeated: the
stream ends with an error event and without [DONE]. A client that leaves ends every leg at once.

What a request holds (its slot, its flight, its connections to engines) it holds in a `with` block, so that none of it
outlives the request, whichever way that ends.

Two legs that go out at once fail together as long as the client has got nothing: D waits for P inside the engines, so
when P fails D's leg is ended too, and the other way round. A D that answers 5xx or breaks off before P has answered
may have been failed by P: both are avoided. Once D's content goes out, P's reply only ends P's load.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from slos.objective import Outcome
from slos.terms import read_terms

from .admission import Admission, Slot
from .answers import Receive, Scope, Send, named, refuse
from .blocks import session_of
from .body import Api, ClientRequest, Usage, decode_body, parse, parse_answer, prefill_body
from .clock import Clock
from .connectors.protocol import Leg, LegReply, Purpose
from .core import RouterCore
from .doors import FORWARDED, Caller, Doors, forwarded
from .endings import Endings
from .errors import Code, RequestError
from .exchange import BadAnswer, Exchange, LegsFailed
from .metrics import RouterMetrics
from .nodes import NodeWatch
from .p_down import NoPrefill
from .placement import NoNode
from .pulse import Pulse
from .recognition import Recogniser, tenant_of
from .record import TurnRecord
from .sse import Meter
from .stamps import Stamps, date_s
from .tokens import TokenRatio
from .turn import NodeId, Turn
from .upstream import NodeError, OwnLimit, Upstream, UpstreamReply

log = logging.getLogger("trimtab.dispatch")

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_OPENING_BYTES = 16 * 1024
"""As much of a stream's opening, its role chunk, waits for the content: until then another node may do better."""
MAX_ID_LENGTH = 256
SESSION_HEADERS = (b"x-session-id", b"x-session-affinity", b"x-correlation-id")
RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""An engine's answer that says nothing about the client's request: another node may do better."""


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """What an operator sets. `forward_headers`: names of request headers, in lower case, that go on to engines."""

    forward_headers: tuple[str, ...] = FORWARDED
    prefill_timeout_s: float = 60.0
    max_body_bytes: int = MAX_BODY_BYTES
    body_timeout_s: float = 60.0
    """For all of a request's body to come."""


class ClientGone(Exception):
    """The client closed its connection."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that was let in, before its body is read."""

    request_id: str
    """The client's own, or a new one."""
    headers: Mapping[bytes, bytes]
    caller: Caller
    slot: Slot


class Dispatcher:
    """Everything between the ASGI server and the core, for the hot routes."""

    def __init__(
        self,
        core: RouterCore,
        upstream: Upstream,
        watch: NodeWatch,
        recogniser: Recogniser,
        clock: Clock,
        coin: Callable[[], float],
        new_id: Callable[[], str],
        on_record: Callable[[TurnRecord, str], None],
        metrics: RouterMetrics,
        options: DispatchOptions,
        doors: Doors | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._core = core
        self._upstream = upstream
        self._watch = watch
        self._recogniser = recogniser
        self._clock = clock
        self._coin = coin
        self._new_id = new_id
        self.metrics = metrics
        self.options = options
        self._doors = doors if doors is not None else Doors()
        self._ratio = TokenRatio()
        self._endings = Endings(core, watch, recogniser, clock, metrics, self._ratio, on_record)
        self.pulse = Pulse(clock.now_s)
        """Whoever runs the loop runs it too; until then leases count from the sending of P's leg."""
        self._stamps: defaultdict[NodeId, Stamps] = defaultdict(Stamps)
        self.admission = admission if admission is not None else Admission()
        """One for all models of a process."""
        self._exchanges: set[Exchange] = set()
        self.pool_of: Callable[[str], Dispatcher] = lambda model: self
        """Whose turn a request for that model is. Raises RequestError (404)."""
        self.base_of: Callable[[str], str] = lambda model: model
        """The model whose table, price and SLOs apply to requests for that name."""

    @property
    def active(self) -> int:
        """Requests in flight."""
        return self.admission.active

    @property
    def draining(self) -> bool:
        """Whether this router is leaving: it takes nothing new."""
        return self.admission.draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self.admission.draining = value

    def cut_short(self) -> None:
        """End what still runs, and say so to its clients."""
        for exchange in self._exchanges:
            if exchange.work is not None:
                exchange.cut = True
                exchange.work.cancel()

    async def handle(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        """One POST on a hot route, from its headers to its last byte."""

        async def serve(admitted: Admitted) -> None:
            request = parse(api, await self.read(receive, admitted.slot))
            await self.pool_of(request.model)._serve(request, admitted, receive, send)

        await self.admit(scope, send, serve, self._core.refuse_unread)

    async def admit(
        self,
        scope: Scope,
        send: Send,
        serve: Callable[[Admitted], Awaitable[None]],
        turned_away: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve one request if there is a place for it and its caller may come in; what it is refused for is answered.
        `turned_away` is called where there is no place."""
        headers = dict(scope["headers"])
        request_id = _text(headers.get(b"x-request-id")) or self._new_id()
        try:
            with self.admission.slot() as slot:
                await serve(Admitted(request_id, headers, self._doors.caller(headers), slot))
        except RequestError as error:
            if error.code in (Code.BUSY, Code.DRAINING):
                turned_away()
            self.metrics.refused(error.code)
            await refuse(send, error, [named(request_id)])
        except ClientGone:
            self.metrics.refused("client_gone")

    def new_id(self) -> str:
        """A request id for engines: two clients may choose the same."""
        return self._new_id()

    async def read(self, receive: Receive, slot: Slot) -> bytes:
        """A request's whole body. Raises RequestError, ClientGone."""
        try:
            async with asyncio.timeout(self.options.body_timeout_s):
                return await self._read_all(receive, slot)
        except TimeoutError:
            within = f"{self.options.body_timeout_s:g} s"
            raise RequestError(Code.TOO_SLOW, f"the body was not here within {within}") from None

    async def _read_all(self, receive: Receive, slot: Slot) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > self.options.max_body_bytes:
                raise RequestError(Code.TOO_LARGE, f"the body is larger than {self.options.max_body_bytes} bytes")
            slot.hold(len(part))
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _serve(
        self,
        request: ClientRequest,
        admitted: Admitted,
        receive: Receive,
        send: Send,
    ) -> None:
        headers, caller = admitted.headers, admitted.caller
        now_s = self._clock.now_s()
        ids = [_text(headers.get(name)) for name in SESSION_HEADERS] + [request.conversation_id]
        given = next((id for id in ids if id and len(id) <= MAX_ID_LENGTH), None)
        tenant = tenant_of(self._recogniser.secret, caller.owner)
        internal_id = self._new_id()
        found = self._recogniser.recognise(tenant, request.model, given, request.messages, internal_id)
        whole = self._ratio.tokens(request.model, request.prompt_bytes)
        if request.messages:
            new_tokens = self._ratio.tokens(request.model, found.new_bytes)
        else:  # a raw prompt holds its history: what goes beyond the known context is new
            new_tokens = max(1, whole - self._core.context_of(found.key))
        turn = Turn(
            request_id=internal_id,
            key=found.key,
            new_tokens=new_tokens,
            max_tokens=request.max_tokens,
            streaming=request.stream,
            accepted_s=now_s,
            local_only=request.local_only,
            history_tokens=max(0, whole - new_tokens),
            number=found.number,
            terms=read_terms(headers, caller.tenant, self._core.slo_classes),
            named=given is not None,
            base=self.base_of(request.model),
        )
        try:
            flight = self._core.accept(turn, now_s, self._coin())
        except NoPrefill as error:
            raise RequestError(Code.P_UNAVAILABLE, str(error)) from None
        except NoNode as error:
            raise RequestError(Code.NO_NODE, f"no engine can serve this request: {error}") from None
        passed = forwarded(headers, self.options.forward_headers)
        with self._exchange(Exchange(send, request, admitted.request_id, found, flight, passed)) as exchange:
            await self._see_through(exchange, receive)

    @contextmanager
    def _exchange(self, exchange: Exchange) -> Iterator[Exchange]:
        """Around all that happens to a flight: however it is left, the flight has ended."""
        self._exchanges.add(exchange)
        try:
            yield exchange
        finally:
            self._exchanges.discard(exchange)
            self._endings.end(exchange, Outcome.FAILED)

    async def _see_through(self, exchange: Exchange, receive: Receive) -> None:
        """Until the answer is out, the client is gone, or the router leaves."""
        work = exchange.work = asyncio.ensure_future(self._drive(exchange))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if exchange.cut and (work.cancelled() or not work.done()):
                await _cancel(work)
                await self._endings.leave(exchange)
            elif work.done():
                await work
            else:
                await _cancel(work)
                self._endings.end(exchange, Outcome.CLIENT_GONE)
        finally:
            await _cancel(work, gone)

    # -- legs ------------------------------------------------------------------------------------------------------

    async def _drive(self, exchange: Exchange) -> None:
        """Send legs until the answer is out or nothing more can be tried. Ends the flight on every path."""
        core, flight = self._core, exchange.flight
        try:
            leg: Leg | None = core.next_leg(flight, None, self._clock.now_s())
            while leg is not None:
                try:
                    leg = await self._send(exchange, leg)
                except LegsFailed as failure:
                    error = failure.error
                    if isinstance(error, OwnLimit):
                        await self._endings.own_limit(exchange, failure.legs[0], error)
                        return
                    if isinstance(error, BadAnswer) and error.final:
                        core.node_answered(failure.legs[0].node, self._clock.now_s())
                        self._endings.end(exchange, Outcome.CLIENT_ERROR)
                        await exchange.pass_on(error.reply, error.content)
                        return
                    self._endings.note_failure(exchange, failure.legs[0], error)
                    if exchange.started:
                        await self._endings.break_off(exchange, error)
                        return
                    leg = core.leg_failed(flight, self._clock.now_s(), *failure.legs)
        except NoPrefill as error:
            self._endings.end(exchange, Outcome.FAILED)
            await exchange.fail(Code.P_UNAVAILABLE, str(error))
        except NoNode as error:
            await self._endings.give_up(exchange, str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("request %s failed inside the router", exchange.request_id)
            self._endings.end(exchange, Outcome.FAILED)
            if not exchange.started:
                await exchange.fail(Code.INTERNAL, "the router failed on this request")

    async def _send(self, exchange: Exchange, leg: Leg) -> Leg | None:
        """Send a leg; the one that follows, or None when the answer is out. Raises LegsFailed, NoNode."""
        if leg.beside is not None:
            return await self._send_both(exchange, leg, leg.beside)
        try:
            if leg.purpose is Purpose.DECODE:
                await self._decode(exchange, leg)
                return None
            reply = await self._prefill(exchange, leg)
        except NodeError as error:
            raise LegsFailed(error, leg) from None
        return self._follow(exchange, leg, reply)

    async def _send_both(self, exchange: Exchange, leg: Leg, beside: Leg) -> Leg | None:
        """The same for D's leg with P's beside it."""
        decode = asyncio.ensure_future(self._decode(exchange, leg, self.options.prefill_timeout_s))
        prefill = asyncio.ensure_future(self._prefill(exchange, beside))
        answered = False
        try:
            await asyncio.wait((decode, prefill), return_when=asyncio.FIRST_COMPLETED)
            if not decode.done():
                try:
                    reply = prefill.result()
                except NodeError as error:
                    if not exchange.started:
                        raise LegsFailed(error, beside) from None
                    self._endings.note_failure(exchange, beside, error)
                else:
                    answered = True
                    following = self._follow(exchange, beside, reply)
                    if following is not leg:
                        return following
            try:
                await decode
            except NodeError as error:
                suspects = (leg,) if answered or error.refused else (leg, beside)
                raise LegsFailed(error, *suspects) from None
            return None
        finally:
            await _cancel(decode, prefill)

    def _follow(self, exchange: Exchange, prefill: Leg, reply: LegReply) -> Leg:
        """The leg after P's reply. Raises NoNode."""
        flight = exchange.flight
        attempts = flight.attempts
        following = self._core.next_leg(flight, reply, self._clock.now_s())
        if flight.attempts > attempts:
            self.metrics.leg_failed(str(prefill.node), "handover")
            log.warning("request %s: what %s handed over cannot be used", exchange.request_id, prefill.node)
        return following

    async def _prefill(self, exchange: Exchange, leg: Leg) -> LegReply:
        body = prefill_body(exchange.request, leg.kv_transfer_params)
        sent_s = self._clock.now_s()
        within_s = self.options.prefill_timeout_s + self._upstream.timeouts.prompt_s(self._prompt_tokens(exchange))
        async with self._opened(exchange, leg, body, within_s) as reply:
            at_s = max(sent_s, self._left_s(leg.node, reply))
            async with self._content(exchange, reply) as content:
                parsed = parse_answer(content) if reply.status == 200 else None
        if reply.status != 200:
            # Less its forced tool call P's copy is another request, which a P without a tool parser refuses: D decides.
            final = self._is_clients_fault(reply.status) and not exchange.request.forces_tool_call
            raise BadAnswer(leg, reply, content, final=final)
        usage = parsed.usage if parsed is not None and parsed.usage is not None else Usage()
        params = parsed.kv_transfer_params if parsed is not None else None
        reason = parsed.finish_reason if parsed is not None else None
        return LegReply(200, usage.prompt_tokens, usage.cached_tokens, params, at_s, reason)

    def _left_s(self, node: NodeId, reply: UpstreamReply) -> float:
        """No later than the time at which the reply left the node: it may have waited for us to look, or on its way."""
        stamp = date_s(reply.date)
        if stamp is None:
            return self.pulse.awake_s
        return min(self.pulse.awake_s, self._stamps[node].left_s(stamp, self._clock.now_s()))

    async def _decode(self, exchange: Exchange, leg: Leg, wait_s: float = 0.0) -> None:
        """D's leg, to the end of the answer. Its content may take `wait_s` longer to begin: P's time."""
        body = decode_body(exchange.request, leg.kv_transfer_params)
        within_s = self._upstream.timeouts.headers_s(self._prompt_tokens(exchange), exchange.request.stream)
        async with self._opened(exchange, leg, body, within_s + wait_s) as reply:
            if reply.status != 200:
                async with self._content(exchange, reply) as content:
                    raise BadAnswer(leg, reply, content, final=self._is_clients_fault(reply.status))
            if exchange.request.stream:
                await self._relay(exchange, reply, wait_s)
            else:
                await self._whole(exchange, reply)

    @staticmethod
    def _prompt_tokens(exchange: Exchange) -> int:
        return exchange.flight.features.prompt_tokens

    @asynccontextmanager
    async def _opened(self, exchange: Exchange, leg: Leg, body: bytes, within_s: float) -> AsyncIterator[UpstreamReply]:
        """A leg's answer from its headers on. If it is left before its end the engine sees the close."""
        headers = {
            **exchange.forwarded,
            "Content-Type": "application/json",
            "Accept": "text/event-stream" if leg.purpose is Purpose.DECODE and exchange.request.stream else "*/*",
            "Accept-Encoding": "identity",
            "X-Request-Id": leg.request_id or exchange.flight.turn.request_id,
        }
        exchange.wire_id = (leg.request_id or "").encode()
        if leg.node in self._core.residency.blocks:  # its KV events repeat this with what they say
            headers["X-Session-ID"] = session_of(exchange.flight.turn.key)
        url = self._watch.url(leg.node, exchange.request.api.value)
        reply = await self._upstream.open(url, body, headers, within_s)
        try:
            yield reply
        finally:
            reply.abort()

    @asynccontextmanager
    async def _content(self, exchange: Exchange, reply: UpstreamReply) -> AsyncIterator[bytes]:
        """A whole answer, which counts for as long as it is needed. Raises NodeError."""
        with self.admission.answer() as room:
            yield exchange.public(await reply.body(MAX_ANSWER_BYTES, room.hold))

    async def _relay(self, exchange: Exchange, reply: UpstreamReply, wait_s: float) -> None:
        """A stream: every byte goes on as it came, less the usage chunk that only we asked for."""
        meter = exchange.meter = Meter(drop_usage=not exchange.request.wants_usage)
        flight, watch = exchange.flight, exchange.flight.watch
        seen = 0
        opening = b""
        async for data in reply.chunks(wait_s):
            try:
                out = exchange.public(meter.feed(data))
            except ValueError as error:
                raise NodeError(str(error)) from None
            if meter.chunks > seen:
                now_s = self._clock.now_s()
                if seen == 0:
                    self._core.first_token(flight, now_s)
                else:
                    watch.token(now_s, meter.chunks - seen)
                seen = meter.chunks
            if not exchange.started:
                if meter.errored or meter.finish_reason == "error":
                    raise NodeError("the engine reported an error")
                opening += out
                if meter.silent and len(opening) <= MAX_OPENING_BYTES:
                    continue
                out = opening
            if out:
                await exchange.stream_out(reply, out)
        rest = exchange.public(meter.finish())
        if meter.errored or not meter.done:
            raise NodeError("the engine reported an error" if meter.errored else "the stream ended without [DONE]")
        if not exchange.started:
            raise NodeError("an empty answer")
        # The record is made before the last byte: whoever has read the end finds the turn counted.
        self._endings.complete(exchange, meter.usage, meter.chunks, meter.finish_reason, meter.text)
        await exchange.last(rest)

    async def _whole(self, exchange: Exchange, reply: UpstreamReply) -> None:
        async with self._content(exchange, reply) as content:
            parsed = parse_answer(content)
            if parsed is None or not parsed.choices:
                raise NodeError("an answer without choices" if content else "an empty answer")
            reason = parsed.finish_reason
            if reason == "error":
                raise NodeError("the engine reported an error")
            self._endings.complete(exchange, parsed.usage, 0, reason, [parsed.text] if parsed.text else None)
            await exchange.pass_on(reply, content)

    @staticmethod
    def _is_clients_fault(status: int) -> bool:
        return 400 <= status < 500 and status not in RETRY_STATUSES


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _text(value: bytes | None) -> str | None:
    """A header's value, if it is printable and of a sane length."""
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    return text if 0 < len(text) <= MAX_ID_LENGTH and text.isprintable() else None
