"""Nodes from DNS: every A and AAAA record of a name is a node, as a headless Kubernetes service publishes its pods.

    dns: {prefill: http://prefill.inference.svc:8000, decode: http://decode.inference.svc:8000}

One source a role, so that a name that does not resolve costs the others nothing. The system's resolver is asked every
few seconds; it keeps to the records' time to live itself. What it leaves out: SRV records; all nodes of a name have the
URL's port.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from ..turn import Role
from .member import Member, member
from .source import Tell

EVERY_S = 5.0
TIMEOUT_S = 5.0

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> addresses. Raises OSError."""


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, by the system's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def nodes_at(url: str, role: Role, addresses: Sequence[str]) -> list[Member]:
    """A node for every address, at the URL's port, in an order that does not change with the answer's."""
    parts = urlsplit(url)
    hosts = sorted({f"[{address}]" if ":" in address else address for address in addresses})
    return [member(f"{parts.scheme}://{host}:{parts.port or 80}", role) for host in hosts]


class DnsSource:
    """One name, for nodes of one role."""

    def __init__(self, role: Role, url: str, every_s: float = EVERY_S, resolve: Resolve = system_resolver) -> None:
        self.name = f"dns:{role.value}"
        self._role = role
        self._url = url
        self._every_s = every_s
        self._resolve = resolve

    async def run(self, tell: Tell) -> None:
        """For ever."""
        while True:
            await self.look(tell)
            await asyncio.sleep(self._every_s)

    async def look(self, tell: Tell) -> None:
        """Ask once."""
        parts = urlsplit(self._url)
        host = parts.hostname or ""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                addresses = await self._resolve(host, parts.port or 80)
            members = nodes_at(self._url, self._role, addresses)
        except TimeoutError:
            tell.failed(f"{host}: no answer in {TIMEOUT_S:g} s")
        except OSError as error:
            tell.failed(f"{host}: {error.strerror or type(error).__name__}")
        except (ValueError, UnicodeError) as error:
            tell.failed(f"{host}: {error}")
        else:
            tell.nodes(members)
