"""A rule file as data, and as the YAML that Prometheus reads: the same declaration gives the same bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

import yaml

from .promql import duration


@dataclass(frozen=True, slots=True)
class Record:
    """What is computed and stored under a name of its own."""

    name: str
    expr: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Alert:
    """What is told. Labels are the alert's identity and hold no number that moves; annotations are templates."""

    name: str
    expr: str
    for_s: float
    keep_s: float
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    interval_s: float
    rules: tuple[Record | Alert, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A rule that was not made, and why."""

    slo: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.slo}: no {self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class RuleFile:
    """All of one declaration."""

    groups: tuple[Group, ...]
    source: str = ""
    left_out: tuple[LeftOut, ...] = field(default=())

    def text(self) -> str:
        """The file."""
        named = PurePath(self.source).name or "a declaration"
        head = [
            f"# Made by `trimtab slo rules` from {named}. Change that file and make this one again.",
            "# Sums over a budget's period need as long a history: --storage.tsdb.retention.time.",
            *(f"# Left out: {each}." for each in self.left_out),
        ]
        body = {"groups": [_group(group) for group in self.groups if group.rules]}
        return (
            "\n".join(head) + "\n" + yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
        )


def _group(group: Group) -> dict[str, object]:
    rules = [_record(rule) if isinstance(rule, Record) else _alert(rule) for rule in group.rules]
    return {"name": group.name, "interval": duration(group.interval_s), "rules": rules}


def _record(rule: Record) -> dict[str, object]:
    labels: dict[str, object] = {"labels": dict(rule.labels)} if rule.labels else {}
    return {"record": rule.name, "expr": rule.expr, **labels}


def _alert(rule: Alert) -> dict[str, object]:
    times = {"for": rule.for_s, "keep_firing_for": rule.keep_s}
    return {
        "alert": rule.name,
        "expr": rule.expr,
        **{key: duration(value) for key, value in times.items() if value > 0.0},
        "labels": dict(rule.labels),
        "annotations": dict(rule.annotations),
    }


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines as blocks, so that people can read them."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
