"""A router process's inside, in the test's own loop: real sockets on both sides, no control process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import uvicorn
from prometheus_client import CollectorRegistry

from router.app import create_app
from router.clock import Clock
from router.connectors import CONNECTORS
from router.connectors.protocol import ConnectorOptions
from router.core import RouterCore
from router.current import Current
from router.dispatch import Dispatcher, DispatchOptions
from router.metrics import RouterMetrics
from router.nodes import NodeWatch, endpoints
from router.policy import Policy, Publication, Weights
from router.recognition import Recognition, Recogniser
from router.record import TurnRecord
from router.upstream import Timeouts, Upstream
from slos.objective import Slo

from .fake_engine import FakeEngine


@dataclass
class Installation:
    """What a test looks at."""

    url: str
    core: RouterCore
    dispatcher: Dispatcher
    watch: NodeWatch
    records: list[TurnRecord] = field(default_factory=list)

    def quiet(self) -> bool:
        """Nothing is in flight and every load is back to zero."""
        loads = self.core.load.values()
        return not self.core.flights() and all(
            load.sequences == 0 and load.kv_tokens == 0 and len(load.prefill) == 0 and len(load.link) == 0 for load in loads
        )

    async def settle(self, within_s: float = 2.0) -> None:
        """Wait until it is quiet."""
        for _ in range(round(within_s / 0.02)):
            if self.quiet() and self.dispatcher.active == 0:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"still busy: {self.core.flights()}, active {self.dispatcher.active}")


@asynccontextmanager
async def installation(
    prefill: Sequence[FakeEngine] = (),
    decode: Sequence[FakeEngine] = (),
    replica: Sequence[FakeEngine] = (),
    *,
    pin_x: float | None = None,
    policy: Policy | None = None,
    slos: tuple[Slo, ...] = (),
    timeouts: Timeouts | None = None,
    options: DispatchOptions | None = None,
    rule: Recognition = Recognition.CHAIN,
    lease_s: float = 30.0,
    start_engines: bool = True,
) -> AsyncIterator[Installation]:
    """Engines and a router in front of them."""
    engines = [*prefill, *decode, *replica]
    if start_engines:
        for engine in engines:
            await engine.start()
    upstream = Upstream(timeouts or Timeouts(1.0, 5.0, 5.0))
    watch = NodeWatch(endpoints(*([e.url for e in role] for role in (prefill, decode, replica))), upstream)
    clock = Clock()
    current = Current(Publication(1, {"main": policy or Policy(1, {}, Weights(1, 1), pin_x=pin_x)}))
    core = RouterCore(
        current, watch.nodes(), CONNECTORS["nixl"](ConnectorOptions(lease_s=lease_s)), slos, start_s=clock.now_s()
    )
    watch.attach(core)
    records: list[TurnRecord] = []
    ids = count(1)
    dispatcher = Dispatcher(
        core,
        upstream,
        watch,
        Recogniser(b"k" * 32, rule),
        clock,
        random.Random(0).random,
        lambda: f"id{next(ids)}",
        records.append,
        RouterMetrics(CollectorRegistry(), slos),
        options or DispatchOptions(prefill_timeout_s=5.0),
    )
    await upstream.start()
    await watch.probe_all()
    await watch.probe_all()
    server = uvicorn.Server(
        uvicorn.Config(create_app(core, dispatcher, watch, upstream), port=0, log_config=None, access_log=False)
    )
    task = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Installation(f"http://127.0.0.1:{port}", core, dispatcher, watch, records)
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
        await upstream.close()
        for engine in engines:
            await engine.stop()
