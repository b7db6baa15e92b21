"""The router in this process: its production core, dispatcher and connections, less the listening socket.

Turns enter the dispatcher as ASGI messages, so what is measured is what a router in front of this fleet measures:
from the request's acceptance to the first content, by the router's own clock, with the same records. x is pinned.
Left out: the hop from a client to the router, and tables: without one all prompts are booked alike, as in virtual time.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry

from router.body import Api
from router.clock import Clock
from router.connectors import CONNECTORS
from router.connectors.protocol import ConnectorOptions
from router.core import RouterCore
from router.current import Current
from router.dispatch import Dispatcher, DispatchOptions
from router.metrics import RouterMetrics
from router.nodes import Endpoint, NodeWatch
from router.policy import Policy, Publication, Weights
from router.recognition import Recogniser
from router.record import TurnRecord
from router.sse import Meter
from router.turn import NodeId
from router.upstream import Timeouts, Upstream

from ..cells import TIMEOUT_S

MAX_ERROR_CHARS = 200
POLL_S = 0.25


@dataclass(slots=True)
class Answer:
    """What came back; status 0 if nothing came in time. `error` is the beginning of an answer that is none."""

    status: int
    text: str
    complete: bool
    error: str = ""


@dataclass(slots=True)
class _Exchange:
    """One ASGI exchange: what is sent in and what comes out."""

    body: bytes | None
    status: int = 0
    whole: bytearray = field(default_factory=bytearray)
    meter: Meter = field(default_factory=lambda: Meter(drop_usage=False))
    first: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> MutableMapping[str, Any]:
        """The request, once; then nothing until its client leaves."""
        if self.body is None:
            await self.left.wait()
            return {"type": "http.disconnect"}
        body, self.body = self.body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """A piece of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.status == 200:
            self.meter.feed(message["body"])
            if self.meter.chunks:
                self.first.set()
        elif len(self.whole) < MAX_ERROR_CHARS:
            self.whole += message["body"]


class Rig:
    """Use as a context manager; `records` grows by one a turn."""

    def __init__(self, addresses: Mapping[NodeId, Endpoint], connector: str, lease_s: float) -> None:
        self.clock = Clock()
        self.records: list[TurnRecord] = []
        self.upstream = Upstream(Timeouts(first_byte_s=TIMEOUT_S))
        self.watch = NodeWatch(dict(addresses), self.upstream, now_s=self.clock.now_s, leave_slow=False)
        self._current = Current(Publication(1, {"main": Policy(1, {}, Weights(1, 1), provenance="calibration")}))
        self.core = RouterCore(
            self._current,
            self.watch.nodes(),
            CONNECTORS[connector](ConnectorOptions(lease_s=lease_s)),
            (),
            start_s=self.clock.now_s(),
        )
        self.watch.attach(self.core)
        ids = count(1)
        run = secrets.token_hex(4)
        self._dispatcher = Dispatcher(
            self.core,
            self.upstream,
            self.watch,
            Recogniser(secrets.token_bytes(32)),
            self.clock,
            random.random,
            lambda: f"calibrate-{run}-{next(ids)}",
            lambda record, _: self.records.append(record),
            RouterMetrics(CollectorRegistry(), ()),
            DispatchOptions(prefill_timeout_s=TIMEOUT_S),
        )
        self._tasks: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Rig:
        await self.upstream.start()
        await self.watch.probe_all()
        self._tasks = [asyncio.ensure_future(each.run()) for each in (self.watch, self._dispatcher.pulse)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.upstream.close()

    def pin(self, x: int) -> None:
        """All later turns through P (0), or all local (1)."""
        self._current.pin(float(x))

    def down(self) -> list[str]:
        """Nodes that do not answer, with their addresses."""
        return [
            f"{node.id} ({self.watch.addresses[node.id].url})" for node in self.core.nodes.values() if not node.usable
        ]

    async def back(self, within_s: float) -> bool:
        """Wait until every node answers."""
        end_s = self.clock.now_s() + within_s
        while self.down():
            if self.clock.now_s() > end_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def chat(self, body: bytes, session: str) -> Answer:
        """One streamed turn of a conversation. Its client leaves if no content has come after `TIMEOUT_S`."""
        exchange = _Exchange(body)
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "headers": [(b"content-type", b"application/json"), (b"x-session-id", session.encode())],
        }
        turn = asyncio.ensure_future(self._dispatcher.handle(Api.CHAT, scope, exchange.receive, exchange.send))
        first = asyncio.ensure_future(exchange.first.wait())
        try:
            await asyncio.wait((turn, first), timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done() and not first.done():
                exchange.left.set()
            await turn
        finally:
            for task in (turn, first):
                task.cancel()
            await asyncio.gather(turn, first, return_exceptions=True)
        complete = exchange.status == 200 and exchange.meter.done
        error = "" if complete else exchange.whole.decode("utf-8", "replace")[:MAX_ERROR_CHARS]
        status = 0 if exchange.left.is_set() else exchange.status
        return Answer(status, "".join(exchange.meter.text or ()), complete, error)
