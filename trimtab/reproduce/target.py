"""Targets: what the paper says of one number, and what became of it here.

The error is of what virtual time says against what was measured, or against the paper where nothing was: relative
for sizes (ms, tokens/s, ratios), a plain difference for shares, changes and counts. A target with a limit holds or
misses; one without is shown, and its `why` says why no limit would be fair. Shares and changes are in 0..1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .panel import Panel


class Unit(StrEnum):
    """What a value is."""

    MS = "ms"
    SHARE = "share"
    """0..1"""
    CHANGE = "change"
    """Relative, e.g. −.48"""
    RATIO = "×"
    COUNT = "count"

    @property
    def differs(self) -> bool:
        """Errors are differences; else they are relative."""
        return self in (Unit.SHARE, Unit.CHANGE, Unit.COUNT)

    def text(self, value: float | None) -> str:
        """For people."""
        if value is None:
            return "–"
        match self:
            case Unit.SHARE:
                return f"{value:.1%}"
            case Unit.CHANGE:
                return f"{value:+.1%}"
            case Unit.MS:
                return f"{value:,.2f}" if abs(value) < 20 else f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
            case Unit.COUNT:
                return f"{value:g}"
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"

    def error_text(self, error: float | None) -> str:
        """The same of an error."""
        if error is None:
            return "–"
        if self is Unit.COUNT:
            return f"{error:+g}"
        return f"{error * 100:+.1f} pp" if self.differs else f"{error:+.1%}"


class Verdict(StrEnum):
    """What became of a target."""

    HOLDS = "holds"
    MISSES = "misses"
    SHOWN = "shown"
    """It has no limit, or there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Target:
    """One number of the paper."""

    name: str
    """FIGURE/WHAT, e.g. `table-1/1P_3D/low`."""
    what: str
    unit: Unit
    place: str
    """Where the paper says it."""
    paper: float | None = None
    limit: float | None = None
    """Largest error that holds."""
    at_most: float | None = None
    at_least: float | None = None
    """Bounds of the value itself."""
    why: str = ""
    """Why it misses, or has no limit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A target and its values; `interval` is a 95 % bootstrap interval of ours."""

    target: Target
    trimtab: float | None
    measured: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def against(self) -> str | None:
        """What the error is against: measured, paper, or nothing."""
        if self.measured is not None:
            return "measured"
        return None if self.target.paper is None else "paper"

    @property
    def error(self) -> float | None:
        """See above; None where there is nothing to compare."""
        known = self.target.paper if self.measured is None else self.measured
        if known is None or self.trimtab is None:
            return None
        if self.target.unit.differs:
            return self.trimtab - known
        return self.trimtab / known - 1 if known else None

    @property
    def verdict(self) -> Verdict:
        """Whether limits and bounds hold."""
        target, value, error = self.target, self.trimtab, self.error
        checks = [
            None if target.limit is None or error is None else abs(error) <= target.limit,
            None if target.at_most is None or value is None else value <= target.at_most,
            None if target.at_least is None or value is None else value >= target.at_least,
        ]
        known = [check for check in checks if check is not None]
        return Verdict.SHOWN if not known else Verdict.HOLDS if all(known) else Verdict.MISSES

    def bound_text(self) -> str:
        """What it is held to."""
        target, unit = self.target, self.target.unit
        parts = []
        if target.limit is not None:
            parts.append(f"within {unit.error_text(target.limit).lstrip('+')}")
        if target.at_most is not None:
            parts.append(f"≤ {unit.text(target.at_most)}")
        if target.at_least is not None:
            parts.append(f"≥ {unit.text(target.at_least)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Chapter:
    """What one part of the paper came to."""

    title: str
    how: str
    """How it was computed, and what the paper leaves open."""
    findings: Sequence[Finding]
    panels: Sequence[Panel] = ()
    columns: int = 3
    """Panels side by side."""
