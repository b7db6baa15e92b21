"""A fleet of emulated vLLM servers in one process: a port for each node, and one to control them.

    running = await serve("2P_2D", PROFILES["llama-3.1-8b-h100"])
    running.urls            {"P0": "http://127.0.0.1:8100", ...}
    await running.close()

Ports count up from `base_port` in the order P, D, R as the notation has them, and the control port is the next; with
Mooncake the P nodes' bootstrap ports follow. Base port 0 takes any free ones. `speed` makes the whole fleet that many
times faster hardware: what 10 ms of engine time were takes 1 ms of a client's.

Measured on one core of 2 vCPUs, Python 3.11, the client on the other, ten times the speed: 5,000 chunks/s take 19 %
of it, 20,000 35 %, 40,000 54 % with a P99 lag below 1 ms; at 60,000 (71 %, P99 3 ms) it says that it is behind. An
idle neighbour is part of that: where other work takes the core away, lag is the scheduler's time slice.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from ..events import Events
from ..fleet import Fleet, LoadFailure, Role
from ..profiles import EngineProfile
from ..rules import Condition, Rule, Rules
from .bootstrap import Bootstrap
from .clock import WallClock
from .control import LOOPBACK, Control
from .lag import Lag
from .nixl import SIDE_PORT
from .node import Node, Options
from .pace import Pacer

log = logging.getLogger(__name__)

_T = TypeVar("_T")

MAX_MODEL_LEN = 131_072
LAG_BOUND_S = 0.01
"""Engine time: about one decode step, beyond which a P99 TTFT is as much the process's as the fleet's."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong from the start: with requests by rule, and with nodes by name."""

    requests: tuple[Rule, ...] = ()
    nodes: Mapping[str, Condition] = field(default_factory=dict)


class PortInUse(OSError):
    """A port that the fleet needs is taken; says which, and what to do."""


@dataclass(slots=True)
class RunningFleet:
    """What `serve` returns."""

    notation: str
    model: str
    fleet: Fleet
    clock: WallClock
    lag: Lag
    nodes: dict[str, Node]
    rules: Rules = field(default_factory=Rules)
    """What befalls requests; may be replaced at any time."""
    control_url: str = ""
    _control: web.Server | None = None
    _listener: asyncio.Server | None = None
    _watch: asyncio.TimerHandle | None = None

    @property
    def urls(self) -> dict[str, str]:
        """Where each node listens."""
        return {name: node.url for name, node in self.nodes.items()}

    @property
    def addresses(self) -> dict[str, str]:
        """Where nodes hand over, for protocols with addresses of their own."""
        return {name: node.address for name, node in self.nodes.items() if node.address}

    def urls_of(self, role: Role) -> list[str]:
        """The nodes of one role, in order."""
        return [node.url for node in self.nodes.values() if node.role is role]

    def kill(self, name: str) -> None:
        """That node's process dies."""
        self.nodes[name].kill()

    async def revive(self, name: str) -> None:
        """It is back, empty, on its port."""
        await self.nodes[name].revive()

    async def close(self) -> None:
        """Close every port; what is in flight breaks off."""
        if self._watch is not None:
            self._watch.cancel()
        if self._listener is not None:
            self._listener.close()
        for node in self.nodes.values():
            await node.close()
        if self._control is not None:
            await self._control.shutdown(1.0)
        self.clock.close()


async def serve(
    topology: str,
    profile: EngineProfile,
    host: str = LOOPBACK,
    base_port: int = 8100,
    speed: float = 1.0,
    *,
    model: str | None = None,
    max_model_len: int | None = None,
    api_key: str | None = None,
    connector: str = "nixl",
    control_port: int | None = None,
    kv_events_port: int | None = None,
    lag_bound_s: float = LAG_BOUND_S,
    load_failure: LoadFailure = LoadFailure.FAIL,
    faults: FaultPlan | None = None,
) -> RunningFleet:
    """Start a fleet on the running event loop.

    `model` is the name it serves (default: the profile's); `connector` is nixl, mooncake or p2p_nccl; `lag_bound_s` is
    in engine seconds; `faults` is what goes wrong from the start. With `kv_events_port` each node publishes KV events
    (needs pyzmq): two ports a node from there on, for events and replay; 0 takes any. Raises ValueError for a topology,
    speed or context that cannot be, PortInUse, ImportError.
    """
    limit = max_model_len or min(MAX_MODEL_LEN, profile.kv_capacity_tokens)
    if not 1 < limit <= profile.kv_capacity_tokens:
        raise ValueError(f"max_model_len must be 2 to {profile.kv_capacity_tokens} (the KV memory), got {limit}")
    plan = faults or FaultPlan()
    events = Events()
    fleet = Fleet(topology, profile, events, load_failure, connector=connector)
    clock = WallClock(events, speed)
    lag = Lag(lag_bound_s / speed)
    options = Options(model or profile.model, limit, api_key)
    side_ports = {name: SIDE_PORT + number for number, name in enumerate(fleet.engines)}
    rules = Rules(plan.requests)
    nodes = {name: Node(name, fleet, clock, lag, options, side_ports, rules) for name in fleet.engines}
    for name, condition in plan.nodes.items():
        if name not in nodes:
            raise ValueError(f"faults: no node {name!r} in {topology}; there are {', '.join(nodes)}")
        nodes[name].set_condition(condition)
    fleet.witness = _Counter(nodes) if connector == "nixl" else _Deaths(nodes)
    running = RunningFleet(topology, options.model, fleet, clock, lag, nodes, rules)
    for name, node in nodes.items():
        Pacer(fleet.engines[name], events, node.step)
    if control_port is None:
        control_port = base_port + len(nodes) if base_port else 0
    named = [node for node in nodes.values() if node.role is Role.PREFILL and node.engine_id()]
    for number, node in enumerate(named):
        node.bootstrap = Bootstrap(node.engine_id, control_port + 1 + number if base_port else 0)
    try:
        for number, node in enumerate(nodes.values()):
            port = base_port + number if base_port else 0
            await _listen(node.open(host, port), port, node.bootstrap.port if node.bootstrap is not None else 0)
            if kv_events_port is not None:
                _publish(node, kv_events_port + 2 * number if kv_events_port else 0)
        running._control = web.Server(Control(running).handle, access_log=None)
        opening = asyncio.get_running_loop().create_server(running._control, LOOPBACK, control_port)
        running._listener = await _listen(opening, control_port)
    except BaseException:
        await running.close()
        raise
    running.control_url = f"http://{LOOPBACK}:{running._listener.sockets[0].getsockname()[1]}"
    _watch(running)
    return running


def _publish(node: Node, port: int) -> None:
    import zmq

    from .kv_events import Publisher

    publisher = Publisher(node.block_tokens)
    publisher.endpoint = f"tcp://{LOOPBACK}:{port}"
    publisher.replay = f"tcp://{LOOPBACK}:{port + 1 if port else 0}"
    try:
        node.publish(publisher)
    except zmq.ZMQError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortInUse(errno.EADDRINUSE, f"port {port} or the next is in use: choose another for KV events") from None


def main_loop(
    topology: str,
    profile: EngineProfile,
    host: str = LOOPBACK,
    base_port: int = 8100,
    speed: float = 1.0,
    *,
    model: str | None = None,
    api_key: str | None = None,
    connector: str = "nixl",
    kv_events_port: int | None = None,
    load_failure: LoadFailure = LoadFailure.FAIL,
    faults: FaultPlan | None = None,
    on_ready: Callable[[RunningFleet], None] = lambda running: None,
) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` is called once all ports listen."""

    async def run() -> None:
        told = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        running = await serve(
            topology,
            profile,
            host,
            base_port,
            speed,
            model=model,
            api_key=api_key,
            connector=connector,
            kv_events_port=kv_events_port,
            load_failure=load_failure,
            faults=faults,
        )
        gc.freeze()  # what is here now stays; no use in looking at it again in the middle of a stream
        on_ready(running)
        await told.wait()
        await running.close()

    asyncio.run(run())


class _Deaths:
    """Tells a node of its engine's death. Transfers are counted for NIXL only."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self._nodes = nodes

    def pulled(self, node: str, tokens: int, took_s: float) -> None:
        """Not counted."""

    def pull_failed(self, node: str) -> None:
        """Not counted."""

    def stale_read(self, node: str, owner: str) -> None:
        """Not counted."""

    def lease_expired(self, owner: str) -> None:
        """Not counted."""

    def died(self, node: str) -> None:
        """By a hand-over, or because somebody killed it."""
        self._nodes[node].engine_died()


class _Counter(_Deaths):
    """Puts what the fleet witnesses into the counters of the node that would count it."""

    def pulled(self, node: str, tokens: int, took_s: float) -> None:
        """A transfer, counted by its reader."""
        reader = self._nodes[node]
        profile = reader.fleet.profile
        reader.counts.observe("nixl_xfer_time_seconds", took_s / reader.clock.speed)
        reader.counts.observe("nixl_post_time_seconds", 0.001 / reader.clock.speed)
        reader.counts.observe("nixl_bytes_transferred", tokens * profile.kv_bytes_per_token)
        reader.counts.observe("nixl_num_descriptors", 2 * -(-tokens // profile.block_tokens))

    def pull_failed(self, node: str) -> None:
        """Counted by its reader."""
        self._nodes[node].counts.add("nixl_num_failed_transfers_total")

    def stale_read(self, node: str, owner: str) -> None:
        """P hears of a read of what it no longer tracks."""
        self._nodes[owner].counts.add("nixl_num_notifications_after_expiry_total")

    def lease_expired(self, owner: str) -> None:
        """Counted by its owner."""
        self._nodes[owner].counts.add("nixl_num_kv_expired_reqs_total")


async def _listen(opening: Awaitable[_T], *ports: int) -> _T:
    try:
        return await opening
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        which = " or ".join(str(port) for port in ports if port)
        raise PortInUse(
            errno.EADDRINUSE, f"port {which} is in use: stop what listens there, or choose another base port"
        ) from None


def _watch(running: RunningFleet) -> None:
    """Once a second: does the process keep up?"""
    running.lag.tick()
    running._watch = asyncio.get_running_loop().call_later(1.0, _watch, running)
