"""A /metrics page as facts: kind, labels, values and buckets of every metric, no numbers."""

from __future__ import annotations

import re
from typing import Any

_OPEN_LABELS = frozenset({"engine", "model_name", "handler", "method", "status", "generation", "version"})
"""Labels whose values are the installation's or the traffic's."""
_INFO = "vllm:cache_config_info"


def facts(text: str) -> dict[str, dict[str, Any]]:
    """By metric: what a scraper would have to know of it."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found: dict[str, dict[str, Any]] = {name: {"kind": kind} for name, kind in sorted(kinds.items())}
    for line in text.splitlines():
        match = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
        if match is None or line.startswith("#"):
            continue
        name, suffix = _family(match[1], kinds)
        fact = found.setdefault(name, {"kind": "untyped"})
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
        if suffix == "_bucket":
            fact.setdefault("buckets", [])
            if labels["le"] not in fact["buckets"]:
                fact["buckets"].append(labels["le"])
            del labels["le"]
        if labels:
            fact["labels"] = sorted({*fact.get("labels", ()), *labels})
        for label, value in labels.items():
            if label not in _OPEN_LABELS and name != _INFO and not name.startswith("python_"):
                values = fact.setdefault("values", {}).setdefault(label, [])
                if value not in values:
                    values.append(value)
    for name in [name for name in found if name.endswith("_created")]:
        stem = name.removesuffix("_created")
        parent = found.get(stem) or found.get(f"{stem}_total")
        if parent is not None and found[name].get("labels") == parent.get("labels"):
            parent["created"] = found.pop(name)["kind"]
    for fact in found.values():
        if "buckets" in fact:
            fact["buckets"] = " ".join(fact["buckets"])
        if "labels" in fact:
            fact["labels"] = " ".join(fact["labels"])
        for label, values in fact.get("values", {}).items():
            fact["values"][label] = " ".join(sorted(values))
    return found


def _family(name: str, kinds: dict[str, str]) -> tuple[str, str]:
    if name in kinds:
        return name, ""
    for suffix in ("_bucket", "_count", "_sum"):
        if name.removesuffix(suffix) in kinds:
            return name.removesuffix(suffix), suffix
    return name, ""
