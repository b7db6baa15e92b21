"""Membership, running: the sources' loops, and the roster's events to whoever keeps the nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..core import RouterCore
from ..nodes import NodeWatch
from .member import Member
from .roster import STATIC, Roster
from .source import Source, Tell

log = logging.getLogger("trimtab.membership")

RECONCILE_S = 0.25
AGAIN_S = 5.0


class Membership:
    """Of one router process. `watch` begins with the static nodes, under the names that the roster gives them too."""

    def __init__(
        self,
        roster: Roster,
        watch: NodeWatch,
        core: RouterCore,
        sources: Sequence[Source],
        now_s: Callable[[], float],
    ) -> None:
        self.roster = roster
        self._watch = watch
        self._core = core
        self._sources = tuple(sources)
        self._now_s = now_s
        static = [Member(at.url, at.role, at.address) for at in watch.addresses.values()]
        roster.offer(STATIC, static, now_s(), may_be_empty=True)
        for event in roster.reconcile(core.is_idle):
            assert watch.addresses[event.node].url == event.member.url, "the roster names nodes as `endpoints` does"

    async def run(self) -> None:
        """For ever."""
        await asyncio.gather(self._reconcile(), *map(self._keep_up, self._sources))

    def reconcile(self) -> None:
        """Bring the nodes in step with what the sources tell."""
        self._watch.apply(self.roster.reconcile(self._core.is_idle))

    async def _reconcile(self) -> None:
        while True:
            try:
                self.reconcile()
            except Exception:
                log.exception("failed inside the router")
            await asyncio.sleep(RECONCILE_S)

    async def _keep_up(self, source: Source) -> None:
        """A mistake in one source ends neither it nor the others."""
        tell = Tell(source.name, self.roster, self._now_s)
        while True:
            try:
                await source.run(tell)
            except Exception as error:
                log.exception("source %s is begun anew", source.name)
                tell.failed(f"a mistake inside the router ({type(error).__name__})")
            await asyncio.sleep(AGAIN_S)
