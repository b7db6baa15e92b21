"""A router process's inside, in the test's own loop: real sockets on both sides, no control process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from router.admission import Admission
from router.app import HotRoutes, create_app
from router.clock import Clock
from router.connectors import ADDRESSES, CONNECTORS
from router.connectors.protocol import ConnectorOptions
from router.conversations import Conversations
from router.core import RouterCore
from router.current import Current
from router.dispatch import Dispatcher, DispatchOptions
from router.door import Door
from router.doors import Doors
from router.metrics import RouterMetrics, page
from router.models import Directory, Pool
from router.nodes import NodeWatch, endpoints
from router.p_down import PrefillDownPolicy
from router.passthrough import Passthrough
from router.policy import Policy, Publication, Weights
from router.recognition import Recogniser, Recognition
from router.record import TurnRecord
from router.retries import RetryBudget
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
    upstream: Upstream
    server: ServerState
    registry: CollectorRegistry
    directory: Directory
    serve_with: Callable[[Directory], None]
    records: list[TurnRecord] = field(default_factory=list)

    def set_directory(self, directory: Directory) -> None:
        """From the next connection on, serve these models."""
        self.directory = directory
        self.serve_with(directory)

    def busy(self) -> dict[str, object]:
        """All that must be nothing when nothing is in flight."""
        core = self.core
        session = self.upstream._session
        assert session is not None and session.connector is not None
        counts: dict[str, object] = {
            "flights": len(core.flights()),
            "active": self.dispatcher.active,
            "body bytes": self.dispatcher.admission.body_bytes,
            "answer bytes": self.dispatcher.admission.answer_bytes,
            "exchanges": len(self.dispatcher._exchanges),
            "leases of turns in flight": sum(core.leases.open().values()),
            "upstream connections in use": len(session.connector._acquired),
            "conversations in flight": sum(c.in_flight for c in core.conversations),
        }
        for node, load in core.load.items():
            counts[f"{node} prompts"] = len(load.prefill)
            counts[f"{node} transfers"] = len(load.link)
            counts[f"{node} sequences"] = load.sequences
            counts[f"{node} KV tokens"] = load.kv_tokens
            counts[f"{node} running"] = len(core.residency.ledger(node).running)
        return {name: count for name, count in counts.items() if count}

    async def settle(self, within_s: float = 5.0) -> None:
        """Wait until nothing is in flight; then every count must be back to zero."""
        for _ in range(round(within_s / 0.01)):
            if not self.busy():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"still busy: {self.busy()}")

    def metrics_page(self) -> str:
        """All of the router's metrics, as they are reported."""
        return page(self.registry)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of the router's metrics, 0 where there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0


class Served(Protocol):
    """An engine of any kind, at its address."""

    @property
    def url(self) -> str: ...


@asynccontextmanager
async def installation(
    prefill: Sequence[Served] = (),
    decode: Sequence[Served] = (),
    replica: Sequence[Served] = (),
    *,
    pin_x: float | None = None,
    policy: Policy | None = None,
    slos: tuple[Slo, ...] = (),
    timeouts: Timeouts | None = None,
    options: DispatchOptions | None = None,
    admission: Admission | None = None,
    rule: Recognition = Recognition.CHAIN,
    remembered_turns: int = 200_000,
    lease_s: float = 30.0,
    connector: str = "nixl",
    addresses: Mapping[str, str] | None = None,
    start_engines: bool = True,
    keys: Sequence[tuple[str, str]] = (),
    tenants: Sequence[str] = (),
    engine_key: str | None = None,
    passed: Sequence[str] = (),
    model: str = "*",
    clock: Clock | None = None,
    entrance: Door | None = None,
    p_down: PrefillDownPolicy | None = None,
    retries: RetryBudget | None = None,
    conversations: Conversations | None = None,
) -> AsyncIterator[Installation]:
    """Engines and a router in front of them. Fake engines are started and stopped, unless `start_engines` is off;
    others' life is the caller's."""
    fakes = [engine for engine in (*prefill, *decode, *replica) if isinstance(engine, FakeEngine)]
    engines = fakes if start_engines else []
    for engine in engines:
        await engine.start()
    upstream = Upstream(timeouts or Timeouts(1.0, 5.0, 5.0), engine_key=engine_key)
    doors = Doors(keys, b"s" * 32, tenants)
    urls = [[engine.url for engine in role] for role in (prefill, decode, replica)]
    nodes = endpoints(urls[0], urls[1], urls[2], addresses or {})
    clock = clock or Clock()
    watch = NodeWatch(nodes, upstream, ADDRESSES.get(connector), clock.now_s)
    current = Current(Publication(1, {"main": policy or Policy(1, {}, Weights(1, 1), pin_x=pin_x)}))
    hand_over = ConnectorOptions(lease_s=lease_s, addresses=watch.hand_over)
    core = RouterCore(
        current,
        watch.nodes(),
        CONNECTORS[connector](hand_over),
        slos,
        start_s=clock.now_s(),
        lease_s=lease_s,
        p_down=p_down,
        retries=retries,
        conversations=conversations,
    )
    watch.attach(core)
    records: list[TurnRecord] = []
    registry = CollectorRegistry()
    metrics = RouterMetrics(registry, slos)

    def keep(record: TurnRecord, request_id: str) -> None:
        metrics.ended(record, request_id)
        records.append(record)

    ids = count(1)
    dispatcher = Dispatcher(
        core,
        upstream,
        watch,
        Recogniser(b"k" * 32, rule, remembered_turns),
        clock,
        random.Random(0).random,
        lambda: f"id{next(ids)}",
        keep,
        metrics,
        options or DispatchOptions(prefill_timeout_s=5.0),
        doors,
        admission,
    )
    await upstream.start()
    await watch.probe_all()
    directory = Directory([Pool(model, core, dispatcher, watch, upstream)])
    door = entrance or Door(1000)

    def app_of(models: Directory) -> HotRoutes:
        return create_app(models, Passthrough(models, metrics, dispatcher.options, passed), doors)

    config = uvicorn.Config(
        app_of(directory),
        http=door.protocol,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
    )
    config.load()
    server = ServerState()

    def serve_with(models: Directory) -> None:
        config.loaded_app = app_of(models)

    def protocol() -> asyncio.Protocol:
        return config.http_protocol_class(config=config, server_state=server, app_state={})  # type: ignore[call-arg]

    # uvicorn's own Server would cost a test 0.2 s of sleep.
    listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    pulse = asyncio.ensure_future(dispatcher.pulse.run())
    try:
        url = f"http://127.0.0.1:{port}"
        yield Installation(
            url, core, dispatcher, watch, upstream, server, registry, directory, serve_with, records=records
        )
    finally:
        pulse.cancel()
        await asyncio.gather(pulse, return_exceptions=True)
        listener.close()
        for connection in list(server.connections):
            connection.transport.abort()
        if server.tasks:
            await asyncio.wait(server.tasks, timeout=2.0)
        await upstream.close()
        for engine in engines:
            await engine.stop()
