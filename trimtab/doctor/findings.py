"""A finding: what was checked, how it stands, of which nodes, and what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Level(StrEnum):
    """How a check stands."""

    OK = "OK"
    WARN = "WARN"
    """It works, and worse than it could."""
    FAIL = "FAIL"
    """Turns fail, or the router decides on what is not so."""
    UNKNOWN = "UNKNOWN"
    """It cannot be seen from here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `nodes` is empty for what concerns all of them; `fix` says what to change and where."""

    level: Level
    message: str
    fix: str = ""
    nodes: tuple[str, ...] = ()
    check: str = ""

    def line(self, width: int = 8) -> str:
        """As it is printed; `width` is the column of nodes."""
        nodes = " ".join(self.nodes) or "-"
        head = f"{self.level.value:7s}  {self.check:16s}  {nodes:{width}s}  {self.message}"
        return f"{head}. Fix: {self.fix}" if self.fix else head


def ok(message: str, *nodes: str) -> Finding:
    """As it should be."""
    return Finding(Level.OK, message, nodes=nodes)


def warn(message: str, fix: str = "", *nodes: str) -> Finding:
    """Worth changing."""
    return Finding(Level.WARN, message, fix, nodes)


def fail(message: str, fix: str = "", *nodes: str) -> Finding:
    """Has to be changed."""
    return Finding(Level.FAIL, message, fix, nodes)


def unknown(message: str, fix: str = "", *nodes: str) -> Finding:
    """Cannot be told."""
    return Finding(Level.UNKNOWN, message, fix, nodes)


def joined(findings: Iterable[Finding]) -> list[Finding]:
    """The same said of several nodes is said once."""
    found: dict[Finding, list[str]] = {}
    for finding in findings:
        found.setdefault(replace(finding, nodes=()), []).extend(finding.nodes)
    return [replace(finding, nodes=tuple(dict.fromkeys(nodes))) for finding, nodes in found.items()]


def failed(findings: Iterable[Finding]) -> bool:
    """Whether the engines lack something that the router needs."""
    return any(finding.level is Level.FAIL for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    """How many of each."""
    counts = Counter(finding.level for finding in findings)
    return ", ".join(f"{counts[level]} {level.value}" for level in Level)


def document(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """For JSON."""
    return [
        {
            "check": finding.check,
            "level": finding.level.value,
            "nodes": list(finding.nodes),
            "message": finding.message,
            "fix": finding.fix,
        }
        for finding in findings
    ]
