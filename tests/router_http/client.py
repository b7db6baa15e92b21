"""A client that looks closely: status, headers, bytes and events as they came."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvloop

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LIMIT_S = 60


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own, of the kind that a router process has, bounded in time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())

    return run


@dataclass(frozen=True)
class Answer:
    """What came back, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def payloads(self) -> list[bytes]:
        """The data of each event of a stream."""
        return [line[5:].strip() for line in self.body.splitlines() if line.startswith(b"data:")]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for payload in self.payloads if payload != b"[DONE]"]

    @property
    def done(self) -> bool:
        return b"[DONE]" in self.payloads

    @property
    def text(self) -> str:
        """What the answer says, streamed or not."""
        if self.headers["content-type"].startswith("text/event-stream"):
            deltas = [choice for event in self.events for choice in event.get("choices", [])]
            return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in deltas)
        choice = self.json["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value

    @property
    def error(self) -> dict[str, Any]:
        """The error object of an answer, or of the last event of a stream."""
        if self.headers["content-type"].startswith("text/event-stream"):
            return dict(self.events[-1]["error"])
        return dict(self.json["error"])

    @property
    def route(self) -> tuple[str, str]:
        """(route, reason) as the router says."""
        return self.headers["x-trimtab-route"], self.headers["x-trimtab-reason"]


def chat(*texts: str, stream: bool = True, **more: Any) -> dict[str, Any]:
    """A chat request: texts are the user's and the assistant's in turn."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "m", "stream": stream, "messages": messages, **more}


async def ask(
    url: str, body: dict[str, Any] | bytes, *, path: str = CHAT, headers: Mapping[str, str] | None = None
) -> Answer:
    """POST and read to the end. Raises aiohttp.ClientError where the answer breaks off."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as session, session.post(url + path, data=data, headers=headers) as response:
        return Answer(response.status, response.headers, await response.read())


async def get(url: str) -> Answer:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return Answer(response.status, response.headers, await response.read())


async def until(so: Callable[[], object], within_s: float = 5.0) -> float:
    """Wait until it is so; seconds that it took."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while not so():
        if loop.time() - begun_s > within_s:
            raise AssertionError(f"not so after {within_s:g} s")
        await asyncio.sleep(0.003)
    return loop.time() - begun_s
