"""The load-aware table: Equation 1 as cells, looked up turn by turn.

Axes: tokens that D lacks × tokens that P lacks × prompt × sequences on D, log-spaced centres. A cell holds
the two sides of the score: `saved` is the TTFT that going local saves by node times alone, in ms; `cost` is
the stall that it causes times the sequences that wait for it, in ms × sequences. `cost` does not depend on
what P lacks, so it has no such axis. Between centres both are interpolated linearly in tokens; below the
first centre they are flat, above the last they go on straight.

Backlogs add to `saved` exactly: a turn goes local iff w_ttft · (saved + P backlog + link backlog − D backlog)
> w_tpot · cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf
from typing import NamedTuple

from .features import TurnFeatures
from .latency import LatencyModel


class Score(NamedTuple):
    """Both sides of the trade-off for one turn, backlogs included."""

    saved_ms: float
    cost: float
    cell: str


@dataclass(frozen=True, slots=True)
class Axes:
    """Cell centres, rising. Tokens, but for `batch` (sequences)."""

    uncached_d: tuple[float, ...]
    uncached_p: tuple[float, ...]
    prompt: tuple[float, ...]
    batch: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("uncached_d", "uncached_p", "prompt", "batch"):
            centres = getattr(self, name)
            # Written so that a NaN, which compares false with everything, is refused.
            rising = all(a < b for a, b in pairwise(centres))
            if len(centres) < 2 or not rising or centres[0] < 0 or centres[-1] == inf:
                raise ValueError(f"table axis {name} needs two or more rising centres >= 0, got {list(centres)[:5]}")

    @property
    def saved_cells(self) -> int:
        """Number of cells of `saved`."""
        return len(self.uncached_d) * len(self.uncached_p) * len(self.prompt) * len(self.batch)

    @property
    def cost_cells(self) -> int:
        """Number of cells of `cost`."""
        return len(self.uncached_d) * len(self.prompt) * len(self.batch)


DEFAULT_AXES = Axes(
    uncached_d=(
        1,
        16,
        23,
        32,
        45,
        64,
        91,
        128,
        181,
        256,
        362,
        512,
        724,
        1024,
        2048,
        4096,
        8192,
        16384,
        32768,
        65536,
    ),
    uncached_p=(1, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
    prompt=(256, 2048, 8192, 16384, 32768, 65536, 131072),
    batch=(0, 1, 4, 8, 16, 32, 48, 64, 96, 160),
)


@dataclass(frozen=True, slots=True)
class LoadAwareTable:
    """`saved_ms` in the order uncached_d, uncached_p, prompt, batch; `cost` in the order uncached_d, prompt,
    batch (last fastest)."""

    axes: Axes
    model: LatencyModel
    saved_ms: tuple[float, ...]
    cost: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values, expected in (
            ("saved_ms", self.saved_ms, self.axes.saved_cells),
            ("cost", self.cost, self.axes.cost_cells),
        ):
            if len(values) != expected:
                raise ValueError(f"table: {name} has {len(values)} cells, the axes need {expected}")
            if not all(abs(value) < 1e12 for value in values):
                raise ValueError(f"table: {name} holds values that are not finite")
        if min(self.cost) < 0:
            raise ValueError("table: cost must not be negative")

    @classmethod
    def filled(cls, model: LatencyModel, axes: Axes = DEFAULT_AXES) -> LoadAwareTable:
        """Every cell from the latency model, rounded to .01 (an artefact keeps six digits of it)."""
        saved = tuple(
            round(model.saved_ms(*at), 2) for at in product(axes.uncached_d, axes.uncached_p, axes.prompt, axes.batch)
        )
        cost = tuple(round(model.cost(*at), 2) for at in product(axes.uncached_d, axes.prompt, axes.batch))
        return cls(axes, model, saved, cost)

    def score(self, features: TurnFeatures) -> Score:
        """Interpolated sides of the score, backlogs added; `cell` names the nearest centres."""
        axes = self.axes
        n_p, n_c, n_b = len(axes.uncached_p), len(axes.prompt), len(axes.batch)
        i, wi = _between(axes.uncached_d, features.uncached_d)
        j, wj = _between(axes.uncached_p, features.uncached_p)
        k, wk = _between(axes.prompt, features.n_ctx + features.n_in)
        m, wm = _between(axes.batch, features.d_batch)
        cost = self.cost
        at = (i * n_c + k) * n_b + m
        row = n_c * n_b
        value = _bilinear(cost, at, n_b, wk, wm)
        value += wi * (_bilinear(cost, at + row, n_b, wk, wm) - value)
        saved = self.saved_ms
        at = ((i * n_p + j) * n_c + k) * n_b + m
        plane = n_p * row
        low = _bilinear(saved, at, n_b, wk, wm)
        low += wj * (_bilinear(saved, at + row, n_b, wk, wm) - low)
        high = _bilinear(saved, at + plane, n_b, wk, wm)
        high += wj * (_bilinear(saved, at + plane + row, n_b, wk, wm) - high)
        gain = low + wi * (high - low)
        cell = f"d{i + (wi >= 0.5)}p{j + (wj >= 0.5)}c{k + (wk >= 0.5)}b{m + (wm >= 0.5)}"
        return Score(gain + features.backlog_ms, max(value, 0.0), cell)


def _between(centres: tuple[float, ...], value: float) -> tuple[int, float]:
    """Index of the centre below and the weight of the one above; the weight exceeds 1 beyond the last centre."""
    if value <= centres[0]:
        return 0, 0.0
    i = min(bisect_right(centres, value), len(centres) - 1) - 1
    low = centres[i]
    return i, (value - low) / (centres[i + 1] - low)


def _bilinear(values: tuple[float, ...], at: int, stride: int, outer: float, inner: float) -> float:
    a = values[at]
    a += inner * (values[at + 1] - a)
    b = values[at + stride]
    b += inner * (values[at + stride + 1] - b)
    return a + outer * (b - a)


def continuous_score(model: LatencyModel) -> Callable[[TurnFeatures], Score]:
    """The score without cells: what the table approximates (tests and diagnosis)."""

    def score(f: TurnFeatures) -> Score:
        saved = model.saved_ms(f.uncached_d, f.uncached_p, f.prompt_tokens, f.d_batch)
        return Score(saved + f.backlog_ms, model.cost(f.uncached_d, f.prompt_tokens, f.d_batch), "model")

    return score
