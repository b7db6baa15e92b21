"""What was measured, as far as a directory has it: the grid, real conversations, interference, turn scaling.

The grid is needed; of the others each may be missing, and then the targets that would use it are compared with the
paper alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from ..measured import FOLDER, REAL, RealRun, Result, read_points, read_real, rows

INTERFERENCE = "interference_core.csv"
TURNS = "turn_scaling.csv"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Readings:
    """Everything that was measured; empty where nothing was."""

    points: tuple[Result, ...] = ()
    real: tuple[RealRun, ...] = ()
    interference: Mapping[tuple[int, int, str], float] = field(default_factory=dict)
    """Mean TPOT in ms by (batch, prefills beside it, full or append or nothing)."""
    turns: Mapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    """Mean TTFT in ms of turns 2, 3, … by (configuration, turns of the conversation)."""
    missing: tuple[str, ...] = ()


def read(directory: Path) -> Readings:
    """All that the directory has. Raises MeasuredError."""
    points = read_points(directory)
    missing: list[str] = []

    def optional(name: str, reader: Callable[[Path], T], otherwise: T) -> T:
        if not any((folder / name).is_file() for folder in (directory, directory / FOLDER)):
            missing.append(name)
            return otherwise
        return reader(directory)

    nothing = Readings()
    real = optional(REAL, lambda where: tuple(read_real(where)), nothing.real)
    interference = optional(INTERFERENCE, read_interference, nothing.interference)
    turns = optional(TURNS, read_turns, nothing.turns)
    return Readings(tuple(points), real, interference, turns, tuple(missing))


def read_interference(directory: Path) -> Mapping[tuple[int, int, str], float]:
    """Mean over repeats. Raises MeasuredError."""
    found: dict[tuple[int, int, str], list[float]] = {}
    for row in rows(directory, INTERFERENCE):
        key = (round(row.number("decode_count")), round(row.number("prefill_count")), row.text("prefill_type"))
        found.setdefault(key, []).append(row.number("decode_avg_tpot_ms"))
    return {key: fmean(values) for key, values in found.items()}


def read_turns(directory: Path) -> Mapping[tuple[str, int], tuple[float, ...]]:
    """Turns after the first, in order. Raises MeasuredError."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in rows(directory, TURNS):
        if row.number("turn") > 1:
            key = (row.text("config"), round(row.number("num_turns")))
            found.setdefault(key, []).append((row.number("turn"), row.number("ttft_avg_ms")))
    return {key: tuple(ms for _, ms in sorted(values)) for key, values in found.items()}
