"""`trimtab router`: one router process, wired. It serves alone from its last publication if no control
process answers."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry

from router import door
from router.app import create_app
from router.clock import Clock
from router.connectors import ADDRESSES, CONNECTORS
from router.connectors.protocol import ConnectorOptions
from router.conversations import Conversations
from router.core import RouterCore
from router.current import Current
from router.dispatch import Dispatcher, DispatchOptions
from router.membership.orders_source import OrdersSource
from router.membership.watch import Membership
from router.metrics import RouterMetrics
from router.nodes import NodeWatch, endpoints
from router.outbox import LastPublication, Outbox, TableCache
from router.p_down import PrefillDown, PrefillDownPolicy
from router.policy import Publication
from router.recognition import Recogniser, Recognition
from router.record import TurnRecord
from router.retries import RetryBudget
from router.upstream import Timeouts, Upstream
from slos.policy import Declaration

from .policies import artefacts, first_policy
from .processes import StartError, admin_url, bound_socket, installation_secret, secret_from_env, state_dir
from .reload import Reloader, fresh, on_hangup
from .settings import Settings
from .sources import roster_for, sources

log = logging.getLogger("trimtab.router")

LAST_WORDS_S = 3
"""For connections to close once no request is left."""


async def run_router(settings: Settings, name: str = "router-0") -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises StartError."""
    settings = fresh(settings)
    folder = state_dir(settings)
    listener = bound_socket(settings.host, settings.port, "the router")
    clock = Clock()
    registry = CollectorRegistry()
    metrics = RouterMetrics(registry, settings.slos)
    cache = TableCache(folder)
    last = LastPublication(folder, cache)
    current = Current(_first_publication(settings, cache, last))
    descriptors = door.raise_limit()
    max_requests = door.most_requests(settings.max_requests, descriptors)
    entrance = door.Door(door.most_connections(max_requests, descriptors))
    upstream = Upstream(
        Timeouts(
            settings.connect_timeout_s,
            settings.first_byte_timeout_s,
            settings.gap_timeout_s,
            settings.answer_timeout_s,
            settings.per_prompt_token_s,
        ),
        max_connections=2 * max_requests,  # two legs each: nobody ever waits for a connection
    )
    nodes = endpoints(settings.prefill, settings.decode, settings.replica, settings.addresses())
    watch = NodeWatch(nodes, upstream, ADDRESSES.get(settings.connector), clock.now_s)
    core = RouterCore(
        current,
        watch.nodes(),
        CONNECTORS[settings.connector](ConnectorOptions(lease_s=settings.lease_s, addresses=watch.hand_over)),
        settings.slos,
        start_s=clock.now_s(),
        conversations=Conversations(
            settings.max_conversations, settings.idle_s, limit_bytes=settings.conversations_mb * 2**20
        ),
        lease_s=settings.lease_s,
        p_down=PrefillDownPolicy(PrefillDown(settings.p_down), settings.p_down_prompts),
        retries=RetryBudget(settings.retry_share),
    )
    watch.attach(core)
    following = _kv_events(settings, watch, core, metrics)
    control_url, token = admin_url(settings) if settings.admin_port else None, secret_from_env(settings.admin_token_env)
    orders = OrdersSource(folder, control_url, token)
    found = sources(settings.discover, settings.model, orders)
    membership = Membership(roster_for(found, settings.model), watch, core, found, clock.now_s)
    outbox = Outbox(
        core,
        watch,
        metrics,
        cache,
        last,
        name=name,
        boot=secrets.token_hex(8),
        control_url=control_url,
        token=token,
        state_dir=folder,
        now_s=clock.now_s,
        roster=membership.roster,
    )
    outbox.check_pin()

    def keep(record: TurnRecord, request_id: str) -> None:
        metrics.ended(record, request_id)
        outbox.add(record)

    tenants = tenant_keys(settings)
    keys = _listed(secret_from_env(settings.api_keys_env))
    dispatcher = Dispatcher(
        core,
        upstream,
        watch,
        Recogniser(installation_secret(folder), Recognition(settings.conversation)),
        clock,
        random.random,
        lambda: secrets.token_hex(12),
        keep,
        metrics,
        DispatchOptions(
            api_keys=frozenset(keys) | frozenset(tenants),
            tenants=tenants,
            prefill_timeout_s=settings.first_byte_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            max_requests=max_requests,
        ),
    )

    def redeclare(declaration: Declaration) -> None:
        core.redeclare(declaration.slos)
        metrics.redeclare(declaration)

    reloader = Reloader(settings, redeclare)

    def look() -> None:
        metrics.let_in(dispatcher.admission)
        metrics.connected(entrance.open, entrance.turned_away, entrance.heads_refused, door.descriptors(), descriptors)

    outbox.on_update = look
    await upstream.start()
    try:
        await watch.probe_all()
        server = _Server(
            dispatcher,
            uvicorn.Config(
                create_app(core, dispatcher, watch, upstream),
                http=entrance.protocol,  # type: ignore[arg-type]  # uvicorn calls it like a class
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=LAST_WORDS_S,
                timeout_keep_alive=75,
            ),
            clock,
            settings.notice_s,
            settings.drain_s,
        )
        running = (
            watch.run(),
            membership.run(),
            outbox.run(),
            dispatcher.pulse.run(),
            reloader.run(),
            *following,
        )
        tasks = [asyncio.ensure_future(each) for each in running]
        address = listener.getsockname()
        log.info(
            "serving on %s:%s, topology %s, policy %d",
            address[0],
            address[1],
            core.topology or "none",
            current.published_version,
        )
        try:
            with on_hangup(reloader.kick):
                await server.serve(sockets=[listener])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await outbox.flush()
    finally:
        await upstream.close()


def tenant_keys(settings: Settings) -> dict[str, str]:
    """The tenant's name by API key. Raises StartError for a variable that is not set, and for a key of two tenants;
    no message has a key in it."""
    found: dict[str, str] = {}
    for name, variable in settings.tenants:
        for key in _listed(secret_from_env(variable)):
            if found.setdefault(key, name) != name:
                raise StartError(f"router.tenants: {found[key]} and {name} have a key in common; give each its own")
    return found


def _listed(keys: str | None) -> list[str]:
    return [key.strip() for key in (keys or "").split(",") if key.strip()]


def _kv_events(
    settings: Settings, watch: NodeWatch, core: RouterCore, metrics: RouterMetrics
) -> list[Coroutine[Any, Any, None]]:
    """What follows the nodes' KV events, where there are some. Raises StartError."""
    if not settings.kv_events:
        return []
    try:
        from router.kv_events import EventsAddress, KvEvents
    except ImportError:
        raise StartError(
            f"models.{settings.model}.kv_events needs pyzmq: pip install 'trimtab[kv-events]', or leave kv_events out"
        ) from None
    named = {at.url: node for node, at in watch.addresses.items()}
    addresses = {
        named[url.rstrip("/")]: EventsAddress(endpoint, replay) for url, endpoint, replay in settings.kv_events
    }
    return [KvEvents(addresses, core.residency, metrics.late).run()]


class _Server(uvicorn.Server):
    """Leaves in order. On a signal /ready is false and new requests are refused, while the port still answers; after
    `notice_s` at the earliest, and once nothing runs or `drain_s` are over, it closes. A second signal closes it now.

    The signal is not raised again at the end, as uvicorn would: the process has records to hand over first.
    """

    def __init__(
        self, dispatcher: Dispatcher, config: uvicorn.Config, clock: Clock, notice_s: float, drain_s: float
    ) -> None:
        super().__init__(config)
        self._dispatcher = dispatcher
        self._clock = clock
        self._notice_s = notice_s
        self._drain_s = drain_s
        self._told_s: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._told_s is None:
            self._told_s = self._clock.now_s()
            self._dispatcher.draining = True
        else:
            self._dispatcher.cut_short()
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._told_s is not None and not self.should_exit:
            since_s = self._clock.now_s() - self._told_s
            over = since_s >= max(self._drain_s, self._notice_s)
            if over and self._dispatcher.active:
                log.warning("%d requests did not end within %g s", self._dispatcher.active, self._drain_s)
                self._dispatcher.cut_short()
            self.should_exit = over or (since_s >= self._notice_s and not self._dispatcher.active)
        return await super().on_tick(counter)


def _first_publication(settings: Settings, cache: TableCache, last: LastPublication) -> Publication:
    """The last one on disk if it can be used, else the settings' own, as version 0."""
    found = artefacts(settings)
    for path, artefact in zip(
        ["shipped"] * (len(found) - len(settings.tables)) + list(settings.tables), found, strict=True
    ):
        log.info(
            "table %s/%s: %s, source %s",
            artefact.origin.model,
            artefact.origin.topology,
            Path(path).name,
            artefact.origin.source,
        )
        cache.add(artefact.text, artefact.origin.model)
    kept = last.load()
    if kept is not None:
        log.info("starting from publication %d on disk", kept.version)
        return kept
    return Publication(0, {"main": first_policy(settings, found, 0)})
