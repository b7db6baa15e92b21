"""Hand-over protocols between P and D, by name. To add one: a file with a `handshake` generator and a line
here, and a line in `ADDRESSES` if its nodes need an address of their own."""

from __future__ import annotations

from collections.abc import Callable

from . import mooncake, p2p_nccl
from .mooncake import MooncakeConnector
from .nixl import NixlConnector
from .p2p_nccl import P2pNcclConnector
from .protocol import AddressRule, Connector, ConnectorOptions

CONNECTORS: dict[str, Callable[[ConnectorOptions], Connector]] = {
    "nixl": NixlConnector,
    "mooncake": MooncakeConnector,
    "p2p_nccl": P2pNcclConnector,
}

ADDRESSES: dict[str, AddressRule] = {"mooncake": mooncake.ADDRESSES, "p2p_nccl": p2p_nccl.ADDRESSES}
