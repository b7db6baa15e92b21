"""Table 2: who wins a point, in which row, and how sure that is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from trimtab.measured import Point, Result, TurnStats, read_points
from trimtab.reproduce.lab import CONFIGS
from trimtab.reproduce.winners import METRICS, MODES, different, intervals, mode, shares, winners


def result(config: str, ttft_ms: float = 50.0, tpot_ms: float = 8.0, tps: float = 100.0, **point) -> Result:
    at = Point(config, point.get("first", "small"), point.get("turn2", "tiny"), point.get("qps", 1.0))
    turn = TurnStats(10, ttft_ms, ttft_ms, ttft_ms, tpot_ms, tpot_ms, 1.0, 1.0)
    return Result(at, 20, point.get("failed", 0), 10.0, tps, turn, turn)


def test_the_seventeen_configurations_fall_into_the_rows_of_table_4():
    assert len(set(CONFIGS)) == 17
    counts = Counter(mode(config) for config in CONFIGS)
    assert counts == {"4R": 1, "x = 0": 3, "x = 1": 3, "0 < x < 1": 3, "hybrids": 7}


def test_the_lowest_ttft_and_the_highest_throughput_win():
    some = [result("4R", ttft_ms=30, tps=90), result("2P_2D", ttft_ms=90, tps=120)]
    assert winners(some, METRICS["TTFT"]) == {("small/tiny", 1.0): "4R"}
    assert winners(some, METRICS["throughput"]) == {("small/tiny", 1.0): "2P_2D"}


def test_who_answers_too_little_wins_nothing():
    some = [result("4R", ttft_ms=30, failed=2), result("2P_2D", ttft_ms=90)]
    assert set(winners(some, METRICS["TTFT"]).values()) == {"2P_2D"}


def test_points_differ_where_different_configurations_win():
    same = [result("4R", 30, 7, qps=1.0), result("2P_2D", 90, 8, qps=1.0)]
    other = [result("4R", 30, 9, qps=2.0), result("2P_2D", 90, 8, qps=2.0)]
    assert different(same) == 0
    assert different([*same, *other]) == 0.5


def test_tpot_weighs_turns_by_how_many_were_answered():
    one = result("4R", tpot_ms=8.0)
    more = replace(one, later=replace(one.later, n=30, tpot_mean_ms=12.0))
    assert METRICS["TPOT"](more) == pytest.approx((10 * 8 + 30 * 12) / 40)


def test_intervals_hold_the_share_and_are_points_where_all_workloads_agree():
    won = {(f"small/{n}", qps): "4R" if n < 6 else "2P_2D" for n in range(9) for qps in (1.0, 2.0)}
    found, share = intervals(won, seed=0), shares(won)
    assert found["4R"][0] < share["4R"] < found["4R"][1]
    assert found["x = 1"] == (0.0, 0.0)
    assert intervals(won, seed=0) == found
    assert sum(share.values()) == pytest.approx(1) and set(share) == set(MODES)


def test_the_published_points_give_the_papers_92_percent(measured_dir):
    assert different(read_points(measured_dir)) == pytest.approx(0.922, abs=0.001)
