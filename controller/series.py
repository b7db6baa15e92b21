"""What the page draws: the ticks of the last minutes, as columns per model, thinned to what a picture can show.

A bucket holds the worst percentile of its ticks, for a peak is what one looks for, the last price, and the sum of its
turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from .config import ControlConfig
from .status import iso, number
from .store import Store
from .stored import RETENTION_S, TickRow

MAX_MINUTES = RETENTION_S / 60
MAX_POINTS = 720


def series(
    store: Store, now_s: float, config: ControlConfig, minutes: float, model: str | None = None
) -> dict[str, object]:
    """Columns by model; `now_s` is wall time. Blocks on the store."""
    step_s = max(config.tick_s, minutes * 60 / MAX_POINTS)
    rows = store.series(now_s - minutes * 60, model)
    by_model: dict[str, list[TickRow]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    return {
        "source": config.source,
        "now_s": round(now_s, 3),
        "now": iso(now_s),
        "minutes": minutes,
        "step_s": step_s,
        "models": {name: columns(found, step_s, config.tick_s) for name, found in sorted(by_model.items())},
    }


def columns(rows: Iterable[TickRow], step_s: float, tick_s: float) -> dict[str, list[object]]:
    """One list per quantity, oldest first."""
    buckets: list[list[TickRow]] = []
    last = -inf
    for row in rows:
        # Where no thinning is needed each tick is its own bucket: ticks are not quite regular.
        at = row.at_s if step_s <= tick_s else row.at_s // step_s
        if at == last:
            buckets[-1].append(row)
        else:
            buckets.append([row])
        last = at
    return {
        "t_s": [round(found[-1].at_s, 3) for found in buckets],
        "ttft_s": [number(_worst(row.ttft_s for row in found)) for found in buckets],
        "tpot_s": [number(_worst(row.tpot_s for row in found)) for found in buckets],
        "ttft_slo_s": [found[-1].ttft_slo_s for found in buckets],
        "tpot_slo_s": [found[-1].tpot_slo_s for found in buckets],
        "price": [number(found[-1].price) for found in buckets],
        "qps": [number(sum(row.qps for row in found) / len(found)) for found in buckets],
        "turns": [sum(row.turns for row in found) for found in buckets],
        "later_turns": [sum(row.later_turns for row in found) for found in buckets],
        "local_turns": [sum(row.local_turns for row in found) for found in buckets],
        "waiting": [max(row.waiting for row in found) for found in buckets],
        "action": [found[-1].action for found in buckets],
        "state": [found[-1].state for found in buckets],
        "infeasible": [any(row.relief is not None for row in found) for found in buckets],
    }


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
