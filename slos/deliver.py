"""A shell: posts notices to one URL, in their order, each until it is taken. At least once: what waits can be had as
`outbox`, kept by whoever has a disk, and given back as `waiting` at the next start, under the same ids.

`offer` only puts a body in the queue; `flush` is a job that posts what is due and is called every second or two.
The first that fails holds back the rest (a resolve must not overtake its alert) and is tried again after a
pause that doubles up to a minute, with jitter. A body that the receiver says it will never take (400, 413, 422)
is dropped, and so is one that nobody took for an hour, or the oldest of a full queue. Each of these is counted.

Every try of one body carries the same `X-Trimtab-Delivery`, and with a secret `X-Trimtab-Signature:
sha256=<hex HMAC-SHA256 of the body>`. URLs often are secrets themselves: only scheme, host and port are ever
logged or shown.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import random
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

import aiohttp

log = logging.getLogger("trimtab.deliver")

NEVER_TAKEN = frozenset({400, 413, 422})


class Result(StrEnum):
    """What became of a post or of a body."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """One try; another follows."""
    REFUSED = "refused"
    EXPIRED = "expired"
    DROPPED = "dropped"
    """The queue was full."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses after failures in a row: first_s, doubled each time, at most max_s, times 1/2 to 1 by the dice."""

    first_s: float = 1.0
    max_s: float = 60.0

    def pause_s(self, failures: int, coin: float) -> float:
        """After `failures` >= 1; `coin` in [0, 1)."""
        return min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * coin)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A body that nobody has taken yet."""

    id: str
    body: bytes
    offered_s: float
    """By the delivery's clock."""


class Delivery:
    """One receiver's queue. Raises ValueError unless `url` is an http(s) URL with a host."""

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        timeout_s: float = 5.0,
        backoff: Backoff | None = None,
        give_up_s: float = 3600.0,
        max_waiting: int = 256,
        waiting: Iterable[Waiting] = (),
        coin: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shown = shown_url(url)
        self.changes = 0
        """Grows whenever something joins or leaves the queue."""
        self.results: Counter[Result] = Counter(dict.fromkeys(Result, 0))
        self._url = url
        self._secret = None if secret is None else secret.encode()
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._backoff = backoff or Backoff()
        self._give_up_s = give_up_s
        self._max_waiting = max_waiting
        self._coin = coin
        self._clock = clock
        self._queue: deque[Waiting] = deque(list(waiting)[-max_waiting:])
        self._failures = 0
        self._due_s = float("-inf")
        self._busy = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<Delivery to {self.shown}, {len(self._queue)} waiting>"

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def outbox(self) -> tuple[Waiting, ...]:
        """What waits, oldest first."""
        return tuple(self._queue)

    def offer(self, body: Mapping[str, object]) -> str:
        """Puts a JSON-ready body at the end of the queue; returns the id that its receiver will see."""
        if len(self._queue) >= self._max_waiting:
            self._queue.popleft()
            self._count(Result.DROPPED, "the queue is full")
        waiting = Waiting(uuid.uuid4().hex, json.dumps(body, ensure_ascii=False).encode(), self._clock())
        self._queue.append(waiting)
        self.changes += 1
        return waiting.id

    async def flush(self) -> None:
        """Posts what is due, one by one, until one fails. Raises nothing; a second call at once waits its turn."""
        async with self._busy:
            while self._queue and self._clock() >= self._due_s:
                first = self._queue[0]
                try:
                    status, why = await self._post(first)
                except asyncio.CancelledError:
                    self._failed("cancelled")
                    raise
                if status is not None and 200 <= status < 300:
                    self._done(first, Result.DELIVERED)
                elif status in NEVER_TAKEN:
                    self._done(first, Result.REFUSED, why)
                elif self._clock() - first.offered_s >= self._give_up_s:
                    self._done(first, Result.EXPIRED, why)
                else:
                    self._failed(why)

    async def once(self, body: Mapping[str, object]) -> str:
        """Posts one body now, beside the queue; what came of it."""
        alone = Waiting(uuid.uuid4().hex, json.dumps(body, ensure_ascii=False).encode(), self._clock())
        status, why = await self._post(alone)
        return Result.DELIVERED.value if status is not None and 200 <= status < 300 else why

    async def close(self) -> None:
        """Ends the session; what still waits stays in `outbox`."""
        if self._queue:
            log.warning("%d notices for %s were not delivered yet", len(self._queue), self.shown)
        if self._session is not None:
            await self._session.close()

    async def _post(self, waiting: Waiting) -> tuple[int | None, str]:
        headers = {"Content-Type": "application/json", "X-Trimtab-Delivery": waiting.id}
        if self._secret is not None:
            headers["X-Trimtab-Signature"] = signature(waiting.body, self._secret)
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        try:
            async with self._session.post(
                self._url, data=waiting.body, headers=headers, allow_redirects=False
            ) as response:
                return response.status, f"status {response.status}"
        except TimeoutError:
            return None, "timeout"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return None, type(error).__name__  # its text may hold the URL

    def _failed(self, why: str) -> None:
        self._failures += 1
        pause_s = self._backoff.pause_s(self._failures, self._coin())
        self._due_s = self._clock() + pause_s
        self._count(Result.FAILED, f"{why}; again in {pause_s:.1f} s")

    def _done(self, waiting: Waiting, result: Result, why: str = "") -> None:
        # While it was posted, a full queue may have dropped it already.
        if self._queue and self._queue[0] is waiting:
            self._queue.popleft()
            self.changes += 1
        if result is not Result.EXPIRED:  # whoever let it expire is still away
            self._failures = 0
            self._due_s = float("-inf")
        self._count(result, why)

    def _count(self, result: Result, why: str) -> None:
        self.results[result] += 1
        if result is not Result.DELIVERED:
            log.warning("notice to %s %s: %s", self.shown, result.value, why)


def signature(body: bytes, secret: bytes) -> str:
    """The value of X-Trimtab-Signature."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def shown_url(url: str) -> str:
    """What of an http(s) URL may be shown. Raises ValueError where it is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https"):
        raise ValueError("a webhook's URL is http:// or https:// with a host")
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
