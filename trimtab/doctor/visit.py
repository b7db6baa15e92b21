"""One visit: look at engines, and ask them something where that is wanted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from router.turn import Role
from router.upstream import KEEPALIVE_S

from ..processes import secret_from_env
from ..settings import Settings
from .checks import diagnose
from .facts import Assumed, Facts
from .findings import Level
from .gather import Target, look
from .http import Http
from .probe import probe

START_S = 2.0


@dataclass(frozen=True, slots=True)
class Visit:
    """What is to be looked at, and how."""

    targets: tuple[Target, ...]
    assumed: Assumed
    timeout_s: float = 10.0
    api_key: str | None = None
    measure_leases: bool = False
    watch_idle: bool = True


async def visit(plan: Visit) -> Facts:
    """Look, and ask where that is wanted."""
    async with Http(plan.timeout_s, plan.api_key) as http:
        watch_s = plan.assumed.keep_alive_s if plan.watch_idle else None
        facts = Facts(await look(http, plan.targets, plan.assumed.model, watch_s), plan.assumed)
        return await probe(http, facts, measure_leases=plan.measure_leases) if plan.assumed.probed else facts


def assumed_of(settings: Settings, *, probed: bool) -> Assumed:
    """What a router with these settings goes by."""
    return Assumed(
        settings.model,
        settings.lease_s,
        settings.connector,
        settings.signal == "engine",
        KEEPALIVE_S,
        probed,
        bool(settings.engine_key_env),
    )


def at_start(settings: Settings) -> list[str]:
    """What `trimtab serve` says of its engines: a line for each thing that they lack, by reading alone and within
    `START_S` a model. Engines that do not answer yet are one line. Raises StartError."""
    return [line for each in settings.each_model for line in _of_model(each, settings.further != ())]


def _of_model(settings: Settings, several: bool) -> list[str]:
    pools = ((Role.PREFILL, settings.prefill), (Role.DECODE, settings.decode), (Role.REPLICA, settings.replica))
    targets = tuple(Target(url.rstrip("/"), role) for role, urls in pools for url in urls)
    key = secret_from_env(settings.engine_key_env)
    plan = Visit(targets, assumed_of(settings, probed=False), START_S, key, watch_idle=False)
    try:
        facts = asyncio.run(asyncio.wait_for(visit(plan), START_S))
    except TimeoutError:
        return [f"not looked at: they take more than {START_S:g} s to answer"]
    absent = [node.name for node in facts.nodes if node.problem]
    lines = [f"{' '.join(absent)} not answering yet"] if absent else []
    left_out = {"reachable", "topology"} if settings.discover else {"reachable"}  # others may join later
    wrong = [found for found in diagnose(facts) if found.level is Level.FAIL and found.check not in left_out]
    lines += [f"{' '.join(found.nodes)} {found.message}. Fix: {found.fix}".strip() for found in wrong]
    return [f"{settings.model}: {line}" if several else line for line in lines]
