"""Short streamed turns for a router, several a second, from a thread, until told to stop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import aiohttp

from tests.router_http.client import CHAT

TIMEOUT_S = 10.0


class Traffic:
    """Runs while it is entered. `statuses` counts the answers; request ids are `prefix` and a number."""

    def __init__(self, url: str, model: str, rate_hz: float, prefix: str) -> None:
        self.statuses: Counter[int] = Counter()
        self._url = url + CHAT
        self._model = model
        self._every_s = 1.0 / rate_hz
        self._prefix = prefix
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as asked:
            for number in range(100_000):
                if self._stop.is_set():
                    return
                asked.create_task(self._ask(session, number))
                await asyncio.sleep(self._every_s)

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"number {number}"}],
            "max_tokens": 12,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"X-Request-ID": f"{self._prefix}-{number}"}
        try:
            async with session.post(self._url, json=body, headers=headers) as answer:
                await answer.read()
                self.statuses[answer.status] += 1
        except (aiohttp.ClientError, TimeoutError):
            self.statuses[0] += 1

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
