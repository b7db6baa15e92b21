"""Tables as a scenario wants them: as shipped, none for its model, or wrong in a seeded way.

Wrong: each value of a cell is multiplied by a factor drawn log-uniformly from 1/NOISE to NOISE, and one in five of
those that have a sign (TTFT saved; the paper's two deltas) has it flipped. Costs keep their sign, for they have none.
Left alone: the latency model, which says how long backlogs are, and the success rates of the paper's cells.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from numpy.random import Generator

from router.paper_table import PaperTable
from router.policy import TableKey, Tables, sorted_tables

NOISE = 3.0
FLIPPED = 0.2


class TableState(StrEnum):
    """What the router has of its model."""

    SHIPPED = "shipped"
    NONE = "none"
    WRONG = "wrong"


def tables_in(state: TableState, tables: dict[TableKey, Tables], model: str, rng: Generator) -> dict[TableKey, Tables]:
    """The tables of `model` in that state; those of other models as they are."""
    if state is TableState.SHIPPED:
        return tables
    others = {key: found for key, found in tables.items() if key.model != model}
    if state is TableState.NONE:
        return others
    return others | {key: _wrong(found, rng) for key, found in sorted_tables(tables) if key.model == model}


def _wrong(tables: Tables, rng: Generator) -> Tables:
    right = tables.load_aware
    saved = _factors(len(right.saved_ms), rng, flips=True)
    cost = _factors(len(right.cost), rng, flips=False)
    load_aware = replace(
        right,
        saved_ms=tuple(value * by for value, by in zip(right.saved_ms, saved, strict=True)),
        cost=tuple(value * by for value, by in zip(right.cost, cost, strict=True)),
    )
    paper = None if tables.paper is None else _wrong_paper(tables.paper, rng)
    return replace(tables, load_aware=load_aware, paper=paper, digest=f"{tables.digest} made wrong")


def _wrong_paper(table: PaperTable, rng: Generator) -> PaperTable:
    by_ttft = _factors(len(table.cells), rng, flips=True)
    by_tpot = _factors(len(table.cells), rng, flips=True)
    return PaperTable(
        {
            key: replace(cell, delta_ttft=_times(cell.delta_ttft, ttft), delta_tpot=_times(cell.delta_tpot, tpot))
            for (key, cell), ttft, tpot in zip(table.cells.items(), by_ttft, by_tpot, strict=True)
        }
    )


def _times(delta: float | None, factor: float) -> float | None:
    return None if delta is None else delta * factor


def _factors(count: int, rng: Generator, *, flips: bool) -> list[float]:
    sizes = NOISE ** rng.uniform(-1, 1, count)
    if flips:
        sizes[rng.random(count) < FLIPPED] *= -1
    return [float(size) for size in sizes]
