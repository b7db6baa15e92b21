"""Phase 1 from measured points: the paper's table of the hardware, and what its trade-offs look like."""

from __future__ import annotations

import pytest

from router.paper_table import CellKey, ContextClass
from trimtab.measured import Point, Result, TurnStats, read_points
from trimtab.offline_table import measured_cells, paper_table, trade_offs


def result(config: str, turn2: str, ttft_ms: float, tpot_ms: float, failed: int = 0) -> Result:
    stats = TurnStats(50, ttft_ms, ttft_ms, ttft_ms, tpot_ms, tpot_ms, 1000.0, 1000.0)
    return Result(Point(config, "large", turn2, 4.0), 100, failed, 10.0, 100.0, stats, stats)


def test_cells_are_sorted_by_who_wins_what():
    points = [
        *(result("2P_2D", turn2, 100, 10) for turn2 in ("tiny", "short_gen", "mid_bal", "big_paste", "huge_paste")),
        result("2P_2pD", "tiny", 50, 9),
        result("2P_2pD", "short_gen", 110, 11),
        result("2P_2pD", "mid_bal", 50, 12),  # gains 50 %, loses 20 %
        result("2P_2pD", "big_paste", 90, 15),  # gains 10 %, loses 50 %
        result("2P_2pD", "huge_paste", 50, 10, failed=40),
        result("2P_2pD", "small_bal", 50, 10),  # has no other end
    ]
    found = trade_offs(measured_cells(points, "2P_2D"))
    assert (found.cells, found.failed, found.local_dominates, found.transfer_dominates) == (5, 1, 1, 1)
    assert (found.trade_off, found.local_at_one) == (2, 1)
    assert found.price_quartiles is not None and found.price_quartiles[1] == pytest.approx((2.5 + 0.2) / 2)


def test_points_of_one_end_alone_are_refused():
    with pytest.raises(ValueError, match="no points of both 2P_2D and 2P_2pD"):
        measured_cells([result("2P_2D", "tiny", 100, 10)], "2P_2D")


@pytest.mark.parametrize("topology", ["1P_3D", "2P_2D", "3P_1D"])
def test_the_measured_table_is_whole_and_at_even_weights_nearly_always_local(measured_dir, topology):
    cells = measured_cells(read_points(measured_dir), topology)
    assert len(cells) == len(paper_table(cells).cells) == 180
    found = trade_offs(cells)
    assert found.trade_off - found.local_at_one <= 1 and found.transfer_dominates <= 2
    # Relative gains in TTFT are an order of magnitude above relative losses in TPOT: the weights would have to be too.
    assert found.price_quartiles is not None and found.price_quartiles[0] > 5


def test_a_cell_holds_the_papers_relative_means(measured_dir):
    points = read_points(measured_dir)
    cell = paper_table(measured_cells(points, "2P_2D")).cells[CellKey(ContextClass.LARGE, "mid_bal", 4.0)]
    ends = [p for p in points if p.point in (Point(c, "large", "mid_bal", 4.0) for c in ("2P_2D", "2P_2pD"))]
    x0, x1 = sorted(ends, key=lambda p: p.point.config)
    assert cell.delta_ttft == pytest.approx(1 - x1.later.ttft_mean_ms / x0.later.ttft_mean_ms)
    assert cell.delta_tpot == pytest.approx(x1.later.tpot_mean_ms / x0.later.tpot_mean_ms - 1)
