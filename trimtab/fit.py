"""From Phase 1's measurements to the ten constants of `router.latency.LatencyModel`.

Bounded robust least squares on relative errors (scipy): TTFTs of turns that met no backlog fix prompt,
hand-over and link; mean step times against batch, context and the appends that ran beside them fix the decode
side and the stall. A third of the rows of each kind is held out and gives the reported error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from router.latency import LatencyModel

from .rows import StepRow, TtftRow

MIN_ROWS = 30
MIN_STEPS = 5
Row = TypeVar("Row")
_NAMES = tuple(constant.name for constant in fields(LatencyModel))
# Start, upper bound and scale of each constant, in LatencyModel's order. The start is a mid-size model on a current
# GPU; the bounds span three orders of magnitude, so that small CPU engines and large multi-GPU ones fit the same way.
_START = np.array([20.0, 0.01, 10.0, 4.0, 0.04, 1e-6, 0.05, 4e-5, 20.0, 2e-3])
_UPPER = np.array([2e3, 1.0, 2e3, 2e3, 20.0, 1e-2, 50.0, 0.1, 5e3, 5.0])


class FitError(ValueError):
    """Too little data to fit; the message says of what kind and what to measure."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants and how far they are from the held-out rows (median relative error, 0..1)."""

    model: LatencyModel
    errors: Mapping[str, float]


def fit(ttft: Sequence[TtftRow], steps: Sequence[StepRow]) -> Fit:
    """Fit the model. Raises FitError if either side or the steps have too few rows."""
    local = [row for row in ttft if row.local]
    remote = [row for row in ttft if not row.local]
    for name, rows in (("local", local), ("transferred", remote)):
        if len(rows) < MIN_ROWS:
            raise FitError(
                f"{len(rows)} {name} turns without a backlog; {MIN_ROWS} are needed: measure at lower QPS (4 and less "
                "count), or longer"
            )
    if len(steps) < MIN_STEPS:
        raise FitError(
            f"{len(steps)} runs with a steady batch; {MIN_STEPS} are needed: measure at higher QPS, longer, or more "
            "cells (each gives two, if 40 turns are answered)"
        )
    train_ttft, test_ttft = _split(ttft)
    train_steps, test_steps = _split(steps)

    def residuals(constants: NDArray[np.float64]) -> NDArray[np.float64]:
        model = LatencyModel(*(float(value) for value in constants))
        wanted = [_ttft_ms(model, row) / row.ttft_ms - 1 for row in train_ttft]
        weight = (len(train_ttft) / len(train_steps)) ** 0.5  # the few step rows weigh as much as the many turns
        wanted += [weight * (_tpot_ms(model, row) / row.tpot_ms - 1) for row in train_steps]
        return np.array(wanted)

    result = least_squares(
        residuals,
        _START,
        bounds=(np.zeros_like(_START), _UPPER),
        x_scale=_START,
        loss="soft_l1",
        f_scale=0.05,
    )
    model = LatencyModel(**{name: float(f"{value:.6g}") for name, value in zip(_NAMES, result.x, strict=True)})
    errors = {
        "ttft_local": _median_error([(_ttft_ms(model, row), row.ttft_ms) for row in test_ttft if row.local]),
        "ttft_transferred": _median_error([(_ttft_ms(model, row), row.ttft_ms) for row in test_ttft if not row.local]),
        "tpot": _median_error([(_tpot_ms(model, row), row.tpot_ms) for row in test_steps]),
        "ttft_rows": float(len(ttft)),
        "step_rows": float(len(steps)),
    }
    return Fit(model, errors)


def _ttft_ms(model: LatencyModel, row: TtftRow) -> float:
    if row.local:
        return model.local_ms(row.uncached_d, row.prompt, row.batch)
    return model.remote_ms(row.uncached_p, row.uncached_d, row.prompt, row.batch)


def _tpot_ms(model: LatencyModel, row: StepRow) -> float:
    return model.tpot_ms(row.batch, row.context, row.append_hz, row.uncached_d, row.prompt)


def _split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    return [row for at, row in enumerate(rows) if at % 3], [row for at, row in enumerate(rows) if at % 3 == 0]


def _median_error(pairs: Sequence[tuple[float, float]]) -> float:
    return round(median(abs(predicted / observed - 1) for predicted, observed in pairs), 4) if pairs else float("nan")
