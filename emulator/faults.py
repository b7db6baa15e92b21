"""What goes wrong, and when: faults on a timeline, as data.

    out         the node's process dies: its requests fail, its cache is lost; `for_s` later it is back, empty.
                With `for_s` 0 it is a restart that nobody sees but by what is gone
    slow        every step of the node takes `value` times as long
    bandwidth   the node's link, or every link, runs at `value` GB/s
    metrics     the controller sees no turns that end in this time until it is over

Whoever runs the fleet carries them out (`trimtab.simulate`). Left out: faults that depend on what happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf


class FaultKind(StrEnum):
    """What goes wrong."""

    OUT = "out"
    SLOW = "slow"
    BANDWIDTH = "bandwidth"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault from `at_s` for `for_s` seconds (inf: to the end)."""

    kind: FaultKind
    at_s: float
    for_s: float
    node: str | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        who = f"fault {self.kind.value} at {self.at_s:g} s"
        if not (0 <= self.at_s < inf and self.for_s >= 0):
            raise ValueError(f"{who}: it needs a start and a duration of 0 s or more, got {self.for_s}")
        if self.kind in (FaultKind.OUT, FaultKind.SLOW) and self.node is None:
            raise ValueError(f"{who}: name the node")
        if self.kind is FaultKind.METRICS and self.node is not None:
            raise ValueError(f"{who}: it is the controller's, and of no node; leave {self.node} out")
        takes = self.kind in (FaultKind.SLOW, FaultKind.BANDWIDTH)
        if takes and not (self.value is not None and 0 < self.value < inf):
            raise ValueError(f"{who}: it needs a value above 0 (a factor, or GB/s), got {self.value}")
        if not takes and self.value is not None:
            raise ValueError(f"{who}: it takes no value, got {self.value:g}")

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.at_s + self.for_s


def check(faults: Iterable[Fault], nodes: Collection[str]) -> tuple[Fault, ...]:
    """The faults in order of time. Raises ValueError for an unknown node or two of a kind at once on one node."""
    ordered = sorted(faults, key=lambda fault: fault.at_s)
    for at, fault in enumerate(ordered):
        if fault.node is not None and fault.node not in nodes:
            raise ValueError(f"fault {fault.kind.value}: no node {fault.node!r}; the nodes are {', '.join(nodes)}")
        for later in ordered[at + 1 :]:
            same = later.kind is fault.kind and (later.node == fault.node or None in (later.node, fault.node))
            if same and later.at_s < fault.end_s:
                raise ValueError(
                    f"fault {fault.kind.value} on {fault.node or 'all'}: one from {fault.at_s:g} to {fault.end_s:g} s "
                    f"and another from {later.at_s:g} s overlap; make them one after the other"
                )
    return tuple(ordered)
