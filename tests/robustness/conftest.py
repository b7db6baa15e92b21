"""What must hold when a fault is over: `quiescent`, for a router and its emulated fleet.

requests in flight, flights, legs, bytes held             0
connections between router and engines in use             0; idle ones close by themselves
sequences on the engines                                   0
KV leases on P                                             read, or counted as stranded and expired
tasks of the loop, descriptors of the process              as before
objects of requests that are over                           none
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from router.core import Flight
from router.exchange import Exchange
from tests.router_http.client import until
from tests.router_http.emulated import Emulated, emulated

Fleet = Callable[..., AbstractAsyncContextManager[Emulated]]
SPARE = 8
"""Descriptors and tasks that a loop may make for itself: a resolver's thread, a timer."""


@pytest.fixture
def quiescent() -> Fleet:
    """A router before an emulated fleet; when the block is left, everything must have come to rest."""
    return rested


@asynccontextmanager
async def rested(topology: str = "1P_2D", **options: Any) -> AsyncIterator[Emulated]:
    """The same as a plain context manager."""
    tasks, descriptors = len(asyncio.all_tasks()), _descriptors()
    async with emulated("nixl", topology, **{"pin_x": 0.0, **options}) as installed:
        yield installed
        await settle(installed)
    await until(lambda: len(asyncio.all_tasks()) <= tasks + SPARE, 5.0)
    await until(lambda: _descriptors() <= descriptors + SPARE, 5.0)


async def settle(installed: Emulated) -> None:
    """Wait for rest, and look at every count."""
    fleet, router = installed.fleet.fleet, installed.router
    await router.settle()
    await until(lambda: not any(installed.sequences().values()))
    leases = router.core.leases
    counted = sum(leases.stranded.values()) + sum(leases.unanswered.values())
    live = {name for name, node in installed.fleet.nodes.items() if node.listening}
    if fleet.open_leases and "P0" in live:
        # A lease that P still holds must be one that the router says nobody will read.
        assert 0 < fleet.open_leases <= counted, (fleet.open_leases, counted)
    assert fleet.poisoned_reads == 0
    with installed.fleet.clock:
        installed.fleet.clock.events.run(installed.fleet.clock.now_s)
    assert router.dispatcher.admission.body_bytes == 0
    gc.collect()
    left = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, Exchange | Flight))
    assert not left, f"requests that are over are still held: {left}"


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
