"""What a connector is: a sans-I/O handshake. It says which leg to send next and judges the replies; it never
waits or sends."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Protocol

from ..placement import Placement
from ..turn import NodeId, Turn


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


@dataclass(frozen=True, slots=True)
class LegReply:
    """The answer of a prefill leg. `at_s` is when it came."""

    status: int
    prompt_tokens: int
    cached_tokens: int | None
    kv_transfer_params: Mapping[str, object] | None
    at_s: float


class HandshakeError(Exception):
    """A prefill reply that must not reach a decode node; the prefill has to be done again. `leg` says whose
    reply it was."""

    def __init__(self, leg: Leg, message: str) -> None:
        super().__init__(f"{leg.node}: {message}")
        self.leg = leg


Handshake = Generator[Leg, LegReply, Leg]
"""Yields legs whose reply it needs; returns the decode leg to launch."""


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """What a connector needs to know of the fleet. `lease_s`: how long P keeps a prefilled prompt. `margin_s`: how long
    before the end of the lease a decode leg is no longer sent. `block_tokens`: the engines' block size, if known."""

    lease_s: float = 30.0
    margin_s: float = 2.0
    block_tokens: int | None = None

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

    def handshake(self, turn: Turn, placement: Placement) -> Handshake:
        """The legs of one turn. Raises HandshakeError on a reply that would hurt the decode node."""
        ...
