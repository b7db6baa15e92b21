"""Nodes from DNS: every A and AAAA record of a name is a node, as a headless Kubernetes service publishes its pods; of
a name that begins with an underscore every SRV record is one, with its port and weight (RFC 2782).

    dns: {prefill: http://prefill.inference.svc:8000, decode: http://_http._tcp.decode.inference.svc}

One source a role, so that a name that does not resolve costs the others nothing. The resolver is asked every few
seconds; it keeps to the records' time to live itself. Of SRV records those of the lowest priority count: there is no
standby. Weights are relative to the heaviest, and 0 is the least there is. A target is left as a name: it is the node's
URL.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..turn import Role
from .member import MIN_WEIGHT, Member, member
from .source import Tell

EVERY_S = 5.0
TIMEOUT_S = 5.0

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> addresses. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Srv:
    """One record."""

    priority: int
    weight: int
    port: int
    target: str


Records = Callable[[str], Awaitable[Sequence[Srv]]]
"""Name -> its SRV records. Raises OSError."""


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, by the system's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def nodes_at(url: str, role: Role, addresses: Sequence[str]) -> list[Member]:
    """A node for every address, at the URL's port, in an order that does not change with the answer's."""
    parts = urlsplit(url)
    hosts = sorted({f"[{address}]" if ":" in address else address for address in addresses})
    return [member(f"{parts.scheme}://{host}:{parts.port or 80}", role) for host in hosts]


def is_srv(url: str) -> bool:
    """Whether SRV records are asked for: `_service._protocol.name` can be no host."""
    return (urlsplit(url).hostname or "").startswith("_")


def nodes_of(url: str, role: Role, records: Sequence[Srv]) -> list[Member]:
    """A node for every record of the lowest priority. A record with the target "." says that there is none."""
    scheme = urlsplit(url).scheme
    meant = [record for record in records if record.target.rstrip(".")]
    first = [record for record in meant if record.priority == min(each.priority for each in meant)]
    heaviest = max((record.weight for record in first), default=0)
    found = [
        member(
            f"{scheme}://{record.target.rstrip('.').lower()}:{record.port}",
            role,
            weight=max(MIN_WEIGHT, record.weight / heaviest) if heaviest else 1.0,
        )
        for record in first
    ]
    return sorted(found, key=lambda each: each.url)


class DnsSource:
    """One name, for nodes of one role. `records` are asked for where the name is one of SRV records."""

    def __init__(
        self,
        role: Role,
        url: str,
        every_s: float = EVERY_S,
        resolve: Resolve = system_resolver,
        records: Records | None = None,
    ) -> None:
        self.name = f"dns:{role.value}"
        self._role = role
        self._url = url
        self._every_s = every_s
        self._resolve = resolve
        self._records = records

    @property
    def asks_for_records(self) -> bool:
        """Whether its nodes are SRV records."""
        return self._records is not None

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
                if self._records is not None:
                    members = nodes_of(self._url, self._role, await self._records(host))
                else:
                    members = nodes_at(self._url, self._role, await self._resolve(host, parts.port or 80))
        except TimeoutError:
            tell.failed(f"{host}: no answer in {TIMEOUT_S:g} s")
        except OSError as error:
            tell.failed(f"{host}: {error.strerror or type(error).__name__}")
        except (ValueError, UnicodeError) as error:
            tell.failed(f"{host}: {error}")
        else:
            tell.nodes(members)
