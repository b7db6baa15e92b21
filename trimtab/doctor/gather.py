"""A shell: what engines tell when they are only read. GET /health, /version, /v1/models, /metrics, /kv_event_sources
and (in development mode) /server_info, and a connection that is watched while it idles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import urlsplit

from controller.engine_page import PageError
from controller.scrape import TEXT
from router.turn import Role

from .facts import Config, Node, Page, Served
from .http import Http, NoAnswer, Reply, idle_closed, listens
from .page import read

_T = TypeVar("_T")
WATCH_MARGIN_S = 0.3


@dataclass(frozen=True, slots=True)
class Target:
    """An engine to look at. `url` without a trailing slash; `role` None: to be found out."""

    url: str
    role: Role | None


async def look(http: Http, targets: Iterable[Target], model: str, watch_s: float | None) -> tuple[Node, ...]:
    """All engines at once, named by role and order; `watch_s` None: idle connections are not watched."""
    found = await asyncio.gather(*(_look(http, target, model, watch_s) for target in targets))
    counts = dict.fromkeys((*Role, None), 0)
    named = []
    for node in found:
        letter = "N" if node.role is None else node.role.value[0].upper()
        named.append(replace(node, name=f"{letter}{counts[node.role]}"))
        counts[node.role] += 1
    return tuple(named)


async def _look(http: Http, target: Target, model: str, watch_s: float | None) -> Node:
    node = Node("", target.url, target.role, target.role is not None)
    try:
        health = await http.get(f"{target.url}/health")
    except NoAnswer as error:
        return replace(node, problem=str(error))
    if health.status != 200:
        return replace(node, problem=f"/health answers {health.status}")
    watching = None if watch_s is None else asyncio.ensure_future(_idle(target.url, watch_s, http.timeout_s))
    asked_s = time.time()
    models = await _or_none(http.get(f"{target.url}/v1/models", key=False))
    skew_s = None if models is None else skew(models.headers, (asked_s + time.time()) / 2)
    wants_key = models is not None and models.status in (401, 403)
    if wants_key:
        models = await _or_none(http.get(f"{target.url}/v1/models"))
    version, text, sources, config = await asyncio.gather(
        _or_none(http.get(f"{target.url}/version")),
        _or_none(http.get(f"{target.url}/metrics", TEXT)),
        _or_none(http.get(f"{target.url}/kv_event_sources")),
        _or_none(http.get(f"{target.url}/server_info?config_format=json")),
    )
    listed = served(_value(models))
    page, problem = _page(target, listed[0].id if model == "*" and listed else model, text)
    role = target.role or (None if page is None else role_of(page))
    node = replace(
        node,
        role=role,
        wants_key=wants_key,
        let_in=not wants_key or (models is not None and models.status == 200),
        version=_word(_value(version), "version"),
        models=listed,
        page=page,
        page_problem=problem,
        config=configured(_value(config)),
        skew_s=skew_s,
        event_sources=await _events(target.url, _value(sources), http.timeout_s),
    )
    if watching is not None:
        node = replace(node, idle_watched_s=watch_s, idle_closed_s=await watching)
    return node


def role_of(page: Page) -> Role:
    """What an engine is for, by what its connector shows."""
    if not page.connector:
        return Role.REPLICA
    return Role.DECODE if page.consumer else Role.PREFILL


def served(value: object) -> tuple[Served, ...] | None:
    """/v1/models."""
    rows = value.get("data") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        return None
    found = []
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("id"), str):
            length = row.get("max_model_len")
            found.append(Served(row["id"], str(row.get("root") or ""), length if isinstance(length, int) else None))
    return tuple(found)


def configured(value: object) -> Config | None:
    """/server_info, as far as it is about handing over."""
    whole = value.get("vllm_config") if isinstance(value, dict) else None
    if not isinstance(whole, dict):
        return None
    transfer = whole.get("kv_transfer_config")
    if not isinstance(transfer, dict):
        return Config()
    extra = transfer.get("kv_connector_extra_config")
    lease_s = extra.get("kv_lease_duration", 30) if isinstance(extra, dict) else 30
    return Config(
        _word(transfer, "kv_connector"),
        _word(transfer, "kv_role"),
        float(lease_s) if isinstance(lease_s, (int, float)) else None,
        _word(transfer, "kv_load_failure_policy"),
    )


def skew(headers: Mapping[str, str], now_s: float) -> float | None:
    """The other clock less ours; Date has whole seconds, so half of one is added."""
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp() + 0.5 - now_s
    except (KeyError, ValueError, TypeError):
        return None


def _page(target: Target, model: str, reply: Reply | None) -> tuple[Page | None, str]:
    if reply is None:
        return None, "no answer"
    if reply.status != 200:
        return None, f"status {reply.status}"
    try:
        openmetrics = reply.headers.get("Content-Type", "").startswith("application/openmetrics-text")
        return read("", target.url, target.role, model, reply.body.decode("utf-8"), openmetrics), ""
    except PageError as error:
        return None, str(error)
    except (ValueError, LookupError):
        return None, "not Prometheus text"


async def _events(url: str, value: object, timeout_s: float) -> Mapping[str, bool | None] | None:
    if not isinstance(value, dict):
        return None
    found: dict[str, bool | None] = {}
    for source in value.values():
        if isinstance(source, dict) and source.get("publisher") == "zmq" and isinstance(source.get("endpoint"), str):
            endpoint = source["endpoint"][:120]
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            bound = endpoint.startswith("tcp://") and host == "*" and port.isdecimal()  # vLLM connects to all others
            found[endpoint] = await listens(urlsplit(url).hostname or "", int(port), timeout_s) if bound else None
    return found


async def _idle(url: str, watch_s: float, timeout_s: float) -> float | None:
    return await _or_none(idle_closed(url, watch_s + WATCH_MARGIN_S, timeout_s))


async def _or_none(asking: Awaitable[_T]) -> _T | None:
    try:
        return await asking
    except NoAnswer:
        return None


def _value(reply: Reply | None) -> object:
    return reply.json if reply is not None and reply.status == 200 else None


def _word(value: object, name: str) -> str | None:
    word = value.get(name) if isinstance(value, dict) else None
    return word[:60] if isinstance(word, str) and word else None
