"""Writing one streamed answer: events into chunks, chunks onto the connection, each when it is due.

A chunk is framed here and handed to the transport by the agenda's callback: no task wakes up for a token. That is
aiohttp's `StreamResponse.write` without its coroutine (some 4 µs a chunk instead of 15); the response is prepared and
ended by aiohttp. All plain tokens of an answer have the same length, so all but their 4 bytes is made once.

A client that reads too slowly is written to all the same: what waits in memory is bounded by its answer.
"""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Sequence

from .bodies import Part
from .logprobs import tokens_of
from .replies import Envelope, Usage
from .script import Script
from .tokens import BYTES_PER_TOKEN

DONE = b"data: [DONE]\n\n"
_PROBE = "wxyz"


class Stream:
    """The events of one answer on one connection."""

    def __init__(self, transport: Transport, chunked: bool, envelope: Envelope, parts: Sequence[Part]) -> None:
        self._transport = transport
        self._unopened = parts
        self._chunked = chunked
        self._envelope = envelope

    def teller(self, part: Part, script: Script, usage_each: bool) -> Teller:
        """Who tells one choice of it."""
        return Teller(self, self._envelope, part, script, usage_each)

    def openings(self, usage: str) -> list[bytes]:
        """The chunks before the first token of all, once: vLLM begins all choices together."""
        parts, self._unopened = self._unopened, ()
        opened = [self._envelope.opening(part, usage) for part in parts]
        return [event for event in opened if event]

    def write(self, *events: bytes) -> None:
        """Events that are due together."""
        if not self._transport.is_closing():
            self._transport.write(b"".join([self.frame(event) for event in events]))

    def frame(self, event: bytes) -> bytes:
        """An event as a chunk of HTTP/1.1, or as it is for HTTP/1.0."""
        return b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event

    def put(self, framed: bytes) -> None:
        """A chunk that is framed already."""
        if not self._transport.is_closing():
            self._transport.write(framed)


class Teller:
    """Tells one choice token by token."""

    def __init__(self, stream: Stream, envelope: Envelope, part: Part, script: Script, usage_each: bool) -> None:
        self._stream = stream
        self._envelope = envelope
        self._part = part
        self._script = script
        self._usage_each = usage_each
        self._pieces = script.pieces()
        self._called = False
        extras = envelope.extras
        self._tokens = tokens_of(script.text, script.tokens) if extras.of_tokens else []
        self._echo = part.prelude.text or "" if not envelope.chat else ""
        self._plain = script.words and script.tool is None and not usage_each and not extras.of_tokens
        head, tail = stream.frame(self._event(0, _PROBE)).split(_PROBE.encode(), 1) if self._plain else (b"", b"")
        self._head, self._tail = head, tail

    def tell(self, token: int, closing: Usage | None) -> None:
        """Token number `token`, from 1; `closing` ends the stream behind it."""
        piece, script = self._pieces[token - 1], self._script
        last = token == script.tokens
        if self._plain and piece is not None and len(piece) == len(_PROBE) and not last and token > 1:
            self._stream.put(b"%b%b%b" % (self._head, piece.encode(), self._tail))
            return
        events = []
        if token == 1:
            events += self._stream.openings(self._usage(0))
        if script.tool is not None:
            events += self._call(token, piece)
        elif piece is not None or last or (token == 1 and self._echo):
            events.append(self._event(token, piece or ""))
        if closing is not None:
            events += [self._envelope.usage(closing)] if self._envelope.include_usage else []
            events.append(DONE)
        if events:
            self._stream.write(*events)

    def _call(self, token: int, piece: str | None) -> list[bytes]:
        """A call begins with its name, and ends with an empty delta: the token that the model ends it with."""
        envelope, part, script, usage = self._envelope, self._part, self._script, self._usage(token)
        events = []
        if piece is not None and not self._called:
            self._called = True
            events.append(envelope.token(part, envelope.call_delta(part, script), usage, token))
        last = token == script.tokens
        if piece and not (last and script.finish == "length"):
            events.append(envelope.token(part, envelope.delta(script, piece), usage, token))
            piece = None
        if last:
            events.append(envelope.last(part, envelope.delta(script, piece) if piece else "{}", script, usage, token))
        return events

    def _event(self, token: int, piece: str) -> bytes:
        part, script = self._part, self._script
        delta = self._envelope.delta(script, self._echo + piece if token == 1 else piece)
        usage = self._usage(token)
        made, tokens = BYTES_PER_TOKEN * (token - 1), self._tokens[max(0, token - 1) : token]
        if token == script.tokens:
            return self._envelope.last(part, delta, script, usage, made, tokens)
        return self._envelope.token(part, delta, usage, made, tokens)

    def _usage(self, made: int) -> str:
        if not self._usage_each:
            return ""
        counts = Usage(self._part.rendered.tokens, made, 0, None)
        return f',"usage":{counts.short(self._envelope.chat)}'
