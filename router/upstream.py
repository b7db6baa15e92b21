"""One upstream request: `open(leg)` gives status, headers, chunks and `abort()`. aiohttp behind it, for now.

What can go wrong before the body is a NodeError that says whether the node refused, was silent, or broke off;
the dispatcher decides what that means.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp
from yarl import URL


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `first_byte_s` is from sending to the answer's headers, `gap_s` between two pieces of it. The headers of
    an unstreamed answer come when all of it has been generated, so they have `answer_s`. Both grow by
    `per_prompt_token_s` with the prompt: a long one is no sign of a node that hangs."""

    connect_s: float = 2.0
    first_byte_s: float = 120.0
    gap_s: float = 60.0
    answer_s: float = 600.0
    per_prompt_token_s: float = 0.001

    def __post_init__(self) -> None:
        if min(self.connect_s, self.first_byte_s, self.gap_s, self.answer_s) <= 0:
            raise ValueError("timeouts must be positive")
        if self.per_prompt_token_s < 0:
            raise ValueError("per_prompt_token_s must not be negative")

    def headers_s(self, prompt_tokens: int, stream: bool) -> float:
        """How long the headers of an answer may take."""
        return (self.first_byte_s if stream else self.answer_s) + self.prompt_s(prompt_tokens)

    def prompt_s(self, prompt_tokens: int) -> float:
        """What a prompt of that length may take longer."""
        return self.per_prompt_token_s * prompt_tokens


KEEPALIVE_S = 4.0
"""vLLM closes idle connections after 5 s; a request on one that is just being closed would be lost."""


class NodeError(Exception):
    """An engine could not be used. `refused`: nobody listens there."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class NodeTimeout(NodeError):
    """The engine did not answer in time."""


class OwnLimit(NodeError):
    """This process or its host is out of descriptors, ports or memory: no engine is to blame, none would do better."""


_OWN = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN})


def _not_connected(error: aiohttp.ClientConnectorError) -> NodeError:
    if error.errno in _OWN:
        return OwnLimit(f"no connection to the engine could be made here: {error.os_error.strerror or error.os_error}")
    return NodeError("connection refused", refused=True)


class UpstreamReply:
    """An answer that has begun."""

    __slots__ = ("_gap_s", "_response", "content_type", "date", "status")

    def __init__(self, response: aiohttp.ClientResponse, gap_s: float) -> None:
        self._response = response
        self._gap_s = gap_s
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "application/json")
        self.date = response.headers.get("Date")

    async def chunks(self, wait_s: float = 0.0) -> AsyncIterator[bytes]:
        """Pieces of the body as they arrive; the first one may take `wait_s` longer. Raises NodeError if it breaks
        off, NodeTimeout on silence."""
        content = self._response.content
        within_s = self._gap_s + wait_s
        try:
            while True:
                async with asyncio.timeout(within_s):
                    data = await content.readany()
                if not data:
                    return
                yield data
                within_s = self._gap_s
        except TimeoutError:
            raise NodeTimeout(f"nothing for {within_s:g} s in the middle of an answer") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NodeError(f"the answer broke off ({type(error).__name__})") from None

    async def body(self, limit_bytes: int, hold: Callable[[int], bool] = lambda size_bytes: True) -> bytes:
        """The whole body. `hold` says whether there is room for so many bytes more. Raises NodeError if it is longer
        than the limit, OwnLimit without room."""
        parts: list[bytes] = []
        size = 0
        async for part in self.chunks():
            size += len(part)
            if size > limit_bytes:
                raise NodeError(f"the answer is longer than {limit_bytes} bytes")
            if not hold(len(part)):
                raise OwnLimit("the answers of all requests at once are too much to be kept here")
            parts.append(part)
        return b"".join(parts)

    def abort(self) -> None:
        """Close the connection: the engine stops the work. Harmless after the end."""
        self._response.close()


@dataclass(slots=True)
class Fetched:
    """A small answer. `fresh`: no connection of an earlier `fetch` could be used, as after a restart of the engine."""

    status: int = 0
    body: bytes = b""
    fresh: bool = False


class Upstream:
    """Connections to the engines of one router process. `engine_key` is what engines behind --api-key ask for."""

    def __init__(self, timeouts: Timeouts, max_connections: int = 4096, engine_key: str | None = None) -> None:
        self.timeouts = timeouts
        self._authorization = {"Authorization": f"Bearer {engine_key}"} if engine_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._control: aiohttp.ClientSession | None = None
        self._max_connections = max_connections

    async def start(self) -> None:
        """Open the pool; call inside the running loop."""
        connector = aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=KEEPALIVE_S)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.timeouts.connect_s)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_note_fresh)
        # Connections of their own: a new one means something only where no other traffic opens any.
        small = aiohttp.TCPConnector(keepalive_timeout=KEEPALIVE_S)
        self._control = aiohttp.ClientSession(connector=small, timeout=timeout, trace_configs=[trace])

    async def close(self) -> None:
        """Close the pool."""
        for session in (self._session, self._control):
            if session is not None:
                await session.close()
        self._session = self._control = None

    async def open(
        self, url: str, body: bytes, headers: Mapping[str, str], first_byte_s: float, method: str = "POST"
    ) -> UpstreamReply:
        """Send and wait for the answer's headers. Raises NodeError or NodeTimeout."""
        assert self._session is not None, "Upstream.start was not called"
        try:
            async with asyncio.timeout(first_byte_s):
                response = await self._session.request(
                    method,
                    URL(url, encoded=True),
                    data=body or None,
                    headers={**headers, **self._authorization},
                    allow_redirects=False,
                )
        except (TimeoutError, aiohttp.ServerTimeoutError):
            raise NodeTimeout("no answer in time") from None
        except aiohttp.ClientConnectorError as error:
            raise _not_connected(error) from None
        except (aiohttp.ClientError, OSError) as error:
            raise NodeError(f"no answer ({type(error).__name__})") from None
        return UpstreamReply(response, self.timeouts.gap_s)

    async def get(self, url: str, timeout_s: float, *, keyed: bool = True) -> tuple[int, bytes]:
        """A small GET: health, models, metrics. `keyed`: an engine is asked, and gets the key for engines. Raises
        NodeError or NodeTimeout."""
        fetched = await self.fetch(url, timeout_s, keyed=keyed)
        return fetched.status, fetched.body

    async def fetch(self, url: str, timeout_s: float, *, keyed: bool = True) -> Fetched:
        """The same, and whether it took a new connection. Raises NodeError or NodeTimeout."""
        assert self._control is not None, "Upstream.start was not called"
        fetched = Fetched()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._control.get(
                    url,
                    headers=self._authorization if keyed else {},
                    allow_redirects=False,
                    trace_request_ctx=fetched,
                ) as response,
            ):
                fetched.status, fetched.body = response.status, await response.read()
                return fetched
        except TimeoutError:
            raise NodeTimeout("no answer in time") from None
        except aiohttp.ClientConnectorError as error:
            raise _not_connected(error) from None
        except (aiohttp.ClientError, OSError) as error:
            raise NodeError(f"no answer ({type(error).__name__})") from None


async def _note_fresh(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceConnectionCreateEndParams
) -> None:
    if isinstance(context.trace_request_ctx, Fetched):
        context.trace_request_ctx.fresh = True
