"""The split file: which scenarios and seeds may be tuned on, and which are held out; and what tuning has frozen.

It ships as `split.yaml`. `frozen` maps names such as `tuned_threshold` to a policy and to the command that found it;
`best` among them names the rule that did best on the tuning scenarios. Before tuning there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TypeVar

import yaml

from ..contenders import contender

NAME = "split.yaml"
_T = TypeVar("_T", str, int)


class SplitError(ValueError):
    """The file does not say what it has to; the message names the key and the fix."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A rule with a number that tuning found."""

    policy: str
    found: str
    """The command, and on what commit."""


@dataclass(frozen=True, slots=True)
class Split:
    """Names of scenarios and seeds by what may be done with them."""

    tuning: tuple[str, ...]
    tuning_seeds: tuple[int, ...]
    held_out: tuple[str, ...]
    held_out_seeds: tuple[int, ...]
    frozen: Mapping[str, Frozen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        both = sorted(set(self.tuning) & set(self.held_out))
        if both:
            raise SplitError(f"{', '.join(both)}: listed for tuning and as held out; keep one of them")
        shared = sorted(set(self.tuning_seeds) & set(self.held_out_seeds))
        if shared:
            raise SplitError(f"seeds {', '.join(map(str, shared))}: for tuning and held out; keep them apart")

    def use_of(self, scenario: str) -> str:
        """`tuning` or `held_out`. Raises KeyError for a scenario that the file does not name."""
        if scenario in self.tuning:
            return "tuning"
        if scenario in self.held_out:
            return "held_out"
        raise KeyError(scenario)


def parse_split(text: str) -> Split:
    """From the file's text. Raises SplitError."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SplitError(f"{NAME}: not YAML: {error}") from None
    if not isinstance(document, dict) or document.get("version") != 1:
        raise SplitError(f"{NAME}: version is missing or not known; write version: 1")
    return Split(
        _listed(document, "tuning", "scenarios", str),
        _listed(document, "tuning", "seeds", int),
        _listed(document, "held_out", "scenarios", str),
        _listed(document, "held_out", "seeds", int),
        _frozen(document.get("frozen") or {}),
    )


def _listed(document: dict[str, object], use: str, key: str, kind: type[_T]) -> tuple[_T, ...]:
    part = document.get(use)
    found = part.get(key) if isinstance(part, dict) else None
    if not isinstance(found, list) or not found or not all(type(item) is kind for item in found):
        raise SplitError(f"{NAME}: {use}.{key} must be a list of {kind.__name__}, and is not")
    if len(set(found)) < len(found):
        raise SplitError(f"{NAME}: {use}.{key} lists something twice")
    return tuple(found)


def _frozen(part: object) -> dict[str, Frozen]:
    frozen: dict[str, Frozen] = {}
    for name, entry in part.items() if isinstance(part, dict) else ():
        if not isinstance(entry, dict) or not entry.get("found"):
            raise SplitError(f"{NAME}: frozen.{name} must say policy, and by what command it was found")
        try:
            contender(str(entry.get("policy")), {})
        except ValueError as error:
            raise SplitError(f"{NAME}: frozen.{name}.policy: {error}") from None
        frozen[str(name)] = Frozen(str(entry["policy"]), str(entry["found"]))
    return frozen


@cache
def shipped_split() -> Split:
    """The file that ships with Trimtab."""
    return parse_split((files("trimtab") / "suite" / NAME).read_text(encoding="utf-8"))
