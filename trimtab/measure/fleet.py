"""The engines of a fleet as they present themselves, before anything is measured: that they answer, what they serve,
how long a context they take, whether they are idle.

A fleet's fingerprint is what a measurement depends on. It is written into the state file, and a run on another
fleet, or with another grid, does not go on from it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from prometheus_client.parser import text_string_to_metric_families

from router.nodes import Endpoint
from router.turn import NodeId, Role
from router.upstream import NodeError, Upstream

from ..calibrate import CalibrationError

ASK_S = 10.0
IDLE_S = 60.0
POLL_S = 0.25
IDLE_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
UNREADABLE = 3


class FleetError(CalibrationError):
    """A fleet that cannot be measured; the message names the engine."""


class EngineDown(FleetError):
    """An engine stopped answering while it was measured; it may come back."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. `max_tokens` is its context limit, None where it does not say."""

    name: str
    role: Role
    url: str
    models: tuple[str, ...]
    max_tokens: int | None
    version: str
    block_tokens: int | None
    caches_prefixes: bool
    emulated: bool
    speed: float

    def __str__(self) -> str:
        return f"{self.name} ({self.url})"


@dataclass(frozen=True, slots=True)
class Fleet:
    """All engines of one model."""

    model: str
    engines: tuple[Engine, ...]

    @property
    def topology(self) -> str:
        """In the notation of the tables: 2P_2D."""
        roles = [engine.role for engine in self.engines]
        return f"{roles.count(Role.PREFILL)}P_{roles.count(Role.DECODE)}D"

    @property
    def max_tokens(self) -> int | None:
        """The smallest context limit."""
        return min((engine.max_tokens for engine in self.engines if engine.max_tokens is not None), default=None)

    @property
    def emulated(self) -> bool:
        """Trimtab's own emulator is behind at least one of the addresses."""
        return any(engine.emulated for engine in self.engines)

    def describe(self) -> str:
        """For the artefact: versions and block sizes."""
        versions = ", ".join(sorted({engine.version for engine in self.engines}))
        blocks = ", ".join(sorted({str(engine.block_tokens or "unknown") for engine in self.engines}))
        what = "trimtab emulator over HTTP, as vllm" if self.emulated else "vllm"
        return f"{what} {versions}, blocks of {blocks} tokens"

    def fingerprint(self) -> dict[str, object]:
        """What a measurement depends on."""
        return {
            "model": self.model,
            "engines": {
                engine.name: {
                    "url": engine.url,
                    "version": engine.version,
                    "block_tokens": engine.block_tokens,
                    "max_tokens": engine.max_tokens,
                }
                for engine in self.engines
            },
        }


async def look(addresses: Mapping[NodeId, Endpoint], model: str | None, upstream: Upstream) -> Fleet:
    """Ask every engine who it is. Raises FleetError naming those that do not answer or do not fit."""
    found = await asyncio.gather(
        *(_engine(name, at, upstream) for name, at in addresses.items()), return_exceptions=True
    )
    engines: list[Engine] = []
    problems: list[str] = []
    for answer in found:
        if isinstance(answer, Engine):
            engines.append(answer)
        elif isinstance(answer, FleetError):
            problems.append(str(answer))
        else:
            raise answer
    if problems:
        raise FleetError("\n".join(problems))
    fleet = Fleet(_model(engines, model), tuple(engines))
    for engine in fleet.engines:
        if not engine.caches_prefixes:
            raise FleetError(f"{engine} runs without a prefix cache: every local turn would be a full prefill")
        if engine.speed != 1:
            raise FleetError(f"{engine} is emulated at speed {engine.speed:g}: start it with --speed 1")
    return fleet


async def until_idle(fleet: Fleet, upstream: Upstream, within_s: float = IDLE_S) -> None:
    """Wait until no engine runs or queues a request. Raises FleetError naming the one that does."""
    end_s = monotonic() + within_s
    while True:
        busy = await asyncio.gather(*(_busy(engine, upstream) for engine in fleet.engines))
        if not any(busy):
            return
        if monotonic() > end_s:
            engine, count = next((e, n) for e, n in zip(fleet.engines, busy, strict=True) if n)
            raise FleetError(
                f"{engine} still has {count:.0f} requests after {within_s:g} s: nobody else may use the fleet meanwhile"
            )
        await asyncio.sleep(POLL_S)


async def _engine(name: NodeId, at: Endpoint, upstream: Upstream) -> Engine:
    who = f"{at.role} node {name} ({at.url})"
    try:
        status, body = await upstream.get(f"{at.url}/v1/models", ASK_S)
        if status != 200:
            raise FleetError(f"{who} answers {status} to /v1/models: is it a vLLM server?")
        cards = json.loads(body)["data"]
        models = tuple(str(card["id"]) for card in cards)
        limits = [card["max_model_len"] for card in cards if isinstance(card.get("max_model_len"), int)]
        _, version = await upstream.get(f"{at.url}/version", ASK_S)
        _, page = await upstream.get(f"{at.url}/metrics", ASK_S)
    except NodeError as error:
        raise FleetError(f"{who} does not answer ({error}): check the address and that the engine is up") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FleetError(f"{who} does not answer as vLLM does: is the address right?") from None
    numbers, config = _metrics(page)
    block = config.get("block_size", "")
    return Engine(
        name=name,
        role=at.role,
        url=at.url,
        models=models,
        max_tokens=min(limits, default=None),
        version=_version(version),
        block_tokens=int(block) if block.isdecimal() else None,
        caches_prefixes=config.get("enable_prefix_caching", "True") != "False",
        emulated="emulator_speed" in numbers,
        speed=numbers.get("emulator_speed", 1.0),
    )


async def _busy(engine: Engine, upstream: Upstream) -> float:
    for _ in range(UNREADABLE):
        try:
            _, page = await upstream.get(f"{engine.url}/metrics", ASK_S)
        except NodeError as error:
            problem = str(error)
            await asyncio.sleep(POLL_S)
            continue
        numbers, _ = _metrics(page)
        if IDLE_GAUGES[0] not in numbers:
            raise FleetError(f"{engine} shows no {IDLE_GAUGES[0]} at /metrics: start it without --disable-log-stats")
        return sum(numbers.get(name, 0.0) for name in IDLE_GAUGES)
    raise FleetError(f"{engine} stopped answering ({problem})")


def _metrics(page: bytes) -> tuple[dict[str, float], dict[str, str]]:
    """Sums by name, and the labels of the cache configuration."""
    numbers: dict[str, float] = {}
    config: dict[str, str] = {}
    try:
        for family in text_string_to_metric_families(page.decode("utf-8", "replace")):
            for sample in family.samples:
                numbers[sample.name] = numbers.get(sample.name, 0.0) + sample.value
                if sample.name == "vllm:cache_config_info":
                    config = dict(sample.labels)
    except (ValueError, LookupError):  # the parser raises either
        return {}, {}
    return numbers, config


def _version(body: bytes) -> str:
    try:
        version = str(json.loads(body)["version"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
    return version if re.fullmatch(r"[\w.+-]{1,64}", version) else "unknown"


def _model(engines: Sequence[Engine], wanted: str | None) -> str:
    """The model that all of them serve."""
    for engine in engines:
        if wanted is not None and wanted not in engine.models:
            raise FleetError(f"{engine} does not serve {wanted!r}; it serves {', '.join(engine.models) or 'nothing'}")
    if wanted is not None:
        return wanted
    common = [name for name in engines[0].models if all(name in engine.models for engine in engines)]
    if not common:
        serving = "; ".join(f"{engine} serves {', '.join(engine.models) or 'nothing'}" for engine in engines)
        raise FleetError(f"the engines serve no model in common: {serving}")
    return common[0]
