"""Hand-overs other than NIXL's, by name: what a request means to a node, and how a prompt's KV gets from P to D."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from .engine import Job
from .mooncake import Mooncake
from .p2p_nccl import P2pNccl

if TYPE_CHECKING:
    from .fleet import Fleet

Transfer = Callable[[Job, Callable[[bool], None]], None]


class HandOver(Protocol):
    """One protocol between the engines of one fleet."""

    def terms(self, node: str, request_id: str, params: Mapping[str, object] | None) -> Mapping[str, object] | None:
        """The request as `Fleet.call` knows it: `do_remote_decode` (prefill and hand over), `do_remote_prefill`
        (receive), or neither."""
        ...

    def prefilled(self, node: str, job: Job, params: Mapping[str, object], replied: Callable[[bool], None]) -> None:
        """P's half is done; calls back when its reply goes out, or that it never does."""
        ...

    def transfer(self, node: str, params: Mapping[str, object]) -> Transfer:
        """How D's half gets its KV."""
        ...

    def address(self, node: str) -> str:
        """Where a node hands over."""
        ...

    def engine_id(self, node: str) -> str:
        """What the node's present process calls itself; empty if nobody asks."""
        ...


HAND_OVERS: dict[str, Callable[[Fleet], HandOver]] = {"mooncake": Mooncake, "p2p_nccl": P2pNccl}
