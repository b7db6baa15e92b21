"""Carrying out what a rule says of a request (`emulator/rules.py`): before the headers, and in the middle of a stream.

In the middle it stands between an answer and its connection: so many chunks go out, then the connection is reset, or
nothing more goes out for a time, or the engine fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from aiohttp import web

from ..rules import Mishap, Trouble
from . import errors
from .bodies import Ask, Part
from .errors import ApiError
from .replies import Envelope
from .stream import Stream
from .turn import Turn


async def before_headers(mishap: Mishap, request: web.BaseRequest) -> web.StreamResponse | None:
    """Let it befall the request. A response takes its place; None: it goes on. Raises ApiError."""
    if mishap.after is not None:
        return None
    match mishap.trouble:
        case Trouble.STATUS:
            raise ApiError(mishap.status, f"The emulator was told to answer {mishap.status}", "InternalServerError")
        case Trouble.ERROR:
            raise errors.internal()
        case Trouble.RESET:
            reset(request.transport)
            return web.Response()
        case Trouble.EMPTY:
            return web.Response(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        case Trouble.STALL:
            await asyncio.sleep(mishap.for_s if mishap.for_s < inf else 1e9)
    return None


def retold(mishap: Mishap, ask: Ask) -> Ask:
    """What the request comes to if its text ends at once."""
    finish = {Trouble.EOS: "stop", Trouble.FINISH_ERROR: "error"}.get(mishap.trouble)
    if finish is None:
        return ask
    parts = tuple(
        replace(part, script=replace(part.script, tokens=1, text="", finish=finish, stop_reason=None, tool=None))
        for part in ask.parts
    )
    return replace(ask, parts=parts)


def reset(transport: asyncio.BaseTransport | None) -> None:
    """RST: nothing of what is on its way arrives for sure."""
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()


class Interrupted(Stream):
    """A stream that something befalls after so many chunks."""

    def __init__(
        self,
        transport: asyncio.Transport,
        chunked: bool,
        envelope: Envelope,
        parts: Sequence[Part],
        mishap: Mishap,
        turn: Turn,
    ) -> None:
        super().__init__(transport, chunked, envelope, parts)
        self._mishap = mishap
        self._turn = turn
        self._left = mishap.after or 0
        self._held: list[bytes] = []
        self._over = asyncio.Event()
        """It has passed: the rest goes out."""

    async def settle(self) -> None:
        """The answer may end now. A connection that is about to be reset never ends well."""
        if self._left <= 0:
            await self._over.wait()

    def write(self, *events: bytes) -> None:
        """Events that are due together, each a chunk."""
        self.put(b"".join([self.frame(event) for event in events]), len(events))

    def put(self, framed: bytes, chunks: int = 1) -> None:
        """A chunk, or several, framed already."""
        if self._left > 0:
            self._left -= chunks
            super().put(framed)
            if self._left <= 0:
                asyncio.get_running_loop().call_soon(self._befall)
                if self._mishap.trouble is Trouble.ERROR and not self._turn.done.done():
                    self._turn.done.set_exception(errors.internal(errors.ENGINE_DEAD))
        elif self._over.is_set():
            super().put(framed)
        elif self._mishap.trouble is Trouble.STALL:
            self._held.append(framed)

    def _befall(self) -> None:
        match self._mishap.trouble:
            case Trouble.RESET:
                # A reset takes along what the peer has not read yet.
                asyncio.get_running_loop().call_later(0.02, self._transport.abort)
            case Trouble.ERROR:
                with self._turn.host.clock:  # which lets overdue tokens come first
                    self._turn.abort()
                self._over.set()  # what comes now says so
            case Trouble.STALL if self._mishap.for_s < inf:
                asyncio.get_running_loop().call_later(self._mishap.for_s, self._go_on)

    def _go_on(self) -> None:
        self._over.set()
        for framed in self._held:
            super().put(framed)
        self._held.clear()
