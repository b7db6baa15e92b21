"""The cells of Phase 1 and their names.

A cell is a workload of the grid (`trimtab/workloads.py`) at one of ten rates of conversations.

    small/tiny@2      first turn 128 → 128, second 16 → 32, two conversations a second
    large/*@1+4       every second turn after 1024 → 1024, at 1 and at 4
    quick             a preset: see PRESETS
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from router.paper_table import QPS_LEVELS, TURN2_TYPES, ContextClass

from .workloads import THINK_S, Workload, grid

TIMEOUT_S = 30.0
"""A turn without a first token after this has failed (the paper's time-out)."""


class CellNameError(ValueError):
    """A name that is no cell's; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload at a rate, in conversations per second."""

    workload: Workload
    qps: float

    @property
    def name(self) -> str:
        """What people type."""
        return f"{self.workload.name}@{self.qps:g}"


@dataclass(frozen=True, slots=True)
class Window:
    """How long an arm runs: `least_s` and until so many later turns are answered, but no longer than `limit_s`."""

    later_turns: int = 300
    limit_s: float = 120.0
    least_s: float = 0.0


PHASE1 = Window()
"""The window of the whole grid."""


GUESSED_TPOT_S = 0.02
"""Time per output token of a fleet that nobody has asked yet."""


def estimated_s(cell: Cell, window: Window, tpot_s: float = GUESSED_TPOT_S) -> float:
    """Seconds that both arms of a cell take on a real fleet, about; each is followed by the end of what runs."""
    outputs = cell.workload.first[1], cell.workload.second[1]
    talk_s = sum(outputs) * tpot_s + THINK_S
    open_s = min(window.limit_s, max(window.least_s, window.later_turns / cell.qps + talk_s))
    return 2 * (open_s + max(outputs) * tpot_s)


def words_for(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True, slots=True)
class Preset:
    """Cells by pattern, and the window that goes with them."""

    patterns: tuple[str, ...]
    window: Window = PHASE1


PRESETS: dict[str, Preset] = {
    "quick": Preset(
        ("small/tiny@2", "small/mid_bal@2", "small/big_paste@4", "small/huge_paste@2", "large/mid_paste@1"),
        Window(20, 60.0, 12.0),
    ),
    "cpu": Preset(
        ("small/tiny@0.5", "small/mid_bal@0.5", "small/mid_paste@0.5", "small/big_paste@0.5", "small/huge_paste@0.5"),
        Window(20, 60.0, 12.0),
    ),
    "paper": Preset(("small/*", "large/*")),
    "all": Preset(("*/*",)),
}
"""`quick` is about the least that fixes all ten constants: prompts of 16 to 1024 new tokens fix what a token costs,
the long first turn what context costs, 4 a second what an append costs the others. `cpu` asks
as little as engines on a few CPU cores can answer, all of them on the same cores. `paper` is the paper's own grid."""


CELLS = tuple(Cell(workload, qps) for workload, qps in grid())
"""All cells, in order."""


def cells_named(names: Iterable[str], levels: Iterable[float] = ()) -> list[Cell]:
    """Cells by name, pattern or preset, in the grid's order; `levels` keeps some rates only. Raises CellNameError."""
    wanted = _levels(levels)
    chosen: set[Cell] = set()
    for name in names:
        for pattern in PRESETS[name].patterns if name in PRESETS else (name,):
            found = [cell for cell in CELLS if _fits(pattern, cell)]
            if not found:
                raise CellNameError(_unknown(pattern))
            chosen.update(found)
    kept = [cell for cell in CELLS if cell in chosen and (not wanted or cell.qps in wanted)]
    if not kept:
        rates = ", ".join(f"{level:g}" for level in sorted(wanted))
        raise CellNameError(
            f"none of the cells named has a rate of {rates}: leave --qps out, or name the cells without @"
        )
    return kept


def _fits(pattern: str, cell: Cell) -> bool:
    workload, _, rates = pattern.partition("@")
    if not fnmatchcase(cell.workload.name, workload):
        return False
    return not rates or any(fnmatchcase(f"{cell.qps:g}", rate) for rate in rates.split("+"))


def _levels(levels: Iterable[float]) -> frozenset[float]:
    wanted = frozenset(levels)
    for level in sorted(wanted - set(QPS_LEVELS)):
        known = ", ".join(f"{each:g}" for each in QPS_LEVELS)
        raise CellNameError(f"{level:g} is no rate of the grid: {known} (conversations per second)")
    return wanted


def _unknown(pattern: str) -> str:
    contexts, types = ", ".join(ContextClass), ", ".join(TURN2_TYPES)
    rates = ", ".join(f"{level:g}" for level in QPS_LEVELS)
    close = get_close_matches(pattern, [*PRESETS, *(cell.name for cell in CELLS)], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return (
        f"no cell is named {pattern!r}{hint} A name is CONTEXT/TURN@RATE, e.g. small/tiny@2 or large/*@1, or one of "
        f"{', '.join(PRESETS)}. Contexts: {contexts}. Second turns: {types}. Rates: {rates}."
    )
