"""A small open-loop load generator for measurements, run as a process of its own so that it costs the server nothing.

Reads a plan from stdin, [[send at, s from the start, host, port, body], ...], says "ready" when it begins, and writes
one line of JSON a request: [TTFT, TPOT, chunks], in wall seconds, null where there was none. Core to run on: the first
argument.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from functools import partial


class Request(asyncio.Protocol):
    def __init__(self, raw: bytes, ended: asyncio.Future) -> None:
        self.raw, self.ended = raw, ended
        self.sent = self.first = self.last = 0.0
        self.chunks = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.sent = time.monotonic()
        transport.write(self.raw)

    def data_received(self, data: bytes) -> None:
        found = data.count(b"data: {")
        if not found:
            return
        now = time.monotonic()
        if not self.chunks:
            self.first = now
            found -= 1  # the role
        self.chunks += found
        self.last = now
        if b"[DONE]" in data and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def result(self) -> list[float | None]:
        if not self.chunks:
            return [None, None, 0]
        tpot = (self.last - self.first) / (self.chunks - 1) if self.chunks > 1 else None
        return [self.first - self.sent, tpot, self.chunks]


def _same(request: Request) -> Request:
    return request


async def main() -> None:
    loop = asyncio.get_running_loop()
    plan = json.load(sys.stdin)
    requests = []
    for _, host, _, body in plan:
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        requests.append(Request(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data, loop.create_future()))
    gc.freeze()
    gc.disable()
    print("ready", flush=True)
    start = time.monotonic() + 0.05
    opening = []
    for (at_s, host, port, _), request in zip(plan, requests, strict=True):
        await asyncio.sleep(max(0.0, start + at_s - time.monotonic()))
        opening.append(loop.create_task(loop.create_connection(partial(_same, request), host, port)))
    await asyncio.gather(*opening)
    await asyncio.gather(*(request.ended for request in requests))
    for request in requests:
        print(json.dumps(request.result()))


if __name__ == "__main__":
    if len(sys.argv) > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[1])})
    asyncio.run(main())
