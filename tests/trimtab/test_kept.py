"""The state file of a live calibration: what was finished is there again, and nothing else is taken for it."""

import json

import pytest

from emulator.profiles import LLAMA_3_1_8B_H100
from trimtab.cells import Cell, Window
from trimtab.measure.kept import Kept, KeptError
from trimtab.phase1 import measure
from trimtab.rows import CellResult
from trimtab.workloads import Workload

D0 = {"url": "http://127.0.0.1:1", "version": "0.32.0"}
FLEET = {"model": "m", "engines": {"D0": D0}, "seed": 0}
TINY, BALANCED = Cell(Workload((128, 128), "tiny"), 2.0), Cell(Workload((128, 128), "mid_bal"), 4.0)


@pytest.fixture(scope="module")
def results() -> dict[Cell, CellResult]:
    return {
        cell: measure(LLAMA_3_1_8B_H100, "1P_1D", cell.workload, cell.qps, 0, Window(30, 20.0))
        for cell in (TINY, BALANCED)
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cells.jsonl"


def written(path, results) -> None:
    kept = Kept.open(path, FLEET)
    for cell, result in results.items():
        kept.add(cell, result)
    kept.close()


def test_finished_cells_are_there_again_to_the_last_digit(path, results):
    written(path, results)
    kept = Kept.open(path, FLEET)
    assert kept.cells == {cell.name: result for cell, result in results.items()}
    kept.close()


def test_a_cell_is_in_the_file_as_soon_as_it_is_added(path, results):
    kept = Kept.open(path, FLEET)
    kept.add(TINY, results[TINY])
    assert [json.loads(line).get("cell") for line in path.read_text().splitlines()] == [None, "small/tiny@2"]
    kept.close()


@pytest.mark.parametrize("torn", [b'{"cell":"small/mid_', b"{", b'{"cell":"x"}'])
def test_a_line_that_was_cut_short_is_dropped_and_the_next_cell_takes_its_place(path, results, torn):
    written(path, {TINY: results[TINY]})
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    kept = Kept.open(path, FLEET)
    assert list(kept.cells) == [TINY.name] and path.read_bytes() == whole
    kept.add(BALANCED, results[BALANCED])
    kept.close()
    kept = Kept.open(path, FLEET)
    assert list(kept.cells) == [TINY.name, BALANCED.name]
    kept.close()


def test_a_file_cut_short_in_its_first_line_begins_anew(path):
    path.write_bytes(b'{"calibration":1,"mod')
    kept = Kept.open(path, FLEET)
    kept.close()
    assert json.loads(path.read_text())["model"] == "m"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "other"}, r'model was "m", is "other"'),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"engines": {"D0": {**D0, "version": "0.33.0"}}}, r'version was "0\.32\.0", is "0\.33\.0"'),
        ({"engines": {"D0": D0, "D1": D0}}, r"engines\.D1 was absent"),
        ({"engines": {}}, r"engines\.D0 was .*, is absent"),
    ],
)
def test_another_fleet_or_grid_is_refused_with_what_differs(path, results, change, said):
    written(path, results)
    before = path.read_bytes()
    with pytest.raises(KeptError, match=said) as caught:
        Kept.open(path, {**FLEET, **change})
    assert "--state" in str(caught.value) and path.read_bytes() == before


@pytest.mark.parametrize("text", ['{"other": 1}\n', "[1]\n", '"x"\n'])
def test_a_file_of_something_else_is_refused_and_left_alone(path, text):
    path.write_text(text)
    with pytest.raises(KeptError, match="is no state of a calibration"):
        Kept.open(path, FLEET)
    assert path.read_text() == text


@pytest.mark.parametrize("line", ["no json", '{"cell": "small/tiny@2"}', "[]"])
def test_a_damaged_line_is_refused_with_its_number(path, results, line):
    written(path, {TINY: results[TINY]})
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(KeptError, match=rf"{path}:3 is no line of a calibration"):
        Kept.open(path, FLEET)


def test_two_calibrations_do_not_share_a_file(path):
    kept = Kept.open(path, FLEET)
    with pytest.raises(KeptError, match="is in use by another calibration"):
        Kept.open(path, FLEET)
    kept.close()
    Kept.open(path, FLEET).close()


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(KeptError, match="name another file with --state"):
        Kept.open(tmp_path / "missing" / "cells.jsonl", FLEET)
