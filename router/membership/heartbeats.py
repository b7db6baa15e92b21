"""Takes heartbeats over ZMQ: a ROUTER socket that engines, or something beside them, send to with a DEALER.

Needs pyzmq (`pip install 'trimtab[heartbeats]'`); who takes none need not import this module. Every router process
binds an address of its own, so nodes register with each of them.
"""

from __future__ import annotations

import asyncio
import logging

import zmq
import zmq.asyncio

from .registrations import MAX_BYTES, HeartbeatError, Network, Registrations, read_heartbeat
from .source import Tell

log = logging.getLogger("trimtab.membership")

LOOK_S = 1.0
"""How often expiry is looked at where nothing arrives."""


class HeartbeatSource:
    """One bound address. Raises zmq.ZMQError where it cannot be bound."""

    name = "heartbeats"

    def __init__(self, bind: str, within: tuple[Network, ...], expiry_s: float, look_s: float = LOOK_S) -> None:
        self._within = within
        self._registrations = Registrations(expiry_s)
        self._look_s = look_s
        self._refused = ""
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # an engine that was started again has its old name
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(bind)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def run(self, tell: Tell) -> None:
        """For ever."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._look_s):
                        while True:
                            self.take((await self._socket.recv_multipart())[-1], tell)
                except TimeoutError:
                    pass
                self.look(tell)
        finally:
            self._context.destroy(linger=0)

    def take(self, body: bytes, tell: Tell) -> None:
        """One message."""
        try:
            self._registrations.heard(read_heartbeat(body, self._within), tell.now_s())
        except HeartbeatError as error:
            if str(error) != self._refused:  # once: whoever sends it sends it again
                self._refused = str(error)
                log.warning("a heartbeat was refused: %s", error)

    def look(self, tell: Tell) -> None:
        """Who is there now."""
        members = self._registrations.members(tell.now_s())
        if members:
            tell.nodes(members)
        else:
            tell.failed("no heartbeat in time")
