"""One node's KV events over ZMQ, as vLLM 0.32 publishes them: PUB for what happens, ROUTER to hear it again.

A message is (topic, number as 8 bytes, `[time, events, data_parallel_rank]` in msgpack); numbers begin at 0 with each
process. A replay request is the first number wanted, as 8 bytes; what is still kept follows, then number -1. Needs
pyzmq. Token ids are zeros: nobody here knows words.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import msgspec
import zmq
import zmq.asyncio

from ..kv_blocks import BlocksRemoved, BlocksStored, Change

KEPT_BATCHES = 10_000
_END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Publishes from `open` to `close`; a node that dies closes it, and opens it again on the same ports."""

    def __init__(self, block_tokens: int, kept_batches: int = KEPT_BATCHES) -> None:
        self.endpoint = "tcp://127.0.0.1:0"
        self.replay = "tcp://127.0.0.1:0"
        self.mute = False
        """Tests: what happens is numbered and kept, and does not arrive."""
        self._block = block_tokens
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept_batches)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._replaying: asyncio.Task[None] | None = None

    def open(self, endpoint: str | None = None, replay: str | None = None) -> None:
        """Bind both; port 0 takes any. Raises zmq.ZMQError."""
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        router = self._router = zmq.asyncio.Socket(self._context, zmq.ROUTER)
        self._pub.bind(endpoint or self.endpoint)
        router.bind(replay or self.replay)
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._replaying = asyncio.ensure_future(self._answer(router))

    def close(self) -> None:
        """The process is gone, and its numbers with it."""
        if self._replaying is not None:
            self._replaying.cancel()
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(linger=0)
        if self._context is not None:
            self._context.term()
        self._context = self._pub = self._router = self._replaying = None
        self._number = 0
        self._kept.clear()

    def tell(self, change: Change) -> None:
        """Something was stored or evicted."""
        if self._pub is None:
            return
        payload = msgspec.msgpack.encode([time.time(), [self._event(change)], 0])
        number, self._number = self._number, self._number + 1
        self._kept.append((number, payload))
        if not self.mute:
            self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    def _event(self, change: Change) -> dict[str, object]:
        if isinstance(change, BlocksStored):
            return {
                "type": "BlockStored",
                "block_hashes": change.names,
                "parent_block_hash": change.parent,
                "token_ids": [0] * (len(change.names) * self._block),
                "block_size": self._block,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None] * len(change.names),
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
                "session_id": change.session,
            }
        if isinstance(change, BlocksRemoved):
            return {"type": "BlockRemoved", "block_hashes": change.names, "medium": "GPU", "group_idx": 0}
        return {"type": "AllBlocksCleared"}

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        while True:
            client, *_, first = await router.recv_multipart()
            wanted = int.from_bytes(first, "big")
            for number, payload in list(self._kept):
                if number >= wanted:
                    await router.send_multipart([client, b"", b"", number.to_bytes(8, "big"), payload])
            await router.send_multipart([client, b"", b"", _END, b""])
