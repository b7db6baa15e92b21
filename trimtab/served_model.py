"""One model of a router process, wired: its engines, its core, its line to the control process."""

from __future__ import annotations

import random
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from router.admission import Admission
from router.clock import Clock
from router.connectors import ADDRESSES, CONNECTORS
from router.connectors.protocol import ConnectorOptions
from router.conversations import Conversations
from router.core import RouterCore
from router.current import Current
from router.dispatch import Dispatcher, DispatchOptions
from router.doors import Doors
from router.membership.orders_source import OrdersSource
from router.membership.watch import Membership
from router.metrics import RouterMetrics
from router.models import Pool
from router.nodes import NodeWatch, endpoints
from router.outbox import LastPublication, Outbox, TableCache
from router.p_down import PrefillDown, PrefillDownPolicy
from router.policy import Publication
from router.recognition import Recogniser
from router.record import TurnRecord
from router.retries import RetryBudget
from router.upstream import Timeouts, Upstream
from slos.policy import Declaration

from .processes import StartError, admin_url, secret_from_env
from .settings import Settings, prefix_of
from .sources import roster_for, sources


@dataclass(frozen=True, slots=True)
class Shared:
    """What all models of one router process have in common."""

    settings: Settings
    folder: Path
    clock: Clock
    doors: Doors
    admission: Admission
    recogniser: Recogniser
    cache: TableCache
    last: LastPublication
    first: Publication


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model's part of a router process."""

    pool: Pool
    metrics: RouterMetrics
    outbox: Outbox
    membership: Membership
    following: list[Coroutine[Any, Any, None]]

    def running(self) -> list[Coroutine[Any, Any, None]]:
        """All that runs as long as the process."""
        pool = self.pool
        loops = (pool.watch.run(), self.membership.run(), self.outbox.run(), pool.dispatcher.pulse.run())
        return [*loops, *self.following]

    def redeclare(self, declaration: Declaration) -> None:
        """Other SLOs are in force."""
        self.pool.core.redeclare(declaration.slos)
        self.metrics.redeclare(declaration)


def served_model(settings: Settings, name: str, shared: Shared) -> ServedModel:
    """`settings` are this model's; for the control process each model is a router of its own, with this name. Raises
    StartError."""
    folder, clock, several = shared.folder, shared.clock, bool(shared.settings.further)
    prefix = prefix_of(shared.settings, settings.model)
    metrics = RouterMetrics(CollectorRegistry(), settings.slos)
    upstream = Upstream(
        Timeouts(
            settings.connect_timeout_s,
            settings.first_byte_timeout_s,
            settings.gap_timeout_s,
            settings.answer_timeout_s,
            settings.per_prompt_token_s,
        ),
        max_connections=2 * shared.admission.max_requests,  # two legs each: nobody ever waits for a connection
        engine_key=secret_from_env(settings.engine_key_env),
    )
    nodes = endpoints(settings.prefill, settings.decode, settings.replica, settings.addresses(), prefix)
    watch = NodeWatch(nodes, upstream, ADDRESSES.get(settings.connector), clock.now_s)
    core = RouterCore(
        Current(shared.first),
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
    found = sources(settings.discover, settings.model, OrdersSource(folder, control_url, token, several=several))
    membership = Membership(roster_for(found, settings.model, prefix), watch, core, found, clock.now_s)
    outbox = Outbox(
        core,
        watch,
        metrics,
        shared.cache,
        shared.last,
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

    dispatcher = Dispatcher(
        core,
        upstream,
        watch,
        shared.recogniser,
        clock,
        random.random,
        lambda: secrets.token_hex(12),
        keep,
        metrics,
        DispatchOptions(
            forward_headers=settings.forward_headers,
            prefill_timeout_s=settings.first_byte_timeout_s,
            body_timeout_s=settings.body_timeout_s,
        ),
        shared.doors,
        shared.admission,
    )
    pool = Pool(settings.model, core, dispatcher, watch, upstream, frozenset(settings.aliases))
    return ServedModel(pool, metrics, outbox, membership, following)


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
