"""Writing one streamed answer: events into chunks, chunks onto the connection, each when it is due.

A chunk is framed here and handed to the transport by the agenda's callback: no task wakes up for a token. That is
aiohttp's `StreamResponse.write` without its coroutine (some 4 µs a chunk instead of 15); the response is prepared and
ended by aiohttp. All plain tokens of an answer have the same length, so all but their 4 bytes is made once.

A client that reads too slowly is written to all the same: what waits in memory is bounded by its answer.
"""

from __future__ import annotations

from asyncio import Transport

from .bodies import Part
from .replies import Envelope, Usage
from .script import Script

DONE = b"data: [DONE]\n\n"
_PROBE = "wxyz"


class Stream:
    """The events of one answer on one connection."""

    def __init__(self, transport: Transport, chunked: bool, envelope: Envelope) -> None:
        self._transport = transport
        self._chunked = chunked
        self._envelope = envelope

    def teller(self, part: Part, script: Script, usage_each: bool) -> Teller:
        """Who tells one choice of it."""
        return Teller(self, self._envelope, part, script, usage_each)

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
        self._plain = script.tool is None and not usage_each
        head, tail = stream.frame(self._event(1, _PROBE)).split(_PROBE.encode(), 1) if self._plain else (b"", b"")
        self._head, self._tail = head, tail

    def tell(self, token: int, closing: Usage | None) -> None:
        """Token number `token`, from 1; `closing` ends the stream behind it."""
        piece = self._pieces[token - 1]
        last = token == self._script.tokens
        if self._plain and piece is not None and len(piece) == len(_PROBE) and not last and token > 1:
            self._stream.put(b"%b%b%b" % (self._head, piece.encode(), self._tail))
            return
        events = []
        if token == 1:
            opening = self._envelope.opening(self._part.index, self._usage(0))
            events += [opening] if opening else []
        if piece is not None or last:
            events.append(self._event(token, piece or ""))
        if closing is not None:
            events += [self._envelope.usage(closing)] if self._envelope.include_usage else []
            events.append(DONE)
        if events:
            self._stream.write(*events)

    def _event(self, token: int, piece: str) -> bytes:
        delta = self._envelope.delta(
            self._part, self._script, piece, self._script.tool is not None and not self._called
        )
        self._called = token > 0 and self._script.tool is not None
        usage = self._usage(token)
        if token == self._script.tokens:
            return self._envelope.last(self._part.index, delta, self._script, usage)
        return self._envelope.token(self._part.index, delta, usage)

    def _usage(self, made: int) -> str:
        if not self._usage_each:
            return ""
        return f',"usage":{Usage(self._part.rendered.tokens, made, 0, None).short()}'
