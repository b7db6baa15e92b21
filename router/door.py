"""The listening side of one process: how many connections, how large and how slow a request's head may be, and how
many file descriptors all that may take.

uvicorn bounds none of these with its fast parser: a head without an end would be kept in memory, and a connection that
never says anything would be kept for ever. Here a head above `MAX_HEAD_BYTES` is answered with 431, one that is not
whole within `HEAD_S` is closed, and a connection beyond `max_connections` is closed at once. llhttp, underneath,
refuses what two parsers could read differently (Content-Length twice, or beside Transfer-Encoding, blanks before a
colon, control characters): that is answered with 400. Either way the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .errors import STATUS, Code, error_body

log = logging.getLogger("trimtab.door")

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers of one request, and the trailers after its body."""
HEAD_S = 30.0
SPARE_DESCRIPTORS = 128
"""For the log, the state directory, probes and the line to the control process."""
PER_REQUEST = 3
"""A client's connection, and one to each of two engines."""


@dataclass(slots=True)
class Door:
    """What its connections count together."""

    max_connections: int
    open: int = 0
    turned_away: int = 0
    heads_refused: int = 0
    head_s: float = HEAD_S

    def protocol(self, **options: Any) -> asyncio.Protocol:
        """One connection, as uvicorn's factory wants it."""
        return BoundedProtocol(self, **options)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's connection with these bounds."""

    def __init__(self, door: Door, **options: Any) -> None:
        super().__init__(**options)
        self._door = door
        self._head_bytes = 0
        """Of the request that is being read, as far as its parts are whole."""
        self._unfinished_bytes = 0
        """Received since the last whole part."""
        self._too_large = False
        self._impatient: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._door.open += 1
        if self._door.open > self._door.max_connections:
            self._door.turned_away += 1
            transport.abort()
            return
        self._impatient = self.loop.call_later(self._door.head_s, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.open -= 1
        self._patient()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._head_bytes = self._unfinished_bytes = 0
        if self._impatient is None:
            self._impatient = self.loop.call_later(self._door.head_s, self._give_up)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unfinished_bytes = 0
        self._patient()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be answered within HTTP: in the shape of every other error, and the connection ends."""
        self._door.heads_refused += 1
        code, text = Code.BAD_REQUEST, "this is no request in HTTP 1"
        if self._too_large:
            code, text = Code.HEADERS_TOO_LARGE, f"the request's head is larger than {MAX_HEAD_BYTES} bytes"
        body = error_body(code, text)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[STATUS[code]] + head + body)
        self.transport.close()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        self._unfinished_bytes = 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError("the request's head is too large")

    def _patient(self) -> None:
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self._door.heads_refused += 1
            self.transport.close()


def descriptors() -> int:
    """Open file descriptors of this process; 0 where that cannot be told."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def raise_limit(set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit) -> int:
    """Take as many descriptors as the host allows; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65_536)
    if wanted > soft:
        try:
            set_limit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
        except (OSError, ValueError) as error:
            log.warning("the limit of %d file descriptors could not be raised: %s", soft, error)
    return soft


def most_requests(wanted: int, limit: int) -> int:
    """Requests at once that so many descriptors allow, at most `wanted`."""
    room = max(1, (limit - SPARE_DESCRIPTORS) // PER_REQUEST)
    if room < wanted:
        log.warning("%d file descriptors allow %d requests at once, not %d; raise the limit", limit, room, wanted)
    return min(wanted, room)


def most_connections(requests: int, limit: int) -> int:
    """Clients' connections, idle ones too, beside what so many requests need towards engines."""
    return max(requests, limit - SPARE_DESCRIPTORS - (PER_REQUEST - 1) * requests)
