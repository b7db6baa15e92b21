"""Points of the paper's grid: the protocol, what a result holds, and how it is compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.fleet import PAPER_TOPOLOGIES
from trimtab.agreement import agreement, by_config, comparable, line, ttft_change
from trimtab.grid import ARRIVALS_S, AS_MEASURED, arrivals, mean, run_point, run_points
from trimtab.measured import MeasuredError, Point, Result, TurnStats, read_points, read_real
from trimtab.simulate import Client

BUSY = Point("2P_2pD", "large", "mid_bal", 12.0)


def test_arrivals_are_at_most_so_many_and_within_their_time():
    times = [arrivals(qps, ARRIVALS_S, np.random.default_rng(seed)) for qps in (0.5, 4.0) for seed in range(50)]
    assert all(t[0] > 0 and t == sorted(t) and t[-1] < 30 for t in times)
    assert max(len(t) for t in times) == 40 and all(len(t) >= 1 for t in times)


def test_both_ends_of_a_configuration_meet_the_same_arrivals():
    ends = [run_point(replace(BUSY, config=config, qps=2.0)) for config in ("2P_2D", "2P_2pD")]
    assert ends[0].total == ends[1].total
    assert ends[0].later.ttft_p50_ms > 1.5 * ends[1].later.ttft_p50_ms


def test_the_client_of_the_measurements_makes_first_turns_wait_and_second_ones_not():
    capped = run_point(BUSY)
    free = run_point(BUSY, replace(AS_MEASURED, client=Client()))
    assert capped.first.ttft_p99_ms > 5000 > 1000 > free.first.ttft_p99_ms
    assert capped.later.ttft_p99_ms < 1000
    assert capped.failed == free.failed == 0 and capped.total == free.total


def test_what_outlasts_a_run_has_failed():
    cut = run_point(BUSY, replace(AS_MEASURED, limit_s=12.0))
    assert 0 < cut.failed < cut.total and cut.success == 1 - cut.failed / cut.total


def test_the_papers_timeouts_count_as_failures():
    # C.5: 10 s are as good as 30 s for x = 1, but not where the decode node is one and the client knows no limit.
    point = Point("3P_1D", "large", "very_long_gen", 8.0)
    failed = [run_point(point, replace(AS_MEASURED, client=Client(None, s))).failed for s in (10.0, 30.0)]
    assert failed[0] > failed[1] == 0


@pytest.mark.parametrize("config", PAPER_TOPOLOGIES)
def test_each_configuration_gives_a_result(config):
    result = run_point(Point(config, "small", "tiny", 4.0))
    assert result.failed == 0 and result.first.n == result.later.n > 10
    assert 5 < result.later.tpot_mean_ms < 15 and 20 < result.later.ttft_p50_ms < 200


def test_the_same_seed_gives_the_same_result_on_any_number_of_processes():
    points = [Point(config, "small", "mid_bal", 2.0) for config in ("4R", "1P_3D", "1P_3pD")]
    assert run_points(points, seeds=(3,)) == run_points(points, seeds=(3,), jobs=2)
    assert run_points(points, seeds=(3,)) != run_points(points, seeds=(4,))


def test_a_mean_over_seeds_is_the_mean_of_each_statistic():
    one, two = (run_point(replace(BUSY, qps=1.0), seed=seed) for seed in (0, 1))
    both = mean([one, two])
    assert both.later.ttft_p50_ms == pytest.approx((one.later.ttft_p50_ms + two.later.ttft_p50_ms) / 2)
    assert both.later.n == one.later.n + two.later.n and both.total == one.total + two.total


def test_an_unknown_workload_is_refused():
    with pytest.raises(ValueError, match="no workload 'huge/tiny': small/tiny"):
        run_point(Point("4R", "huge", "tiny", 1.0))


# -- comparing ---------------------------------------------------------------------------------------------------------


def result(config: str, qps: float, ttft_ms: float, tpot_ms: float = 10.0, failed: int = 0) -> Result:
    stats = TurnStats(50, ttft_ms, ttft_ms, ttft_ms, tpot_ms, tpot_ms, 1000.0, 1000.0)
    return Result(Point(config, "small", "tiny", qps), 100, failed, 10.0, 100.0, stats, stats)


def test_agreement_is_the_mean_error_the_median_ratio_and_the_rank():
    found = agreement([10.0, 20.0, 40.0], [11.0, 20.0, 30.0])
    assert found.mape == pytest.approx((0.1 + 0.0 + 0.25) / 3)
    assert found.ratio == 1.0 and found.spearman == 1.0
    with pytest.raises(ValueError, match="cannot be compared"):
        agreement([], [])


def test_points_that_failed_say_nothing_about_speed():
    assert comparable([result("4R", 1, 50, failed=2), kept := result("4R", 1, 50, failed=1)]) == [kept]


def test_a_line_a_configuration():
    pairs = [(result("4R", 1, 50), result("4R", 1, 60, 11)), (result("2P_2D", 1, 100), result("2P_2D", 1, 100))]
    lines = by_config(pairs, ("2P_2D", "4R", "1P_3D"))
    assert [found.name for found in lines] == ["2P_2D", "4R"]
    assert lines[1].ttft.mape == pytest.approx(0.2) and lines[1].tpot.mape == pytest.approx(0.1)
    assert lines[1].tpot.n == 2 and line("all", pairs).ttft.n == 2


def test_table_1_is_the_mean_change_by_load():
    results = [result("2P_2D", q, 100) for q in (0.5, 2, 4, 12)] + [result("2P_2pD", q, 40) for q in (0.5, 4, 12)]
    results.append(result("2P_2pD", 2, 60))
    assert ttft_change(results, "2P_2D", "2P_2pD") == pytest.approx(
        {"low (0.5-2)": -0.5, "medium (4-8)": -0.6, "high (12-20)": -0.6}
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def test_measured_files_are_read_whole(measured_dir):
    points = read_points(measured_dir)
    assert len(points) == 3060 and {p.point.config for p in points} == set(PAPER_TOPOLOGIES)
    assert len(comparable(points)) == 2933
    runs = read_real(measured_dir)
    assert len(runs) == 256 and sum(run.routed for run in runs) == 120


def test_a_folder_without_the_files_is_refused_by_name(tmp_path):
    with pytest.raises(MeasuredError, match=r"no points_3060\.csv in "):
        read_points(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("config,t1,t2\n4R,small,tiny\n", r"points_3060\.csv:2: there is no column qps"),
        ("config,t1,t2,qps\n4R,small,tiny,fast\n", r"points_3060\.csv:2: qps is no number: 'fast'"),
        (
            "config,t1,t2,qps\n4R,tall,tiny,1\n",
            r"points_3060\.csv:2: t1/t2 is none of the paper's workloads, got 'tall/tiny'",
        ),
    ],
)
def test_a_bad_file_is_refused_with_line_and_column(tmp_path, text, why):
    (tmp_path / "points_3060.csv").write_text(text, encoding="utf-8")
    with pytest.raises(MeasuredError, match=why):
        read_points(tmp_path)
