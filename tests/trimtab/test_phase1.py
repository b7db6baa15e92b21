"""Phase 1 in virtual time: the grid, one cheap cell, one overloaded cell, and the rows that the fit reads."""

from dataclasses import replace

import pytest

from emulator.profiles import LLAMA_3_1_8B_H100
from router.paper_table import QPS_LEVELS, SUCCESS_FLOOR, TURN2_TYPES, ContextClass
from trimtab.cells import PHASE1
from trimtab.phase1 import FIT_QPS, ROWS_PER_ARM, measure
from trimtab.rows import CellResult
from trimtab.workloads import Workload, grid

SMALL = Workload((128, 128), "mid_paste")


def measured(workload: Workload = SMALL, qps: float = 1.0, seed: int = 0) -> CellResult:
    return measure(LLAMA_3_1_8B_H100, "2P_2D", workload, qps, seed)


@pytest.fixture(scope="module")
def calm() -> CellResult:
    return measured()


@pytest.fixture(scope="module")
def overloaded() -> CellResult:
    slow_prefill = replace(LLAMA_3_1_8B_H100, linear_ms=((1, 6.4), (128, 7.2), (1024, 500.0)))
    return measure(slow_prefill, "1P_1D", Workload((128, 128), "huge_paste"), 6, 0)


def test_the_grid_is_the_papers_180_cells_and_90_with_a_long_context():
    cells = list(grid())
    assert len(cells) == len(set(cells)) == 270
    paper = [(w.first, w.turn2, qps) for w, qps in cells if w.first != (8192, 512)]
    assert paper == [
        (first, turn2, qps) for first in ((128, 128), (1024, 1024)) for turn2 in TURN2_TYPES for qps in QPS_LEVELS
    ]


def test_each_first_turn_reaches_a_context_class_of_its_own():
    contexts = {workload.first: workload.context for workload, _ in grid()}
    assert list(contexts.values()) == [ContextClass.SMALL, ContextClass.LARGE, ContextClass.HUGE]


def test_a_cell_measured_twice_is_the_same_and_another_seed_is_another(calm):
    assert measured() == calm
    assert measured(seed=1) != calm


def test_both_arms_of_a_calm_cell_answer_everything(calm):
    cell = calm.cell
    assert (cell.context, cell.turn2, cell.qps) == (ContextClass.SMALL, "mid_paste", 1.0)
    for arm in (cell.x0, cell.x1):
        assert arm.success == 1.0 and 80 < arm.n <= PHASE1.later_turns + 5
        assert arm.ttft_mean_ms and arm.ttft_p99_ms and arm.tpot_mean_ms and arm.tpot_p99_ms
        assert arm.ttft_mean_ms <= arm.ttft_p99_ms and arm.tpot_mean_ms <= arm.tpot_p99_ms


def test_both_arms_meet_the_same_arrivals(calm):
    assert abs(calm.cell.x0.n - calm.cell.x1.n) <= 2


def test_going_local_saves_ttft_while_nobody_waits(calm):
    relative = calm.cell.relative()
    assert relative.delta_ttft is not None and relative.delta_ttft > 0.2
    assert relative.success_x0 == relative.success_x1 == 1.0


def test_an_arm_stops_after_three_hundred_answered_later_turns():
    busy = measured(qps=12.0).cell
    assert PHASE1.later_turns <= busy.x1.n < PHASE1.later_turns + 40


def test_turns_without_a_token_within_the_time_out_have_failed(overloaded):
    for arm in (overloaded.cell.x0, overloaded.cell.x1):
        assert arm.success < SUCCESS_FLOOR
        assert arm.ttft_p99_ms is None or arm.ttft_p99_ms <= 30_000.0


def test_the_fit_gets_rows_of_both_routes_that_met_no_backlog(calm):
    rows = calm.ttft_rows
    assert 0 < len(rows) <= 2 * ROWS_PER_ARM and {row.local for row in rows} == {True, False}
    for row in rows:
        assert row.ttft_ms > 0 and 1 <= row.uncached_d <= row.prompt and 1 <= row.uncached_p <= row.prompt


def test_a_turn_that_waited_for_others_is_no_row():
    slow_prefill = replace(LLAMA_3_1_8B_H100, linear_ms=((1, 6.4), (128, 7.2), (1024, 100.0)))
    rows = measure(slow_prefill, "1P_1D", Workload((128, 128), "huge_paste"), 4, 0).ttft_rows
    for size in (128, 1152):
        alike = [row.ttft_ms for row in rows if not row.local and row.uncached_p == size]
        assert len(alike) > 3 and max(alike) < 1.2 * min(alike)


def test_above_the_fits_levels_there_are_no_ttft_rows(overloaded):
    assert overloaded.cell.qps > FIT_QPS and overloaded.ttft_rows == ()


def test_a_run_with_a_steady_batch_leaves_a_step_row_per_arm(calm):
    transferred, local = calm.step_rows
    assert transferred.append_hz == 0.0 and local.append_hz > 0.1
    for row in (transferred, local):
        assert 1.0 < row.batch < 5.0 and 128 < row.context < 10_000 and 7.0 < row.tpot_ms < 10.0


def test_a_run_with_too_few_turns_leaves_no_step_row():
    few = measure(LLAMA_3_1_8B_H100, "2P_2D", Workload((8192, 512), "very_long_gen"), 0.5, 0)
    turns = few.cell.x0.n + few.cell.x1.n
    assert all(row.batch >= 1.0 for row in few.step_rows) and turns > 0
