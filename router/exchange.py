"""One request on its way: what is known of it, and what goes out to its client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from .answers import Header, Send, answer, fail, told
from .body import ClientRequest
from .connectors.protocol import Leg
from .core import Flight
from .errors import Code
from .recognition import Recognised
from .sse import Meter
from .upstream import NodeError, UpstreamReply


@dataclass(slots=True, eq=False)
class Exchange:
    """The state of one request on its way."""

    send: Send
    request: ClientRequest
    request_id: str
    found: Recognised
    flight: Flight
    forwarded: Mapping[str, str] = field(default_factory=dict)
    """The client's headers that go on to engines."""
    started: bool = False
    meter: Meter | None = None
    failure: NodeError | None = None
    """Of the last leg that failed, for when no other node is left."""
    work: asyncio.Task[None] | None = None
    cut: bool = False
    """The router is leaving and waits no longer."""
    wire_id: bytes = b""
    """The request id that the engines got, where it holds addresses that are none of the client's business."""

    def public(self, data: bytes) -> bytes:
        """What an engine said, with our own id in the place of that one."""
        return data.replace(self.wire_id, self.flight.turn.request_id.encode()) if self.wire_id else data

    def headers(self) -> list[Header]:
        """How the turn went, for its answer."""
        return told(self.flight, self.request_id)

    async def pass_on(self, reply: UpstreamReply, content: bytes) -> None:
        """A whole answer, as the engine gave it."""
        await answer(self.send, reply.status, content, reply.content_type, self.headers())

    async def stream_out(self, reply: UpstreamReply, data: bytes) -> None:
        """A piece of a stream; the headers go out before the first."""
        if not self.started:
            self.started = True
            headers = [(b"content-type", reply.content_type.encode()), (b"cache-control", b"no-cache"), *self.headers()]
            await self.send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def last(self, data: bytes) -> None:
        """The end of a stream."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def fail(self, code: Code, why: str) -> None:
        """An answer of our own, where nothing has gone out."""
        await fail(self.send, code, why, self.headers())


class BadAnswer(NodeError):
    """A whole answer of a node that failed, to hand on if no other node does better; `final`: at once."""

    def __init__(self, leg: Leg, reply: UpstreamReply, content: bytes, *, final: bool = False) -> None:
        super().__init__(f"{leg.purpose} answered {reply.status}")
        self.reply = reply
        self.content = content
        self.final = final


class LegsFailed(Exception):
    """Of two legs sent at once, the first of `legs` failed with that error; the others may have had a part in it."""

    def __init__(self, error: NodeError, *legs: Leg) -> None:
        super().__init__(str(error))
        self.error = error
        self.legs = legs
