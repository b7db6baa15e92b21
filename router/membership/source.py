"""What a source of nodes is: it runs for ever and tells its whole set each time it looks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from .member import Member
from .roster import Roster

log = logging.getLogger("trimtab.membership")


@dataclass(slots=True)
class Tell:
    """One source's line to the roster. What is wrong is logged once, not with every look."""

    source: str
    roster: Roster
    now_s: Callable[[], float]
    _said: str = ""

    def nodes(self, members: Iterable[Member], *, may_be_empty: bool = False) -> None:
        """The whole set, as it is now."""
        self.roster.offer(self.source, members, self.now_s(), may_be_empty=may_be_empty)
        self._say()

    def failed(self, problem: str) -> None:
        """The set could not be had."""
        self.roster.fail(self.source, problem, self.now_s())
        self._say()

    def drains(self, urls: Iterable[str]) -> None:
        """The nodes that an operator wants without new turns."""
        self.roster.drained = frozenset(urls)

    def _say(self) -> None:
        problem = self.roster.states[self.source].problem
        if problem and problem != self._said:
            log.warning("source %s: %s", self.source, problem)
        elif self._said and not problem:
            log.info("source %s is well again", self.source)
        self._said = problem


class Source(Protocol):
    """One place that knows nodes."""

    name: str

    async def run(self, tell: Tell) -> None:
        """Look, and look again, for ever. What is wrong with the place is told; a mistake may be raised."""
        ...
