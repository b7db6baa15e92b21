"""The file of `trimtab emulate --faults`: what goes wrong with requests by rule, and what is wrong with nodes.

    version: 1
    requests:
      - {node: D0, nth: 3, fault: status, status: 503}
      - {node: P, has: min_tokens, fault: status, status: 400}
      - {leg: decode, nth: every 20, fault: reset, after: 5}
    nodes:
      D1: {slow: 10, metrics: frozen, connections: 8, keep_alive: 1s}

What the keys mean stands in `emulator/rules.py`. All problems of a file are told at once, with line and fix.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import yaml

from emulator.rules import CONDITION_KEYS, RULE_KEYS, Condition, Rule, condition, rule
from emulator.server import FaultPlan
from slos.document import compose
from slos.nodes import Spot, fields, items, scalar
from slos.problem import Problems

_T = TypeVar("_T")


def load_faults(path: Path) -> FaultPlan:
    """Read a file. Raises SpecError with every problem."""
    problems = Problems(str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        problems.add(1, 1, "E110", f"cannot be read: {why}", "check the path")
        problems.raise_any()
        raise AssertionError from error
    return parse_faults(text, str(path))


def parse_faults(text: str, source: str) -> FaultPlan:
    """The same from its text. Raises SpecError."""
    problems = Problems(source)
    root = compose(text, problems)
    top = fields(root, ("version", "requests", "nodes")) if root else None
    requests: list[Rule] = []
    nodes: dict[str, Condition] = {}
    if root is not None and top is not None:
        if "version" not in top:
            root.complain("E103", "version is missing", "write version: 1 on the first line")
        elif scalar(top["version"], "1") not in (None, "1"):
            top["version"].complain("E112", "is not known", "write 1")
        for item in items(top["requests"]) or () if "requests" in top else ():
            found = _read(item, RULE_KEYS, rule)
            if found is not None:
                requests.append(found)
        if "nodes" in top:
            for name, spot in (fields(top["nodes"], _keys(top["nodes"])) or {}).items():
                wrong = _read(spot, CONDITION_KEYS, condition)
                if wrong is not None:
                    nodes[name] = wrong
    problems.raise_any()
    return FaultPlan(tuple(requests), nodes)


def _read(spot: Spot, keys: tuple[str, ...], make: Callable[[dict[str, str]], _T]) -> _T | None:
    """One mapping; a ValueError's first word is the key that it is about."""
    found = fields(spot, keys)
    if found is None:
        return None
    texts = {name: scalar(value, "a value") for name, value in found.items()}
    if None in texts.values():
        return None
    try:
        return make({name: text for name, text in texts.items() if text is not None})
    except ValueError as error:
        key, _, rest = str(error).partition(": ")
        message, _, fix = rest.partition("; ")
        found.get(key, spot).complain("E104", message, fix or "see docs/reference/faults.md")
        return None


def _keys(spot: Spot) -> tuple[str, ...]:
    """Those of a mapping whose keys are the operator's."""
    if not isinstance(spot.node, yaml.MappingNode):
        return ("D0",)
    return tuple(str(key.value) for key, _ in spot.node.value)
