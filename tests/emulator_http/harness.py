"""A fleet on free loopback ports in the test's own event loop, and a client that asks it things."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from emulator.profiles import LLAMA_3_1_8B_H100, EngineProfile
from emulator.server import RunningFleet, serve

PROFILE = LLAMA_3_1_8B_H100
MODEL = PROFILE.model
DATA = Path(os.environ.get("TRIMTAB_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
VLLM = DATA.parent / "vllm"
START_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own, for at most 20 s."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


def captured(name: str) -> Path:
    """A file of what real vLLM said; skips where it is not."""
    path = VLLM / name
    if not path.is_file():
        pytest.skip("no captures of real vLLM: ../shared/vllm is missing")
    return path


@dataclass
class Answer:
    """What came back. `events` are the decoded events of a stream, without [DONE]."""

    status: int
    headers: Mapping[str, str]
    text: str
    events: list[dict] = field(default_factory=list)
    done: bool = False

    @property
    def body(self) -> dict:
        return json.loads(self.text)

    @property
    def choice(self) -> dict:
        return self.body["choices"][0]

    @property
    def content(self) -> str:
        """What the answer says, streamed or not."""
        if self.events:
            choices = [choice for event in self.events for choice in event.get("choices", ())]
            return "".join(choice.get("text", choice.get("delta", {}).get("content")) or "" for choice in choices)
        return self.choice["text"] if "text" in self.choice else self.choice["message"]["content"]

    @property
    def usage(self) -> dict:
        return (self.events[-1] if self.events else self.body)["usage"]

    @property
    def handle(self) -> dict:
        return self.body["kv_transfer_params"]


@dataclass
class Client:
    """Asks nodes by name."""

    running: RunningFleet
    session: aiohttp.ClientSession

    def url(self, node: str, path: str) -> str:
        base = self.running.control_url if node == "control" else self.running.urls[node]
        return f"{base}{path}"

    async def get(self, node: str, path: str) -> Answer:
        async with self.session.get(self.url(node, path)) as response:
            return Answer(response.status, response.headers, await response.text())

    async def post(self, node: str, path: str, body: object, headers: dict[str, str] | None = None) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(self.url(node, path), data=raw, headers=sent) as response:
            answer = Answer(response.status, response.headers, await response.text())
        if response.content_type == "text/event-stream":
            for line in answer.text.split("\n\n"):
                if line == "data: [DONE]":
                    answer.done = True
                elif line:
                    answer.events.append(json.loads(line.removeprefix("data: ")))
        return answer

    async def chat(self, node: str, *messages: object, headers: dict[str, str] | None = None, **body: object) -> Answer:
        """`messages` are texts of a user, or messages."""
        said = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
        return await self.post(node, "/v1/chat/completions", {"model": MODEL, "messages": said, **body}, headers)

    async def complete(self, node: str, prompt: object, **body: object) -> Answer:
        return await self.post(node, "/v1/completions", {"model": MODEL, "prompt": prompt, **body})

    async def numbers(self, node: str) -> dict[str, float]:
        """/metrics: number by name and labels, without `engine` and `model_name`."""
        found = {}
        for line in (await self.get(node, "/metrics")).text.splitlines():
            if not line.startswith("#"):
                name, _, number = line.rpartition(" ")
                for label in (f'model_name="{MODEL}"', 'engine="0"'):
                    name = name.replace(f",{label}", "").replace(f"{label},", "").replace(f"{{{label}}}", "")
                found[name.removeprefix("vllm:")] = float(number)
        return found


@asynccontextmanager
async def fleet(
    topology: str, profile: EngineProfile = PROFILE, speed: float = 20.0, **options: Any
) -> AsyncIterator[Client]:
    running = await serve(topology, profile, base_port=0, speed=speed, **options)
    try:
        # As vLLM's keep-alive is short, a pooled connection may be gone: each request gets its own.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Client(running, session)
    finally:
        await running.close()


async def until(holds: Callable[[], bool], within_s: float = 5.0) -> float:
    """Wait until something holds; returns how long it took, in seconds."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while not holds():
        assert loop.time() - start < within_s, "it did not come about"
        await asyncio.sleep(0.002)
    return loop.time() - start
