"""All replies of one pair of engines as one document, and the differences of two such documents field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from .cases import cases
from .client import Engine
from .faults import FAULTS
from .pages import facts
from .scenes import SCENES, Pair, deadly, faults

Sheet = dict[str, Any]
ABSENT = "(absent)"
_SAME = "= "


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One field that is not the same."""

    field: str
    one: str
    other: str


async def ask(
    prefill: str, decode: str, *, recompute: tuple[str, str] | None = None, lease_s: float = 30.0, nonce: int
) -> Sheet:
    """Ask a P and a D everything; their KV leases last `lease_s` of the client's clock. About two minutes.

    `recompute`: a P and a D that was started with `kv_load_failure_policy=recompute`, for the table of faults again.
    """
    sheet: Sheet = {}
    # Engines close idle connections: each request gets its own.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0)) as session:
        p, d = Engine(prefill, session), Engine(decode, session)
        card = (await d.send("/v1/models")).body["data"][0]
        model, limit = str(card["id"]), int(card["max_model_len"])
        for case in cases(model, limit, nonce):
            engine = p if case.node == "P" else d
            try:
                reply = await engine.send(
                    case.path,
                    case.body,
                    method=case.method,
                    headers=case.headers,
                    exact=case.exact,
                    counted=case.counted,
                )
            except (aiohttp.ClientError, TimeoutError) as error:
                sheet[case.name] = {"no reply": type(error).__name__}
                continue
            sheet[case.name] = reply.record
        pair = Pair(p, d, model, lease_s, nonce)
        for scene in SCENES:
            async for name, record in scene(pair):
                sheet[name] = record
        if recompute is not None:
            p2, d2 = (Engine(url, session) for url in recompute)
            async for name, record in faults(Pair(p2, d2, model, lease_s, nonce + 7)):
                sheet[f"recompute, {name}"] = record
        for name, engine in (("P", p), ("D", d)):
            for metric, fact in facts((await engine.send("/metrics")).text).items():
                sheet[f"metric {name} {metric}"] = fact
    return sheet


async def kill(prefill: str, decode: str, fault: str, *, nonce: int = 0, patience_s: float = 8.0) -> dict[str, Any]:
    """Ask a D what kills it."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        p, d = Engine(prefill, session), Engine(decode, session)
        model = str((await d.send("/v1/models")).body["data"][0]["id"])
        pair = Pair(p, d, model, 0.0, nonce)
        return await deadly(pair, next(each for each in FAULTS if each.name == fault), patience_s)


def load(path: Path) -> Sheet:
    """Read a sheet."""
    found: Sheet = json.loads(path.read_text(encoding="utf-8"))
    for name, value in found.items():
        if isinstance(value, str):
            found[name] = found[value.removeprefix(_SAME)]
            continue
        for part, told in value.items():
            if isinstance(told, str) and told.startswith(_SAME):
                value[part] = found[told.removeprefix(_SAME)][part]
    return found


def dump(sheet: Mapping[str, Any]) -> str:
    """One line for each question. What is the same as in an earlier answer, or as all of it, is told by its name."""
    seen: dict[tuple[str, str], str] = {}
    lines = []
    for name, answer in sheet.items():
        whole = seen.setdefault(("", _json(answer)), name)
        told: object = f"{_SAME}{whole}"
        if whole == name:
            parts = {part: seen.setdefault((part, _json(value)), name) for part, value in answer.items()}
            told = {
                part: f"{_SAME}{parts[part]}" if parts[part] != name and isinstance(value, dict | list) else value
                for part, value in answer.items()
            }
        lines.append(f"{_json(name)}:{_json(told)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fields(sheet: Mapping[str, Any]) -> dict[str, str]:
    """Every leaf by its path, and the order of the keys of every object."""
    return dict(_leaves("", sheet, top=True))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """What is not the same. The order of keys counts only for keys that both have.

    Where the status is another, what follows from it is not listed too, but for the words of an error.
    """
    ours, theirs = fields(one), fields(other)
    found = []
    unlike = {
        field.removesuffix("status")
        for field in ours.keys() | theirs.keys()
        if field.endswith("/status") and ours.get(field) != theirs.get(field)
    }
    for field in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(field, ABSENT), theirs.get(field, ABSENT)
        if field.endswith("/{order}"):
            if ABSENT in (a, b):
                continue
            common = set(a.split()) & set(b.split())
            a, b = (" ".join(key for key in each.split() if key in common) for each in (a, b))
        follows = any(field.startswith(each) for each in unlike)
        if a != b and not (follows and not field.endswith(("/status", "/error/message"))):
            found.append(Difference(field, a, b))
    return found


def markdown(found: list[Difference], compared: int, one: str, other: str) -> str:
    """A table of the differences."""
    lines = [
        f"{compared} fields compared, {len(found)} differ.",
        "",
        f"| field | {one} | {other} |",
        "|---|---|---|",
        *(f"| {_cell(each.field)} | {_cell(each.one)} | {_cell(each.other)} |" for each in found),
    ]
    return "\n".join(lines) + "\n"


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", "\\n")


def _leaves(path: str, value: Any, top: bool = False) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        if not top:
            yield f"{path}/{{order}}", " ".join(value)
        for name, each in value.items():
            yield from _leaves(f"{path}/{name}" if not top else name, each)
        if not value:
            yield path, "{}"
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from _leaves(f"{path}/{at}", each)
        if not value:
            yield path, "[]"
    else:
        yield path, json.dumps(value, ensure_ascii=False)
