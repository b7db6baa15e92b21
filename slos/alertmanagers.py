"""A shell: keeps every Alertmanager of a cluster told of what fires. Level, not edge: no queue that can be lost.

`show` says what is so, `push` is a job that posts to each peer what it is due: at once what it does not know yet, and
everything every minute. Each peer is posted to by itself, never through a load balancer, for peers gossip silences and
notifications, not alerts. A peer that is away or answers 5xx is tried again after growing pauses with jitter. What a
peer refuses with 4xx is found out alert by alert, and not posted to it again until it changes.

A peer's URL may hold a password: only scheme, host and port are ever logged or shown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import aiohttp

from .deliver import Backoff, Result, shown_url
from .sinks.alertmanager import RESEND_S, Posted, postable

log = logging.getLogger("trimtab.alertmanagers")

PATH = "/api/v2/alerts"
MAX_ALERTS = 1000
_Seen = tuple[str, bool]
"""Fingerprint, and whether it is over."""


class Alertmanagers:
    """All peers. Raises ValueError unless each of `urls` is an http(s) URL with a host."""

    def __init__(
        self,
        urls: Iterable[str],
        *,
        timeout_s: float = 5.0,
        resend_s: float = RESEND_S,
        backoff: Backoff | None = None,
        coin: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.results: Counter[Result] = Counter(dict.fromkeys(Result, 0))
        self._peers = [_Peer(url) for url in urls]
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._resend_s = resend_s
        self._backoff = backoff or Backoff(max_s=30.0)
        self._coin, self._clock, self._wall = coin, clock, wall
        self._alerts: tuple[Posted, ...] = ()
        self._session: aiohttp.ClientSession | None = None

    @property
    def shown(self) -> list[str]:
        """The peers, without what may be secret."""
        return [peer.shown for peer in self._peers]

    @property
    def waiting(self) -> int:
        """Alerts that some peer does not know as they are."""
        return max((len(self._unknown(peer)) for peer in self._peers), default=0)

    def show(self, alerts: Sequence[Posted]) -> None:
        """What is to be known from now on: what fires, and what is over and not yet forgotten."""
        self._alerts = tuple(alerts[:MAX_ALERTS])

    def knows(self, alert: Posted) -> bool:
        """Whether every peer that can be reached knows it as it is."""
        place = (alert.fingerprint, alert.ends_s is not None)
        return all(place in peer.known or place[0] in peer.refused for peer in self._peers)

    async def push(self) -> None:
        """Post to each peer what it is due. Raises nothing."""
        await asyncio.gather(*(self._push(peer) for peer in self._peers))

    async def once(self, alert: Posted) -> dict[str, str]:
        """Post one alert now, beside all else; by peer what came of it."""
        found = await asyncio.gather(*(self._post(peer, [alert]) for peer in self._peers))
        return {peer.shown: _word(status, why) for peer, (status, why) in zip(self._peers, found, strict=True)}

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            await self._session.close()

    async def _push(self, peer: _Peer) -> None:
        now_s = self._clock()
        if peer.busy or now_s < peer.due_s:
            return
        if not self._unknown(peer) and now_s - peer.posted_s < self._resend_s:
            return
        alerts = [alert for alert in self._alerts if peer.refused.get(alert.fingerprint) != _content(alert)]
        if not alerts:
            return
        peer.busy = True
        try:
            status, why = await self._post(peer, alerts)
            if status is not None and 400 <= status < 500 and status not in (408, 429):
                status, why = await self._one_by_one(peer, alerts, why)
            if status is None or not 200 <= status < 300:
                self._failed(peer, why)
                return
            peer.failures, peer.due_s, peer.posted_s = 0, float("-inf"), now_s
            peer.known = {_seen(alert) for alert in alerts if alert.fingerprint not in peer.refused}
            self.results[Result.DELIVERED] += 1
        finally:
            peer.busy = False

    async def _one_by_one(self, peer: _Peer, alerts: Sequence[Posted], why: str) -> tuple[int | None, str]:
        """A batch was refused: find which, and leave those out until they change."""
        for alert in alerts:
            status, why = await self._post(peer, [alert])
            if status is None or status >= 500 or status in (408, 429):
                return status, why
            if 400 <= status < 500:
                peer.refused[alert.fingerprint] = _content(alert)
                self.results[Result.REFUSED] += 1
                log.error("%s refuses alert %s: %s", peer.shown, alert.labels.get("alertname"), why)
        while len(peer.refused) > MAX_ALERTS:
            del peer.refused[next(iter(peer.refused))]
        return 200, ""

    def _unknown(self, peer: _Peer) -> list[Posted]:
        return [
            alert
            for alert in self._alerts
            if _seen(alert) not in peer.known and peer.refused.get(alert.fingerprint) != _content(alert)
        ]

    async def _post(self, peer: _Peer, alerts: Sequence[Posted]) -> tuple[int | None, str]:
        bodies = []
        for alert in alerts:
            try:
                bodies.append(postable(alert, self._wall()))
            except ValueError as error:
                log.error("an alert is left out: %s", error)
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        try:
            async with self._session.post(
                peer.url,
                data=json.dumps(bodies, ensure_ascii=False).encode(),
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                return response.status, f"status {response.status}"
        except TimeoutError:
            return None, "timeout"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return None, type(error).__name__  # its text may hold the URL

    def _failed(self, peer: _Peer, why: str) -> None:
        peer.failures += 1
        pause_s = self._backoff.pause_s(peer.failures, self._coin())
        peer.due_s = self._clock() + pause_s
        self.results[Result.FAILED] += 1
        log.warning("%s was not told of %d alerts: %s; again in %.1f s", peer.shown, len(self._alerts), why, pause_s)


class _Peer:
    def __init__(self, url: str) -> None:
        self.shown = shown_url(url)
        self.url = url.rstrip("/") + PATH
        self.known: set[_Seen] = set()
        self.refused: dict[str, str] = {}
        self.posted_s = self.due_s = float("-inf")
        self.failures = 0
        self.busy = False


def _seen(alert: Posted) -> _Seen:
    return alert.fingerprint, alert.ends_s is not None


def _content(alert: Posted) -> str:
    return json.dumps([sorted(alert.labels.items()), sorted(alert.annotations), alert.generator_url])


def _word(status: int | None, why: str) -> str:
    return "delivered" if status is not None and 200 <= status < 300 else why
