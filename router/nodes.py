"""The engines behind this router: their addresses, whether they are up, and what they say of themselves.

A loop asks every node's /health; two failures in a row take it out, one success brings it back with an empty
cache. A refused connection in traffic takes it out at once. KV capacity and block size come from the engine's
metrics when it comes up. Where the hand-over protocol has engines name themselves (`AddressRule.query`), that is
asked with every probe: without it the node is not up, and another name is another process, with an empty cache.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .connectors.protocol import AddressRule
from .core import RouterCore
from .placement import Node
from .turn import NodeId, Role
from .upstream import NodeError, Upstream

log = logging.getLogger("trimtab.nodes")

PROBE_S = 1.0
PROBE_TIMEOUT_S = 2.0
FAILURES = 2
UNKNOWN_KV_TOKENS = 10**9
"""An engine that does not tell its KV size is not guarded."""

_CACHE_INFO = re.compile(rb"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine as configured. `url` without a trailing slash. `address`: where it hands over, if its protocol needs
    one."""

    url: str
    role: Role
    address: str = ""


def endpoints(
    prefill: Iterable[str],
    decode: Iterable[str],
    replica: Iterable[str],
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> dict[NodeId, Endpoint]:
    """Named endpoints: P0, P1, D0, R0, in the order given. `addresses` by URL without a trailing slash."""
    found: dict[NodeId, Endpoint] = {}
    for letter, role, urls in (("P", Role.PREFILL, prefill), ("D", Role.DECODE, decode), ("R", Role.REPLICA, replica)):
        for at, url in enumerate(url.rstrip("/") for url in urls):
            found[NodeId(f"{letter}{at}")] = Endpoint(url, role, addresses.get(url, ""))
    return found


def hand_over_addresses(nodes: Mapping[NodeId, Endpoint]) -> dict[NodeId, str]:
    """By node, for a connector's options."""
    return {node: at.address for node, at in nodes.items() if at.address}


class NodeWatch:
    """Keeps `RouterCore`'s view of the nodes true."""

    def __init__(self, addresses: dict[NodeId, Endpoint], upstream: Upstream, rule: AddressRule | None = None) -> None:
        self.addresses = addresses
        self._upstream = upstream
        self._rule = rule
        self._failures: dict[NodeId, int] = dict.fromkeys(addresses, FAILURES)
        self._core: RouterCore | None = None

    def nodes(self) -> list[Node]:
        """Nodes for a new core: all down until they have answered once."""
        return [Node(node, at.role, UNKNOWN_KV_TOKENS, healthy=False) for node, at in self.addresses.items()]

    def attach(self, core: RouterCore) -> None:
        """The core to keep informed."""
        self._core = core

    def url(self, node: NodeId, path: str) -> str:
        """Where a node's path is."""
        return self.addresses[node].url + path

    def refused(self, node: NodeId) -> None:
        """Nobody listens at the node's port: out at once."""
        self._failures[node] = FAILURES
        self._down(node, "connection refused")

    async def probe_all(self) -> None:
        """Ask every node once."""
        await asyncio.gather(*(self._probe(node) for node in self.addresses))

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            try:
                await self.probe_all()
            except Exception:
                log.exception("a probe failed inside the router")
            await asyncio.sleep(PROBE_S)

    async def _probe(self, node: NodeId) -> None:
        assert self._core is not None
        known = self._core.nodes[node]
        try:
            status, _ = await self._upstream.get(self.url(node, "/health"), PROBE_TIMEOUT_S)
            problem = "" if status == 200 else f"/health answers {status}"
            name = known.engine_id if problem else await self._ask_name(node)
        except (NodeError, ValueError) as error:
            problem = str(error)
        if problem:
            self._failures[node] += 1
            if self._failures[node] >= FAILURES:
                self._down(node, problem)
            return
        self._failures[node] = 0
        if known.engine_id != name:
            self._down(node, "it is another process")
        if not known.healthy:
            await self._introduce(node)
            known.engine_id = name
            self._core.node_up(node)
            log.info("node %s is up", node)

    def _down(self, node: NodeId, problem: str) -> None:
        assert self._core is not None
        if self._core.nodes[node].healthy:
            self._core.node_down(node)
            log.warning("node %s is out: %s", node, problem)

    async def _ask_name(self, node: NodeId) -> str:
        """What the engine calls itself; empty if its protocol has no names. Raises NodeError, ValueError."""
        at, rule = self.addresses[node], self._rule
        if rule is None or rule.identity is None or at.role not in rule.roles:
            return ""
        status, answer = await self._upstream.get(at.address + rule.query, PROBE_TIMEOUT_S)
        if status != 200:
            raise NodeError(f"{rule.query} answers {status}")
        return rule.identity(answer)

    async def _introduce(self, node: NodeId) -> None:
        assert self._core is not None
        try:
            _, text = await self._upstream.get(self.url(node, "/metrics"), PROBE_TIMEOUT_S)
        except NodeError:
            return
        info = _CACHE_INFO.search(text)
        if info is None:
            return
        labels = dict(_LABEL.findall(info[1].decode("utf-8", "replace")))
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if blocks.isdecimal() and size.isdecimal() and int(blocks) > 0 and int(size) > 0:
            known = self._core.nodes[node]
            known.kv_capacity_tokens = int(blocks) * int(size)
            known.block_tokens = int(size)
            known.introduced = True
