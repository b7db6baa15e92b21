"""Panels: the data of small plots. Who draws them: `draw.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Where values come from; it decides how they are drawn."""

    TRIMTAB = "trimtab"
    MEASURED = "measured"
    PAPER = "paper"


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or points. `color` counts: series of one colour are about the same thing."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int
    source: Source = Source.TRIMTAB
    line: bool = True
    """Joined by a line; else points alone."""
    mark: str = ""
    """Of the points, as matplotlib names it; empty: by source."""
    failed: Sequence[bool] = ()
    """Points drawn as a cross."""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or len(self.failed) not in (0, len(self.x)):
            raise ValueError(f"series {self.label!r}: {len(self.x)} x, {len(self.y)} y, {len(self.failed)} failed")


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    x_names: Sequence[str] = ()
    """Categories at x = 0, 1, 2, …"""
    diagonal: bool = False
    """The line y = x."""
