"""The engines behind this router: their addresses, whether they are up, and what they say of themselves.

A loop asks every node's /health; two failures in a row take it out, one success brings it back with an empty
cache. A refused connection in traffic takes it out at once. KV capacity and block size come from the engine's
metrics when it comes up, and for nodes that decode the share of KV memory in use every `USAGE_S`. Where the hand-over
protocol has engines name themselves (`AddressRule.query`), that is asked with every probe: without it the node is not
up, and another name is another process, with an empty cache.

A restart that no probe saw shows in the time at which the process began, in its metrics. They are read when the
probe needed a new connection, which it does after every restart, and when an answer in traffic broke off.

Nodes join, drain and leave by the roster's events. One that joins is down until it has answered a probe, as all are at
the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType
from urllib.parse import urlsplit

from .connectors.protocol import AddressRule
from .core import USAGE_S, RouterCore
from .membership.member import Member
from .membership.roster import Change, Event
from .placement import Node
from .turn import NodeId, Role
from .upstream import NodeError, Upstream

log = logging.getLogger("trimtab.nodes")

PROBE_S = 1.0
PROBE_TIMEOUT_S = 2.0
FAILURES = 2
DOUBT_S = 0.1
"""Between a doubt and the look at the node's metrics: a burst of broken answers is one look."""
UNKNOWN_KV_TOKENS = 10**9
"""An engine that does not tell its KV size is not guarded."""

_CACHE_INFO = re.compile(rb"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_USAGE = re.compile(rb"^vllm:kv_cache_usage_perc(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_BEGAN = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)
_CREATED = re.compile(rb"^vllm:\w+_created(?:\{[^}]*\})? (\S+)", re.MULTILINE)
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
    prefix: str = "",
) -> dict[NodeId, Endpoint]:
    """Named endpoints: P0, P1, D0, R0, in the order given, after `prefix`. `addresses` by URL without a trailing
    slash."""
    found: dict[NodeId, Endpoint] = {}
    for letter, role, urls in (("P", Role.PREFILL, prefill), ("D", Role.DECODE, decode), ("R", Role.REPLICA, replica)):
        for at, url in enumerate(url.rstrip("/") for url in urls):
            found[NodeId(f"{prefix}{letter}{at}")] = Endpoint(url, role, addresses.get(url, ""))
    return found


def hand_over_addresses(nodes: Mapping[NodeId, Endpoint]) -> dict[NodeId, str]:
    """By node, for a connector's options."""
    return {node: at.address for node, at in nodes.items() if at.address}


class NodeWatch:
    """Keeps `RouterCore`'s view of the nodes true."""

    def __init__(
        self,
        addresses: dict[NodeId, Endpoint],
        upstream: Upstream,
        rule: AddressRule | None = None,
        now_s: Callable[[], float] = monotonic,
        *,
        leave_slow: bool = True,
    ) -> None:
        """`now_s`: the core's clock. `leave_slow` off: conversations stay where they are, as a measurement needs it."""
        self._leave_slow = leave_slow
        self.addresses = addresses
        self.hand_over = hand_over_addresses(addresses)
        """Where nodes hand over, kept true as they come and go."""
        self._upstream = upstream
        self._rule = rule
        self._now_s = now_s
        self._failures: dict[NodeId, int] = dict.fromkeys(addresses, FAILURES)
        self._began: dict[NodeId, float | None] = {}
        self._looked_s: dict[NodeId, float] = {}
        self._doubted: set[NodeId] = set()
        self._joined: set[NodeId] = set()
        """Not asked yet."""
        self._wake = asyncio.Event()
        self._core: RouterCore | None = None

    def nodes(self) -> list[Node]:
        """Nodes for a new core: all down until they have answered once."""
        return [_new(node, at) for node, at in self.addresses.items()]

    def attach(self, core: RouterCore) -> None:
        """The core to keep informed."""
        self._core = core
        core.on_open = _say_open

    def apply(self, events: Sequence[Event]) -> None:
        """Nodes join, drain and leave. Those that join are asked at once."""
        assert self._core is not None
        for event in events:
            node = event.node
            if event.change is Change.JOIN:
                self._join(node, event.member)
            elif event.change is Change.LEAVE:
                self._core.remove_node(node)
                for by_node in (self.addresses, self._failures, self._began, self._looked_s, self.hand_over):
                    by_node.pop(node, None)
                self._doubted.discard(node)
            elif event.change is Change.WEIGH:
                self._core.nodes[node].weight = event.member.weight
            else:
                self._core.drain_node(node, event.change is Change.DRAIN)
            why = "" if event.why is None else f", {event.why}"
            log.info("node %s (%s): %s%s", node, event.member.url, event.change, why)

    def _join(self, node: NodeId, member: Member) -> None:
        assert self._core is not None
        rule, address = self._rule, member.address
        if rule is not None and member.role in rule.roles:
            address = address or rule.default.format(host=_host(member.url))
            if not rule.form.fullmatch(address):
                log.error("node %s: %r is no address for its hand-over; write e.g. %s", node, address, rule.example)
                address = ""
        at = self.addresses[node] = Endpoint(member.url, member.role, address)
        self._failures[node] = FAILURES
        if address:
            self.hand_over[node] = address
        joined = _new(node, at)
        joined.weight = member.weight
        self._core.add_node(joined)
        self._joined.add(node)
        self._wake.set()

    def url(self, node: NodeId, path: str) -> str:
        """Where a node's path is."""
        return self.addresses[node].url + path

    def refused(self, node: NodeId) -> None:
        """Nobody listens at the node's port: out at once."""
        if node not in self.addresses:
            return
        self._failures[node] = FAILURES
        self._down(node, "connection refused")

    def doubt(self, node: NodeId) -> None:
        """An answer broke off: is it still the same process?"""
        self._doubted.add(node)
        self._wake.set()

    async def probe_all(self) -> None:
        """Ask every node once."""
        self._joined.clear()
        await asyncio.gather(*(self._probe(node) for node in list(self.addresses)))

    async def run(self) -> None:
        """Probe for ever."""
        due_s = 0.0
        while True:
            try:
                if self._now_s() >= due_s:
                    due_s = self._now_s() + PROBE_S
                    await self.probe_all()
                    if self._leave_slow and self._core is not None:
                        self._core.sample_pace(self._now_s())
                else:
                    joined, self._joined = self._joined & self.addresses.keys(), set()
                    looks = [self._look(node) for node in self._doubted & self.addresses.keys()]
                    await asyncio.gather(*looks, *(self._probe(node) for node in joined))
            except Exception:
                log.exception("a probe failed inside the router")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - self._now_s())):
                    await self._wake.wait()
                    await asyncio.sleep(DOUBT_S)
            self._wake.clear()

    async def _probe(self, node: NodeId) -> None:
        assert self._core is not None
        known = self._core.nodes.get(node)
        if known is None:
            return
        fresh = False
        try:
            answer = await self._upstream.fetch(self.url(node, "/health"), PROBE_TIMEOUT_S)
            fresh = answer.fresh
            problem = "" if answer.status == 200 else f"/health answers {answer.status}"
            name = known.engine_id if problem else await self._ask_name(node)
        except (NodeError, ValueError) as error:
            problem = str(error)
        if self._core.nodes.get(node) is not known:  # it left while it was asked
            return
        if fresh:
            self._doubted.add(node)
        if problem:
            self._failures[node] += 1
            if self._failures[node] >= FAILURES:
                self._down(node, problem)
            return
        self._failures[node] = 0
        if known.engine_id != name:
            self._down(node, "it is another process")
        if not known.healthy:
            await self._look(node)
            if self._core.nodes.get(node) is not known:
                return
            known.engine_id = name
            self._core.node_up(node, self._now_s())
            log.info("node %s is up", node)
        elif node in self._doubted or self._usage_is_due(node, known.role):
            await self._look(node)

    def _usage_is_due(self, node: NodeId, role: Role) -> bool:
        return role is not Role.PREFILL and self._now_s() - self._looked_s.get(node, -USAGE_S) >= USAGE_S

    def _down(self, node: NodeId, problem: str) -> None:
        assert self._core is not None
        if self._core.nodes[node].healthy:
            self._core.node_down(node)
            log.warning("node %s is out: %s", node, problem)

    async def _ask_name(self, node: NodeId) -> str:
        """What the engine calls itself; empty if its protocol has no names. Raises NodeError, ValueError."""
        at, rule = self.addresses[node], self._rule
        if rule is None or at.role not in rule.roles:
            return ""
        if not at.address:
            raise NodeError("nobody told where it hands over")
        if rule.identity is None:
            return ""
        status, answer = await self._upstream.get(at.address + rule.query, PROBE_TIMEOUT_S, keyed=False)
        if status != 200:
            raise NodeError(f"{rule.query} answers {status}")
        return rule.identity(answer)

    async def _look(self, node: NodeId) -> None:
        """Read the node's metrics: which process it is, how large its KV memory is, and how much of it is in use."""
        assert self._core is not None
        try:
            _, text = await self._upstream.get(self.url(node, "/metrics"), PROBE_TIMEOUT_S)
        except NodeError:
            return
        known = self._core.nodes.get(node)
        if known is None:
            return
        self._doubted.discard(node)
        self._looked_s[node] = self._now_s()
        began, before = _began(text), self._began.get(node)
        self._began[node] = began
        restarted = known.healthy and before is not None and began != before
        if restarted or not known.introduced or not known.healthy:
            _introduce(known, text)
        if restarted:
            self._core.node_restarted(node)
            log.warning("node %s is another process than before: what it had cached is gone", node)
        usage = _number(_USAGE.search(text))
        if usage is not None and 0 <= usage <= 1:
            self._core.node_usage(node, usage)


def _say_open(node: NodeId, why: str) -> None:
    log.warning("the breaker of node %s is open: too many turns in a row failed, the last by %s", node, why)


def _new(node: NodeId, at: Endpoint) -> Node:
    return Node(node, at.role, UNKNOWN_KV_TOKENS, healthy=False, url=at.url)


def _host(url: str) -> str:
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


def _introduce(node: Node, text: bytes) -> None:
    info = _CACHE_INFO.search(text)
    if info is None:
        return
    labels = dict(_LABEL.findall(info[1].decode("utf-8", "replace")))
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    if blocks.isdecimal() and size.isdecimal() and int(blocks) > 0 and int(size) > 0:
        node.kv_capacity_tokens = int(blocks) * int(size)
        node.block_tokens = int(size)
        node.introduced = True


def _began(text: bytes) -> float | None:
    """When the process began, in its own words; None if they do not say. Some releases leave the process's metrics
    out: then when the first of its counters was made."""
    found = _number(_BEGAN.search(text))
    if found is not None:
        return found
    made = [number for match in _CREATED.finditer(text) if (number := _number(match)) is not None]
    return min(made, default=None)


def _number(match: re.Match[bytes] | None) -> float | None:
    try:
        return None if match is None else float(match[1])
    except ValueError:
        return None
