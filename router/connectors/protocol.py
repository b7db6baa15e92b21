"""What a connector is: a sans-I/O handshake. It says which leg to send next and judges the replies; it never
waits or sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Protocol

from ..placement import Placement
from ..turn import NodeId, Role, Turn


class Purpose(StrEnum):
    """What a leg is for."""

    PREFILL = "prefill"
    """Sent with stream off and one output token."""
    DECODE = "decode"
    """The client's own request; its answer is the answer."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One upstream request: the client's body, with these parameters added. `not_after_s`: too late to send
    it then."""

    node: NodeId
    purpose: Purpose
    kv_transfer_params: Mapping[str, object] | None = None
    not_after_s: float | None = None
    request_id: str | None = None
    """What the engine is to call the request, where the protocol reads something in it; else the turn's own id."""
    beside: Leg | None = None
    """A prefill leg to send at the same time as this decode leg, which waits for it inside the engines."""


@dataclass(frozen=True, slots=True)
class LegReply:
    """The answer of a prefill leg. It came at `at_s` or later: leases count from there."""

    status: int
    prompt_tokens: int
    cached_tokens: int | None
    kv_transfer_params: Mapping[str, object] | None
    at_s: float
    finish_reason: str | None = None


class HandshakeError(Exception):
    """A prefill reply that must not reach a decode node, or a node that cannot hand over; the prefill has to be done
    again. `leg` says whose it was."""

    def __init__(self, leg: Leg, message: str) -> None:
        super().__init__(f"{leg.node}: {message}")
        self.leg = leg


Handshake = Generator[Leg, LegReply, Leg]
"""Yields legs whose reply it needs; returns the decode leg to launch. Where both legs go out at once it yields the
decode leg with the other one `beside` it, gets that one's reply, and returns the decode leg that is on its way."""


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """What a connector needs to know of the fleet. `lease_s`: how long P keeps a prefilled prompt. `margin_s`: how long
    before the end of the lease a decode leg is no longer sent. `block_tokens`: the engines' block size, if known.
    `addresses`: where nodes hand over, for connectors that need it (`AddressRule`)."""

    lease_s: float = 30.0
    margin_s: float = 2.0
    block_tokens: int | None = None
    addresses: Mapping[NodeId, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if not 0 <= self.margin_s < self.lease_s < inf:
            raise ValueError(
                f"margin_s must be >= 0 and below lease_s, or no transfer is ever in time, "
                f"got margin_s={self.margin_s:g} and lease_s={self.lease_s:g}"
            )
        if self.block_tokens is not None and self.block_tokens < 1:
            raise ValueError(f"block_tokens must be 1 or more, got {self.block_tokens}")


class Connector(Protocol):
    """One hand-over protocol."""

    def handshake(self, turn: Turn, placement: Placement, attempt: int = 1) -> Handshake:
        """The legs of one turn; `attempt` counts its plans, so that no two hand-overs share a name. Raises
        HandshakeError on a reply that would hurt the decode node."""
        ...


@dataclass(frozen=True, slots=True)
class AddressRule:
    """The address at which an engine hands over, where a protocol needs one beside the engine's URL."""

    roles: frozenset[Role]
    """Whose address is needed."""
    form: re.Pattern[str]
    example: str
    default: str = ""
    """What it is unless given, from the URL's `{host}`; empty: it must be given."""
    query: str = ""
    """Path to ask at the address with every probe; what it answers is the engine's identity."""
    identity: Callable[[bytes], str] | None = None
    """Reads that answer. Raises ValueError, which says what is wrong with it."""
