"""Asking engines, for the doctor: one request a connection, bounded in time and size, no redirects. A key is sent
where one is given and appears in no message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp

MAX_BYTES = 8 * 2**20
SAID = 200
"""Characters of an engine's error message that are passed on."""


class NoAnswer(Exception):
    """The engine did not answer; the message says how, without the address."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> object:
        """The body, None if it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def refusal(self) -> str:
        """Status and the engine's own words, for a message."""
        value = self.json
        error = value.get("error") if isinstance(value, dict) else None
        said = error.get("message") if isinstance(error, dict) else error
        words = " ".join(str(said).split()) if isinstance(said, str) else ""
        return f"status {self.status}" + (f" ({words[:SAID]})" if words else "")


class Http:
    """Requests to engines, as a context manager."""

    def __init__(self, timeout_s: float, api_key: str | None = None) -> None:
        self.timeout_s = timeout_s
        self._key = api_key

    async def __aenter__(self) -> Http:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, url: str, headers: Mapping[str, str] | None = None, *, key: bool = True) -> Reply:
        """GET. Raises NoAnswer."""
        return await self._ask("GET", url, None, headers or {}, key)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """POST a JSON body. Raises NoAnswer."""
        return await self._ask("POST", url, body, {"Content-Type": "application/json", **headers}, True)

    async def _ask(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], key: bool) -> Reply:
        sent = dict(headers)
        if key and self._key:
            sent["Authorization"] = f"Bearer {self._key}"
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                self._session.request(method, url, data=body, headers=sent, allow_redirects=False) as response,
            ):
                content = bytearray()
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > MAX_BYTES:
                        raise NoAnswer(f"an answer longer than {MAX_BYTES} bytes")
                return Reply(response.status, response.headers, bytes(content))
        except TimeoutError:
            raise NoAnswer(f"no answer within {self.timeout_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            why = error.os_error.strerror or type(error.os_error).__name__
            raise NoAnswer(f"no connection ({why.split(':')[0].strip() or 'refused'})") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoAnswer(f"the connection broke off ({type(error).__name__})") from None


async def idle_closed(url: str, watch_s: float, timeout_s: float) -> float | None:
    """How long the engine keeps an idle connection, in seconds; None if it is still open after `watch_s`. Raises
    NoAnswer."""
    where = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(where.hostname, where.port or 80)
    except (OSError, TimeoutError):
        raise NoAnswer("no connection") from None
    try:
        writer.write(f"GET /health HTTP/1.1\r\nHost: {where.netloc.rpartition('@')[2]}\r\n\r\n".encode())
        async with asyncio.timeout(timeout_s):
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.partition(b":")[2]))
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(watch_s):
                while await reader.read(4096):
                    pass
        except TimeoutError:
            return None
        return clock() - began_s
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise NoAnswer("no plain answer") from None
    finally:
        writer.close()


async def listens(host: str, port: int, timeout_s: float) -> bool:
    """Whether something takes a connection there."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
