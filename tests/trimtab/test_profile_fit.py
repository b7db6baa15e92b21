"""`trimtab fit`: what was put in comes out, and the errors are those of rows held out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from emulator.profile_file import load
from emulator.profiles import LLAMA_3_1_8B_H100, LLAMA_3_1_8B_H100_AS_MEASURED
from trimtab.cli import app
from trimtab.grid import Conditions, run_points
from trimtab.measured import Point, Result
from trimtab.profile_fit import CONSTANTS, ProfileFitError, fit_profile, rows_of_artefact, rows_of_points
from trimtab.shipped import shipped

BASE = LLAMA_3_1_8B_H100_AS_MEASURED
OTHER = replace(
    BASE,
    name="other",
    linear_ms=tuple((tokens, 1.6 * ms) for tokens, ms in BASE.linear_ms),
    front_ms=25.0,
    link=replace(BASE.link, fixed_ms=60.0),
)


@pytest.fixture(scope="module")
def points() -> list[Result]:
    """Runs of an engine that is not the base."""
    grid = [
        Point(config, first, turn2, qps)
        for config in ("4R", "2P_2D", "2P_2pD")
        for first in ("small", "large")
        for turn2 in ("tiny", "mid_bal", "big_paste", "huge_paste")
        for qps in (1.0, 2.0, 6.0, 12.0)
    ]
    return run_points(grid, Conditions(OTHER))


def test_the_fit_comes_near_the_engine_that_was_measured(points):
    found = fit_profile(rows_of_points(points, BASE), BASE, "mine", "simulated points")
    for kind, error in found.errors.items():
        assert error.rows > 5 and error.fitted < 0.1 and error.fitted < error.base / 2, kind
    assert tuple(found.moved) == CONSTANTS
    assert 1.3 < found.moved["linear_scale"][1] < 1.9
    assert found.profile.name == "mine" and "simulated points" in found.profile.provenance
    assert found.profile.kv_capacity_tokens == BASE.kv_capacity_tokens


def test_without_enough_rows_it_says_what_to_measure(points):
    low = [p for p in points if p.point.qps <= 1]
    with pytest.raises(ProfileFitError, match="steps to fit to, and 12 are needed: measure at more load"):
        fit_profile(rows_of_points(low, BASE), BASE, "mine", "")
    with pytest.raises(ProfileFitError, match="0 turns to fit to"):
        fit_profile([], BASE, "mine", "")


def test_hybrids_say_nothing_that_can_be_told_apart(points):
    moved = [replace(p, point=replace(p.point, config="1R_1P_2D")) for p in points]
    assert rows_of_points(moved, BASE) == []


def test_a_table_of_calibrate_will_do():
    artefact = next(a for a in shipped() if a.origin.model == "llama-3.1-8b")
    rows = rows_of_artefact(artefact, LLAMA_3_1_8B_H100)
    far = replace(LLAMA_3_1_8B_H100, front_ms=30.0, linear_ms=tuple((n, 2 * ms) for n, ms in BASE.linear_ms))
    found = fit_profile(rows, far, "mine", "the shipped table")
    assert all(error.fitted < error.base / 2 for error in found.errors.values())
    assert 0.8 < found.profile.linear_ms[0][1] / LLAMA_3_1_8B_H100.linear_ms[0][1] < 1.3


def test_the_command_writes_a_profile_that_others_can_load(measured_dir, tmp_path):
    target = tmp_path / "mine.yaml"
    result = CliRunner().invoke(app, ["fit", str(measured_dir), "--out", str(target), "--name", "mine", "--check", "0"])
    assert result.exit_code == 0, result.output
    profile = load(target.read_text(encoding="utf-8"), "mine.yaml")
    assert profile.name == "mine" and "points in" in profile.provenance
    assert "held out" in result.output and "Trade-offs" in result.output


def test_data_that_is_not_there_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["fit", str(tmp_path), "--out", str(tmp_path / "x")])
    assert result.exit_code == 2 and "no points_3060.csv" in result.stderr
