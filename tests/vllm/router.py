"""`trimtab serve` in front of real engines, as a synchronous test sees it, and what engines say in /metrics."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from router.dispatch import DispatchOptions
from router.upstream import Timeouts
from slos.objective import Slo
from tests.router_http.client import Answer, ask, chat
from trimtab.installation import Installation, install_in_front
from trimtab.vllm_cpu.engine import MODEL, Engine
from trimtab.vllm_cpu.fleet import EngineFleet

PATIENT: Mapping[str, Any] = {
    "timeouts": Timeouts(10.0, 120.0, 120.0),
    "options": DispatchOptions(prefill_timeout_s=120.0),
}
"""For `installation`: a busy machine is no fault."""


@dataclass(frozen=True)
class Router:
    """One installation; `pin` sets the share of later turns that go local."""

    installation: Installation

    @property
    def url(self) -> str:
        return self.installation.router_url

    def pin(self, x: float | None) -> None:
        asyncio.run(self.installation.pin(x))

    def ask(self, *texts: str, session: str, **more: Any) -> Answer:
        """One turn of a conversation, greedy and streamed with usage unless told otherwise."""
        return ask_at(self.url, *texts, headers={"X-Session-ID": session}, **more)


def ask_at(url: str, *texts: str, headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
    """A chat turn for a router or an engine; texts are the user's and the assistant's in turn."""
    body = {"model": MODEL, "temperature": 0, "stream_options": {"include_usage": True}, **more}
    if body.get("stream") is False:
        del body["stream_options"]
    json = {"Content-Type": "application/json"}  # vLLM takes nothing else
    return asyncio.run(ask(url, chat(*texts, **body), headers={**json, **(headers or {})}))


def opening(words: str = "sphinx of black quartz, judge my vow. ", times: int = 12) -> str:
    """A first message that no cache has seen."""
    return f"{uuid4().hex} " + words * times


def alone(engine: Engine, *texts: str, **more: Any) -> Answer:
    """What an engine says to it by itself, nothing of it cached."""
    answer = ask_at(engine.url, *texts, cache_salt=uuid4().hex, **more)
    assert answer.status == 200, answer.body[:300]
    return answer


def usage(answer: Answer) -> dict[str, Any]:
    """Tokens as the engine counted them, streamed or not."""
    found = [event["usage"] for event in answer.events if event.get("usage")] if answer.done else [answer.json["usage"]]
    return dict(found[-1])


def cached_tokens(answer: Answer) -> int:
    return int((usage(answer).get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def total(engines: Iterable[Engine], name: str, **labels: str) -> float:
    """The sum of a vLLM metric over engines; `name` without the prefix `vllm:`."""
    found = 0.0
    for engine in engines:
        with urllib.request.urlopen(f"{engine.url}/metrics", timeout=5) as response:
            page = response.read().decode()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == f"vllm:{name}" and labels.items() <= sample.labels.items():
                    found += sample.value
    return found


def until_let_go(engine: Engine) -> None:
    """Wait until an engine holds nothing for anybody: leases that earlier tests left have ended."""
    end_s = monotonic() + 2 * engine.options.kv_lease_duration_s
    while total([engine], "kv_cache_usage_perc"):
        assert monotonic() < end_s, f"{engine.name} still holds what nobody reads"
        sleep(0.5)


@contextmanager
def serve_in_front(
    fleet: EngineFleet, folder: Path, slos: Sequence[Slo], *, pin_x: float | None = None, tables: Sequence[Path] = ()
) -> Iterator[Router]:
    """Router and controller in front of a fleet, ended with the block."""
    pools = {role: fleet.urls(role) for role in ("prefill", "decode", "replica")}
    installation = asyncio.run(
        install_in_front(folder, pools, MODEL, slos, source="vllm-cpu", pin_x=pin_x, tables=tables)
    )
    try:
        yield Router(installation)
    finally:
        installation.stop()
