"""Phase 1 of Algorithm 1 from measured points: the paper's table of one P:D ratio, and what its trade-offs look like.

x = 0 is `2P_2D`, x = 1 `2P_2pD`: the same nodes, whose D nodes transfer or append. A cell with a gain in TTFT and a
loss in TPOT has a critical price Δttft / Δtpot: local pays while w_tpot / w_ttft is below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from router.artefact import Arm, MeasuredCell
from router.paper_table import SUCCESS_FLOOR, PaperTable, context_class

from .measured import Result, TurnStats
from .workloads import FIRST_TURNS


def measured_cells(results: Sequence[Result], topology: str) -> list[MeasuredCell]:
    """The cells that both ends of `topology` (e.g. 2P_2D) were measured at. Raises ValueError if there are none."""
    other = topology.replace("D", "pD")
    arms = {(r.point.config, r.point.first, r.point.turn2, r.point.qps): _arm(r) for r in results}
    cells = [
        MeasuredCell(context_class(sum(FIRST_TURNS[first])), turn2, qps, arm, arms[other, first, turn2, qps])
        for (config, first, turn2, qps), arm in arms.items()
        if config == topology and (other, first, turn2, qps) in arms
    ]
    if not cells:
        raise ValueError(f"no points of both {topology} and {other}")
    return cells


def paper_table(cells: Sequence[MeasuredCell]) -> PaperTable:
    """What Algorithm 1 looks up."""
    return PaperTable({cell.key: cell.relative() for cell in cells})


@dataclass(frozen=True, slots=True)
class TradeOffs:
    """How many cells are of which kind, and the quartiles of the critical price where there is one."""

    cells: int
    failed: int
    """An end answered too few turns to say anything about speed."""
    local_dominates: int
    transfer_dominates: int
    trade_off: int
    local_at_one: int
    """Of the trade-offs, local at weights (1, 1)."""
    price_quartiles: tuple[float, float, float] | None


def trade_offs(cells: Sequence[MeasuredCell]) -> TradeOffs:
    """Sort cells by who wins what."""
    failed = local = transfer = 0
    prices: list[float] = []
    for cell in cells:
        found = cell.relative()
        gain, loss = found.delta_ttft, found.delta_tpot
        if min(found.success_x0, found.success_x1) < SUCCESS_FLOOR or gain is None or loss is None:
            failed += 1
        elif gain > 0 and loss <= 0:
            local += 1
        elif gain <= 0 and loss >= 0:
            transfer += 1
        elif gain > 0:
            prices.append(gain / loss)
        else:  # slower to start and faster to speak: no such cell was met, and no price makes local pay
            transfer += 1
    quartiles = quantiles(prices, n=4) if len(prices) > 1 else None
    return TradeOffs(
        len(cells),
        failed,
        local,
        transfer,
        len(prices),
        sum(price > 1 for price in prices),
        None if quartiles is None else (quartiles[0], quartiles[1], quartiles[2]),
    )


def _arm(result: Result) -> Arm:
    later: TurnStats = result.later
    some = later.n > 0
    return Arm(
        n=later.n,
        success=result.success,
        ttft_mean_ms=later.ttft_mean_ms if some else None,
        ttft_p99_ms=later.ttft_p99_ms if some else None,
        tpot_mean_ms=later.tpot_mean_ms if some else None,
        tpot_p99_ms=later.tpot_p99_ms if some else None,
        tokens_per_s=result.tokens_per_s,
    )
