"""`trimtab reproduce`: what it writes, and how it fails."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from trimtab.cli import app

runner = CliRunner()


def test_chapters_by_name_are_run_and_written(tmp_path):
    target = tmp_path / "r.json"
    done = runner.invoke(
        app, ["reproduce", "--quick", "--jobs", "1", "--only", "equation-2,figure-2", "--json", str(target)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(target.read_text(encoding="utf-8"))
    assert {t["chapter"] for t in found["targets"]} == {"equation-2", "figure-2"}
    assert found["provenance"]["quick"] is True and found["provenance"]["source"] == "emulated"
    assert "seed 0" in done.output


def test_an_unknown_name_is_answered_with_the_nearest():
    done = runner.invoke(app, ["reproduce", "--only", "figure-55"])
    assert done.exit_code == 2 and "figure-5" in done.output


def test_a_folder_without_points_is_named(tmp_path):
    done = runner.invoke(app, ["reproduce", "--only", "fit", "--measured", str(tmp_path)])
    assert done.exit_code == 2 and "points_3060.csv" in done.output


def test_a_report_that_cannot_be_written_is_known_before_anything_runs(tmp_path):
    done = runner.invoke(app, ["reproduce", "--html", str(tmp_path / "none" / "r.html")])
    assert done.exit_code == 2 and "does not exist" in done.output


def test_the_raw_runs_stand_beside_the_model_where_they_were_published(measured_dir, tmp_path):
    target = tmp_path / "r.json"
    arguments = ["reproduce", "--quick", "--only", "figure-2", "--measured", str(measured_dir), "--json", str(target)]
    assert runner.invoke(app, arguments).exit_code == 0
    found = {t["name"]: t for t in json.loads(target.read_text(encoding="utf-8"))["targets"]}
    assert found["figure-2/raw/full"]["against"] == "measured"
    assert found["figure-2/raw/full"]["measured"] > 1 > found["figure-2/raw/append"]["measured"]
