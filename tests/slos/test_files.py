"""Reading a file of SLOs from disk."""

from pathlib import Path

import pytest

from slos.document import MAX_BYTES
from slos.files import load_slo_file
from slos.spec import SpecError


def refused(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        load_slo_file(path)
    (problem,) = caught.value.problems
    return str(problem).removeprefix(f"{path}:")


def test_the_example_file_loads_under_its_own_path():
    path = Path(__file__).parents[2] / "examples" / "slo.yaml"
    assert load_slo_file(path).source == str(path)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path):
    path = tmp_path / "slo.yaml"
    path.write_bytes(b"\xef\xbb\xbfversion: 1\r\nslos:\r\n  - name: a\r\n    objective: p99(ttft) <= 2s\r\n")
    assert load_slo_file(path).slos[0].threshold_s == 2.0


def test_a_byte_that_is_not_utf8_is_shown_at_its_place(tmp_path: Path):
    path = tmp_path / "slo.yaml"
    path.write_bytes(b"version: 1\nservice: caf\xe9\n")
    assert refused(path).startswith("2:13 E110 byte 0xe9 is not UTF-8")


def test_a_file_that_is_missing_or_a_folder_is_a_problem_like_any_other(tmp_path: Path):
    assert "E110 cannot be read: No such file" in refused(tmp_path / "none.yaml")
    assert "E110 cannot be read: Is a directory" in refused(tmp_path)
    assert "E110 cannot be read" in refused(tmp_path / "a\0b")


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path):
    path = tmp_path / "slo.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES * 50)
    assert "E109" in refused(path)
