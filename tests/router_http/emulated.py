"""Emulated engines behind a router, by connector: what a test of a whole hand-over needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from emulator.fleet import Role
from emulator.profiles import LLAMA_3_1_8B_H100, EngineProfile
from emulator.server import RunningFleet, serve

from .installation import Installation, installation

MODEL = LLAMA_3_1_8B_H100.model
LEASE_S = 30.0


@dataclass(frozen=True)
class At:
    """A node as `installation` wants it."""

    url: str


@dataclass
class Emulated:
    """A router and its emulated fleet."""

    router: Installation
    fleet: RunningFleet

    def sequences(self) -> dict[str, int]:
        """What the engines have in hand, by node."""
        engines = self.fleet.fleet.engines
        return {name: engine.running + engine.waiting for name, engine in engines.items() if engine.alive}

    def aborted(self) -> dict[str, int]:
        """Requests whose client closed the connection, by node."""
        return {name: node.aborted for name, node in self.fleet.nodes.items()}


@asynccontextmanager
async def emulated(
    connector: str,
    topology: str = "2P_2D_1R",
    *,
    speed: float = 20.0,
    profile: EngineProfile = LLAMA_3_1_8B_H100,
    members: Collection[str] | None = None,
    **options: Any,
) -> AsyncIterator[Emulated]:
    """R0, if there is one, stands alone: what it says is what a hand-over has to say too. Leases last as long as the
    router takes them to, on its own clock. `members`: the nodes that the router knows at first, all if None."""
    leased = replace(profile, lease_s=LEASE_S * speed)
    fleet = await serve(topology, leased, base_port=0, speed=speed, connector=connector)
    addresses = {fleet.urls[name]: address for name, address in fleet.addresses.items()}
    try:
        known = {url for name, url in fleet.urls.items() if members is None or name in members}
        roles = [[At(url) for url in fleet.urls_of(role) if url in known] for role in (Role.PREFILL, Role.DECODE)]
        async with installation(
            *roles,
            connector=connector,
            addresses=addresses,
            lease_s=LEASE_S,
            **options,
        ) as router:
            yield Emulated(router, fleet)
    finally:
        await fleet.close()
