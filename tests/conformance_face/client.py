"""Asks one engine and writes down what came back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from . import normal

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; `text` as it is, `record` normalised."""

    status: int
    text: str
    record: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of an answer that was not streamed."""
        found = json.loads(self.text)
        return found if isinstance(found, dict) else {}

    @property
    def handle(self) -> dict[str, Any]:
        """P's transfer parameters."""
        params = self.body["kv_transfer_params"]
        assert isinstance(params, dict), f"no kv_transfer_params: {self.text[:300]}"
        return params

    @property
    def said(self) -> str:
        """The first choice's text."""
        choice = self.body["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])

    @property
    def usage(self) -> dict[str, Any]:
        found = self.body["usage"]
        assert isinstance(found, dict)
        return found

    @property
    def cached_tokens(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


class Engine:
    """One engine by its URL."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url.rstrip("/")
        self._session = session

    async def send(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        exact: bool = False,
        counted: bool = True,
        within_s: float = 60.0,
    ) -> Reply:
        """One request. `body`: None for none, bytes as they are, else JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = dict(headers) if headers is not None else (JSON if body is not None else {})
        how = method or ("GET" if body is None else "POST")
        skip = () if "Content-Type" in sent else ("Content-Type",)
        timeout = aiohttp.ClientTimeout(total=within_s)
        url = self.url + path
        async with self._session.request(
            how, url, data=data, headers=sent, timeout=timeout, skip_auto_headers=skip, allow_redirects=False
        ) as reply:
            text = (await reply.read()).decode("utf-8", "replace")
        record: dict[str, Any] = {"status": reply.status, "headers": normal.headers(reply.headers)}
        kind = reply.headers.get("Content-Type", "")
        if kind.startswith("text/event-stream"):
            record["events"] = normal.events(text, exact=exact)
        elif kind.startswith("application/json") and text:
            record["body"] = normal.body(json.loads(text), exact=exact)
        else:
            record["text"] = "<page>" if len(text) > 200 else text
        if not counted:
            normal.uncounted(record.get("events", record.get("body")))
        return Reply(reply.status, text, record)

    async def leave(self, path: str, body: object, *, events: int) -> int:
        """Ask, read that many events (0: do not wait for any), close the connection; returns those read."""
        read = 0
        timeout = aiohttp.ClientTimeout(total=60.0)
        try:
            async with self._session.post(self.url + path, json=body, timeout=timeout) as reply:
                if not events:
                    return 0
                async for line in reply.content:
                    read += line.startswith(b"data:")
                    if read >= events:
                        reply.close()
                        break
        except TimeoutError:
            pass
        return read

    async def numbers(self) -> dict[str, float]:
        """/metrics: numbers by name and labels, without `engine` and `model_name`."""
        text = (await self.send("/metrics")).text
        found: dict[str, float] = {}
        for line in text.splitlines():
            match = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
            if match is None or line.startswith("#"):
                continue
            labels = [f'{n}="{v}"' for n, v in re.findall(r'(\w+)="([^"]*)"', match[2] or "")]
            kept = [each for each in labels if not each.startswith(("engine=", "model_name="))]
            found[match[1].removeprefix("vllm:") + ("{" + ",".join(kept) + "}" if kept else "")] = float(match[3])
        return found

    async def idle(self, within_s: float = 20.0) -> bool:
        """Wait until nothing runs or waits there."""
        for _ in range(round(within_s / 0.05)):
            numbers = await self.numbers()
            if not numbers["num_requests_running"] and not numbers["num_requests_waiting"]:
                return True
            await asyncio.sleep(0.05)
        return False
