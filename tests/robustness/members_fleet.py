"""A router whose nodes come and go, for the rows about membership: the parts that `trimtab router` runs, in the test's
own loop, and what must hold at the end of each test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from router.clock import Clock
from router.membership.member import Member
from router.membership.roster import STATIC, Roster
from router.membership.source import Source, Tell
from router.membership.watch import Membership
from tests.router_http.client import until
from tests.router_http.emulated import Emulated
from tests.router_http.installation import Installation


class SkippingClock(Clock):
    """The process's clock, which a test may set forward."""

    __slots__ = ("ahead_s",)

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


class Told:
    """A source that tells what the test says."""

    name = "told"

    def __init__(self, *members: Member) -> None:
        self.members: tuple[Member, ...] = members
        self.problem = ""

    async def run(self, tell: Tell) -> None:
        while True:
            if self.problem:
                tell.failed(self.problem)
            else:
                tell.nodes(self.members)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def membership(router: Installation, sources: Sequence[Source], model: str = "") -> AsyncIterator[Membership]:
    """Membership over a router's static nodes and these sources, and its health loop, running."""
    roster = Roster((STATIC, *(source.name for source in sources)), model)
    found = Membership(roster, router.watch, router.core, sources, router.watch._now_s)
    running = [asyncio.ensure_future(found.run()), asyncio.ensure_future(router.watch.run())]
    try:
        yield found
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@dataclass
class Spread:
    """How many conversations or turns each node got."""

    by_node: Counter[str]
    nodes: int

    @classmethod
    def of(cls, names: Iterable[str], nodes: int) -> Spread:
        return cls(Counter(names), nodes)

    @property
    def max_over_mean(self) -> float:
        return max(self.by_node.values()) / (self.by_node.total() / self.nodes)


async def at_rest(emulated: Emulated) -> None:
    """Nothing in flight on either side, no upstream connection in use, no lease open."""
    await emulated.router.settle()
    await until(lambda: not any(emulated.sequences().values()) and not emulated.fleet.fleet.open_leases)


def said(text: str, session: str, **more: Any) -> dict[str, Any]:
    """A first turn of a conversation that its client names, in the body."""
    return {"messages": [{"role": "user", "content": text}], "conversation_id": session, **more}
