"""Follows the KV events of engines that publish them over ZMQ, one subscription a node.

    vllm serve ... --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'

Batches are numbered. Where some are missing they are asked for at the engine's replay endpoint, if there is one;
what stays missing empties the belief, and the ledger answers. A connection that broke is made again by ZMQ, and
until the next batch the ledger answers too. What cannot be read is a gap, never an error.

Needs pyzmq (`pip install trimtab[kv-events]`); who follows nothing need not import this module.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import zmq
import zmq.asyncio

from .blocks import Blocks
from .kv_wire import Batch, KvWireError, read_batch
from .residency import Residency
from .turn import NodeId

log = logging.getLogger("trimtab.kv_events")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
REPLAY_TIMEOUT_S = 2.0
HEARTBEAT_MS = 2000
"""A connection whose other end is silent for three of these is broken."""
AGAIN_S = 5.0
_END = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class EventsAddress:
    """Where a node publishes its KV events, and where it repeats them (empty: nowhere)."""

    endpoint: str
    replay: str = ""


class KvEvents:
    """Subscriptions of one router process."""

    def __init__(
        self,
        addresses: Mapping[NodeId, EventsAddress],
        residency: Residency,
        on_lag: Callable[[NodeId, float], None],
    ) -> None:
        self._addresses = addresses
        self._followed = {node: residency.follow(node) for node in addresses}
        self._on_lag = on_lag

    async def run(self) -> None:
        """Follow all of them, for ever."""
        context = zmq.asyncio.Context()
        try:
            await asyncio.gather(*(self._keep_up(context, node) for node in self._addresses))
        finally:
            context.destroy(linger=0)

    async def _keep_up(self, context: zmq.asyncio.Context, node: NodeId) -> None:
        """A mistake with one node ends neither its subscription nor others'."""
        while True:
            try:
                await self._follow(context, node, self._addresses[node], self._followed[node])
            except Exception:
                log.exception("the KV events of node %s are followed anew", node)
                self._followed[node].lose()
            await asyncio.sleep(AGAIN_S)

    async def _follow(self, context: zmq.asyncio.Context, node: NodeId, address: EventsAddress, blocks: Blocks) -> None:
        with context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            broken = asyncio.ensure_future(
                self._notice_breaks(socket.get_monitor_socket(zmq.EVENT_DISCONNECTED), blocks)
            )
            try:
                socket.connect(address.endpoint)
                while True:
                    await self._take(context, node, address, blocks, await socket.recv_multipart())
            finally:
                broken.cancel()
                socket.disable_monitor()

    @staticmethod
    async def _notice_breaks(monitor: zmq.asyncio.Socket, blocks: Blocks) -> None:
        while True:
            await monitor.recv_multipart()
            blocks.pause()

    async def _take(
        self, context: zmq.asyncio.Context, node: NodeId, address: EventsAddress, blocks: Blocks, frames: list[bytes]
    ) -> None:
        try:
            if len(frames) != 3:
                raise KvWireError(f"it has {len(frames)} frames, not 3")
            batch = read_batch(frames[1], frames[2])
        except KvWireError as error:
            log.warning("a KV event message of node %s cannot be read: %s", node, error)
            blocks.lose()
            return
        expected = blocks.expected or 0
        if batch.number > expected and address.replay:
            blocks.pause()
            for missed in await self._replay(context, node, address.replay, expected, batch.number):
                blocks.take(missed.number, missed.events)
        had, problem = blocks.gaps, blocks.problem
        blocks.take(batch.number, batch.events)
        self._on_lag(node, max(0.0, time.time() - batch.at_s))
        if blocks.gaps > had:
            log.warning("KV events of node %s were lost before number %d", node, batch.number)
        if blocks.problem and not problem:
            log.warning("the KV events of node %s are not used: %s", node, blocks.problem)

    @staticmethod
    async def _replay(context: zmq.asyncio.Context, node: NodeId, endpoint: str, first: int, until: int) -> list[Batch]:
        """Batches `first` to `until` - 1, as far as the engine still has them."""
        found: list[Batch] = []
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.connect(endpoint)
            try:
                async with asyncio.timeout(REPLAY_TIMEOUT_S):
                    await socket.send_multipart([b"", first.to_bytes(8, "big")])
                    while True:
                        frames = await socket.recv_multipart()
                        if len(frames) < 3 or frames[-2] == _END:
                            return found
                        batch = read_batch(frames[-2], frames[-1])
                        if batch.number < until:
                            found.append(batch)
            except (TimeoutError, KvWireError) as error:
                log.warning("node %s did not repeat its KV events: %s", node, error or "no answer in time")
                return found
