"""The paper's table (`table: paper`): Algorithm 1 with the discretisation of its Appendix B.1.

A cell is context class × nine turn-2 types × QPS level. It holds the relative mean deltas of its x=0 and x=1
runs,

    Δttft = (TTFT₀ − TTFT₁)/TTFT₀,  Δtpot = (TPOT₁ − TPOT₀)/TPOT₀,  S = w_ttft·Δttft − w_tpot·Δtpot,  x = 1 iff S > 0.

A cell whose x=0 run failed is local, whatever the weights; one whose x=1 run alone failed is not. Without a
measurement the nearest QPS level of the same class and type stands in, then the nearest class; without any
the turn takes the traditional route. A level is a rate of two-turn conversations, so it is compared with half
the rate of turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import log
from typing import NamedTuple

from .features import TurnFeatures
from .turn import Reason

SUCCESS_FLOOR = 0.95
"""Below this share of answered turns a run failed (paper, §6.1)."""

TURN2_TYPES: dict[str, tuple[int, int]] = {
    "tiny": (16, 32),
    "short_gen": (32, 256),
    "long_gen": (32, 512),
    "very_long_gen": (64, 1024),
    "small_bal": (64, 64),
    "mid_bal": (128, 128),
    "mid_paste": (256, 64),
    "big_paste": (512, 64),
    "huge_paste": (1024, 32),
}
"""Turn-2 (input, output) tokens of the paper's grid."""

QPS_LEVELS: tuple[float, ...] = (0.5, 1, 2, 4, 6, 8, 10, 12, 16, 20)


class ContextClass(StrEnum):
    """Accumulated context: ≤ 512, ≤ 4096, more."""

    SMALL = "small"
    LARGE = "large"
    HUGE = "huge"


_CLASSES = tuple(ContextClass)


def context_class(n_ctx: int) -> ContextClass:
    """B.1's first axis."""
    return ContextClass.SMALL if n_ctx <= 512 else ContextClass.LARGE if n_ctx <= 4096 else ContextClass.HUGE


_LOG_TYPES = tuple((name, log(n_in), log(n_out)) for name, (n_in, n_out) in TURN2_TYPES.items())


def turn2_type(n_in: int, n_out: int) -> str:
    """B.1's second axis: the nearest of the nine by (ln n_in, ln n_out)."""
    x, y = log(max(n_in, 1)), log(max(n_out, 1))
    return min(_LOG_TYPES, key=lambda entry: (entry[1] - x) ** 2 + (entry[2] - y) ** 2)[0]


class CellKey(NamedTuple):
    """One cell."""

    context: ContextClass
    turn2: str
    qps: float

    def __str__(self) -> str:
        return f"{self.context.value}/{self.turn2}/{self.qps:g}"


@dataclass(frozen=True, slots=True)
class PaperCell:
    """Relative mean deltas with the samples behind them; a delta is None where an arm has no answered turn."""

    delta_ttft: float | None
    delta_tpot: float | None
    success_x0: float
    success_x1: float
    n_x0: int
    n_x1: int


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Cells by key; not every key need be present."""

    cells: dict[CellKey, PaperCell]

    def choose(self, features: TurnFeatures, w_ttft: float, w_tpot: float) -> tuple[bool, Reason, str]:
        """(local?, reason, cell used) for a later turn."""
        key = CellKey(
            context_class(features.n_ctx),
            turn2_type(features.n_in, features.n_out),
            min(QPS_LEVELS, key=lambda level: abs(level - features.qps / 2)),
        )
        found = self._nearest(key)
        if found is None:
            return False, Reason.NO_DATA, str(key)
        cell = self.cells[found]
        if cell.success_x0 < SUCCESS_FLOOR:
            return True, Reason.X0_FAILED, str(found)
        if cell.success_x1 < SUCCESS_FLOOR:
            return False, Reason.X1_FAILED, str(found)
        assert cell.delta_ttft is not None and cell.delta_tpot is not None
        if cell.delta_ttft <= 0 and cell.delta_tpot >= 0:
            return False, Reason.LOCAL_SLOWER, str(found)
        return w_ttft * cell.delta_ttft - w_tpot * cell.delta_tpot > 0, Reason.SCORE, str(found)

    def _nearest(self, key: CellKey) -> CellKey | None:
        if self._usable(key):
            return key
        at = _CLASSES.index(key.context)
        for context in sorted(_CLASSES, key=lambda c: abs(_CLASSES.index(c) - at)):
            usable = [k for q in QPS_LEVELS if self._usable(k := CellKey(context, key.turn2, q))]
            if usable:
                return min(usable, key=lambda k: abs(log(k.qps / key.qps)))
        return None

    def _usable(self, key: CellKey) -> bool:
        cell = self.cells.get(key)
        if cell is None or cell.n_x0 + cell.n_x1 == 0:
            return False
        failed = cell.success_x0 < SUCCESS_FLOOR or cell.success_x1 < SUCCESS_FLOOR
        return failed or (cell.delta_ttft is not None and cell.delta_tpot is not None)
