"""Hand-over protocols between P and D, by name. To add one: a file with a `handshake` generator and a line here."""

from __future__ import annotations

from .nixl import NixlConnector
from .protocol import Connector

CONNECTORS: dict[str, type[Connector]] = {"nixl": NixlConnector}
