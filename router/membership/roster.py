"""The roster: the union of what the sources tell, with a name for every node, as joins, drains and leaves.

A source tells its whole set each time. One that fails, tells nothing, or tells a set with which nobody could decode any
more, keeps its last good set: an error never empties the fleet. A node that no source tells any more *drains*: it gets
no new turns, its streams end, its conversations move on with their next turn; it *leaves* when nothing of it is in
flight. An operator's drain does the same and never leaves. Names are the lowest free number of the role (P0, D0, ...),
so label values stay bounded; a URL that comes back while its node drains has its node back. Another role or hand-over
address at the same URL is another node; another weight is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ..turn import NodeId, Role
from .member import Member

MAX_MEMBERS = 1024
"""Nodes of one source that are looked at; beyond it is not a fleet but a mistake."""
STATIC = "static"
_LETTERS = {Role.PREFILL: "P", Role.DECODE: "D", Role.REPLICA: "R"}


class Change(StrEnum):
    """What happened to a node's membership."""

    JOIN = "join"
    DRAIN = "drain"
    RETURN = "return"
    """It drained, and is wanted again."""
    LEAVE = "leave"
    WEIGH = "weigh"
    """Its weight is another one."""


class Why(StrEnum):
    """Why a node drains."""

    LEFT = "left"
    """No source tells it any more."""
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Event:
    """One step for whoever keeps the nodes."""

    change: Change
    node: NodeId
    member: Member
    why: Why | None = None


@dataclass(slots=True)
class SourceState:
    """What a source told last that was good, when, and what is wrong with it since ("" if nothing)."""

    members: tuple[Member, ...] = ()
    good_s: float | None = None
    problem: str = ""
    failures: int = 0
    """Since the last good set."""


@dataclass(slots=True)
class _Seat:
    member: Member
    why: Why | None = None


@dataclass(slots=True)
class Roster:
    """All sources of one model's nodes, in the order given: where two tell one URL, the first counts. `model` empty or
    "*": nodes of every model. `prefix` stands before every name."""

    sources: Sequence[str]
    model: str = ""
    prefix: str = ""
    states: dict[str, SourceState] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    """URLs that an operator wants without new turns."""
    _seats: dict[NodeId, _Seat] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.states = {name: SourceState() for name in self.sources}

    def offer(self, source: str, members: Iterable[Member], now_s: float, *, may_be_empty: bool = False) -> bool:
        """The source tells this set. False, and its last good set stays, where it cannot be meant."""
        told = {each.url: each for each in reversed(list(members)) if self._serves(each)}
        fresh = tuple(reversed(told.values()))
        state = self.states[source]
        if not fresh and not may_be_empty:
            return self.fail(source, "it tells no nodes", now_s)
        if len(fresh) > MAX_MEMBERS:
            return self.fail(source, f"it tells more than {MAX_MEMBERS} nodes", now_s)
        if _decoders(self._wanted({})) and not _decoders(self._wanted({source: fresh})):
            return self.fail(source, "with its set nobody could decode any more", now_s)
        self.states[source] = SourceState(fresh, now_s)
        return state.members != fresh

    def fail(self, source: str, problem: str, now_s: float) -> bool:
        """The source could not be asked, or told what cannot be meant: its last good set stays. Returns False."""
        state = self.states[source]
        state.problem = problem if not state.members else f"{problem}; its last good set stays"
        state.failures += 1
        return False

    def reconcile(self, idle: Callable[[NodeId], bool]) -> list[Event]:
        """The steps from what is to what is wanted. `idle(node)`: nothing of it is in flight."""
        events: list[Event] = []
        wanted = self._wanted({})
        seated = {seat.member: node for node, seat in self._seats.items()}
        for each in wanted.values():
            known = seated.get(each)
            if known is not None and self._seats[known].member.weight != each.weight:
                self._seats[known].member = each
                events.append(Event(Change.WEIGH, known, each))
        for node, seat in list(self._seats.items()):
            why = Why.LEFT if seat.member not in wanted.values() else None
            why = why or (Why.OPERATOR if seat.member.url in self.drained else None)
            if why is not seat.why:
                if seat.why is None or why is None:
                    events.append(Event(Change.RETURN if why is None else Change.DRAIN, node, seat.member, why))
                seat.why = why
            if why is Why.LEFT and idle(node):
                del self._seats[node]
                events.append(Event(Change.LEAVE, node, seat.member, why))
        for each in wanted.values():
            if each not in seated:
                node = self._name(each.role)
                held = Why.OPERATOR if each.url in self.drained else None
                self._seats[node] = _Seat(each, held)
                events.append(Event(Change.JOIN, node, each))
                if held is not None:
                    events.append(Event(Change.DRAIN, node, each, held))
        return events

    def why(self, node: NodeId) -> Why | None:
        """Why the node drains, None if it does not."""
        seat = self._seats.get(node)
        return None if seat is None else seat.why

    @property
    def nodes(self) -> dict[NodeId, Member]:
        """All that have a name, draining ones too."""
        return {node: seat.member for node, seat in self._seats.items()}

    def _serves(self, each: Member) -> bool:
        return self.model in ("", "*") or each.model in ("", self.model)

    def _wanted(self, instead: dict[str, tuple[Member, ...]]) -> dict[str, Member]:
        """By URL, with another set for the sources in `instead`."""
        found: dict[str, Member] = {}
        for source in self.sources:
            for each in instead.get(source, self.states[source].members):
                found.setdefault(each.url, each)
        return found

    def _name(self, role: Role) -> NodeId:
        number = 0
        while (name := NodeId(f"{self.prefix}{_LETTERS[role]}{number}")) in self._seats:
            number += 1
        return name


def _decoders(wanted: dict[str, Member]) -> bool:
    return any(each.role is not Role.PREFILL for each in wanted.values())
