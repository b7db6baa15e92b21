"""An engine profile as a YAML or JSON document: its fields by name, and what it starts from.

    base: llama-3.1-8b-h100          # optional: fields that are not named are its
    name: my-engine
    provenance: "fitted to ... on ..."
    linear_ms: [[1, 6.4], [512, 13.2], [4096, 89]]
    link: {fixed_ms: 4.0, bandwidth_gb_s: 50}

A field that does not exist, is of another kind, or makes no sense is refused by its place.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from typing import Any

import yaml

from .profiles import PROFILES, EngineProfile, Link

_KINDS: dict[str, type] = {"str": str, "float": float, "int": int, "bool": bool}


class ProfileError(ValueError):
    """A profile document that cannot be used; the message names file, place and reason."""


def dump(profile: EngineProfile) -> str:
    """The whole profile as YAML: loading it gives an equal one."""
    document: dict[str, Any] = asdict(profile)
    document["linear_ms"] = [list(point) for point in profile.linear_ms]
    return yaml.safe_dump(document, sort_keys=False, width=110, default_flow_style=None)


def load(text: str, file: str) -> EngineProfile:
    """Parse a document; `file` is for messages. Raises ProfileError."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProfileError(f"{file}: no YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise ProfileError(f"{file}: a profile is a mapping of fields to values")
    values = dict(document)
    base = values.pop("base", None)
    if base is not None and base not in PROFILES:
        raise ProfileError(f"{file}: base {base!r:.40} is none of {', '.join(PROFILES)}")
    start: dict[str, Any] = _as_dict(PROFILES[base]) if base is not None else {}
    link = values.pop("link", {})
    if not isinstance(link, dict):
        raise ProfileError(f"{file}: link is a mapping, e.g. {{fixed_ms: 4.0, bandwidth_gb_s: 50}}")
    merged = start | _checked(EngineProfile, values, f"{file}: ")
    merged["link"] = start.get("link", {}) | _checked(Link, link, f"{file}: link.")
    try:
        for kind, given, place in ((Link, merged["link"], "link."), (EngineProfile, merged, "")):
            missing = [f.name for f in fields(kind) if f.name not in given and f.default is MISSING]
            if missing:
                raise ValueError(f"{place}{missing[0]} is missing; name it, or a base to take it from")
        merged["link"] = Link(**merged["link"])
        return EngineProfile(**merged)
    except ValueError as error:
        raise ProfileError(f"{file}: {error}") from None


def _as_dict(profile: EngineProfile) -> dict[str, Any]:
    return asdict(profile) | {"linear_ms": profile.linear_ms}


def _checked(kind: type[EngineProfile | Link], values: dict[Any, Any], place: str) -> dict[str, Any]:
    known = {f.name: str(f.type) for f in fields(kind)}
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ProfileError(f"{place}{name!s:.40} is no field; the fields are {', '.join(known)}")
        if name == "linear_ms":
            checked[name] = _points(value, f"{place}{name}")
            continue
        wanted = _KINDS[known[name]]
        whole = isinstance(value, int) and not isinstance(value, bool)
        if wanted is float and whole:
            value = float(value)
        if not isinstance(value, wanted) or (wanted is int and not whole):
            raise ProfileError(f"{place}{name} is a {wanted.__name__}, got {value!r:.40}")
        checked[name] = value
    return checked


def _points(value: object, place: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list):
        raise ProfileError(f"{place} is a list of [tokens, ms]")
    points: list[tuple[int, float]] = []
    for at, point in enumerate(value):
        pair = point if isinstance(point, list) and len(point) == 2 else [None, None]
        tokens, ms = pair
        if not isinstance(tokens, int) or isinstance(ms, bool) or not isinstance(ms, int | float):
            raise ProfileError(f"{place}[{at}] is [tokens, ms], got {point!r:.40}")
        points.append((tokens, float(ms)))
    return tuple(points)
