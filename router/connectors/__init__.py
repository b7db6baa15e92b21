"""Hand-over protocols between P and D, by name. To add one: a file with a `handshake` generator and a line
here."""

from __future__ import annotations

from collections.abc import Callable

from .nixl import NixlConnector
from .protocol import Connector, ConnectorOptions

CONNECTORS: dict[str, Callable[[ConnectorOptions], Connector]] = {"nixl": NixlConnector}
