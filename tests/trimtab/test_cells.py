"""Cells by name: what people can type, what it means, and what they are told when they mistype."""

import pytest

from router.paper_table import QPS_LEVELS, TURN2_TYPES
from trimtab.cells import CELLS, PRESETS, CellNameError, Window, cells_named, estimated_s, words_for


def names(*typed: str, levels: tuple[float, ...] = ()) -> list[str]:
    return [cell.name for cell in cells_named(typed, levels)]


def test_every_cell_has_a_name_of_its_own_that_finds_it():
    assert len({cell.name for cell in CELLS}) == len(CELLS) == 270
    for cell in CELLS:
        assert cells_named([cell.name]) == [cell]


def test_a_name_is_context_turn_and_rate():
    (cell,) = cells_named(["small/tiny@0.5"])
    assert (cell.workload.first, cell.workload.second, cell.qps) == ((128, 128), (16, 32), 0.5)
    assert cell.workload.tokens == 304


@pytest.mark.parametrize(
    ("typed", "count"),
    [("large/*@1", len(TURN2_TYPES)), ("*/tiny@2", 3), ("small/tiny", len(QPS_LEVELS)), ("small/*_paste@1+2", 6)],
)
def test_patterns_stand_for_many_cells(typed, count):
    assert len(names(typed)) == count


def test_cells_come_once_and_in_the_grids_order_however_they_are_typed():
    assert names("large/tiny@2", "small/tiny@4", "small/tiny@2+4") == ["small/tiny@2", "small/tiny@4", "large/tiny@2"]


def test_rates_narrow_what_was_named():
    assert names("small/tiny", "small/mid_bal@4", levels=(1, 4)) == ["small/tiny@1", "small/tiny@4", "small/mid_bal@4"]


def test_rates_that_leave_nothing_are_an_error():
    with pytest.raises(CellNameError, match=r"none of the cells named has a rate of 1"):
        names("small/tiny@2", levels=(1,))


def test_a_rate_that_is_none_of_the_grid_is_refused_with_those_that_are():
    with pytest.raises(CellNameError, match=r"3 is no rate of the grid: 0\.5, 1, 2, 4, 6, 8, 10, 12, 16, 20"):
        names("small/tiny", levels=(3,))


@pytest.mark.parametrize("typed", ["small/tiny@3", "medium/tiny", "small", "small/tny@2", "quik"])
def test_an_unknown_name_is_refused_with_what_exists(typed):
    with pytest.raises(CellNameError) as caught:
        names(typed)
    message = str(caught.value)
    assert repr(typed) in message
    for known in ("small/tiny@2", "quick", "huge_paste", "0.5"):
        assert known in message


def test_a_typing_error_gets_a_suggestion():
    with pytest.raises(CellNameError, match=r"did you mean small/mid_bal@4\?"):
        names("small/mid_bl@4")


def test_the_presets_are_the_papers_grid_all_of_it_and_a_few_cells():
    assert len(names("paper")) == 180 and len(names("all")) == 270
    assert len(names("quick")) == len(PRESETS["quick"].patterns) == 5


def test_the_quick_preset_takes_a_few_minutes_and_the_grid_hours():
    quick_s = sum(estimated_s(cell, PRESETS["quick"].window, 0.008) for cell in cells_named(["quick"]))
    assert 120 < quick_s < 240
    assert sum(estimated_s(cell, PRESETS["all"].window) for cell in CELLS) > 8 * 3600


def test_an_arm_is_expected_to_end_at_its_limit_at_the_latest():
    (slow,) = cells_named(["small/tiny@0.5"])
    assert estimated_s(slow, Window(300, 120.0), tpot_s=0.0) == 240.0


@pytest.mark.parametrize(("seconds", "words"), [(12.4, "12 s"), (89, "89 s"), (200, "3 min"), (9000, "2.5 h")])
def test_durations_are_said_in_a_fitting_unit(seconds, words):
    assert words_for(seconds) == words
