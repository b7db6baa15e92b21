"""`trimtab simulate`: what it writes, what it refuses, and how it ends when it is stopped."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.trimtab.test_scenario_file import HEAD, PHASES
from trimtab.cli import app

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed: pip install 'trimtab[plots]'"
)


@pytest.fixture
def scenario(tmp_path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "name: short\ntitle: 'Short: agents'\n" + PHASES + "policies: [controller, x1]\nseeds: 1\n")
    return path


def simulate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments), "--jobs", "1"])


def test_it_prints_a_row_a_policy_and_writes_json(tmp_path, scenario):
    target = tmp_path / "r.json"
    result = simulate(scenario, "--json", target)
    assert result.exit_code == 0, result.output
    assert "Short: agents" in result.output and "controller" in result.output and "source: emulated" in result.output
    document = json.loads(target.read_text())
    assert list(document["points"][0]["policies"]) == ["controller", "x1"]


def test_policies_seeds_and_sweeps_of_the_command_line_go_before_the_files(tmp_path, scenario):
    target = tmp_path / "r.json"
    result = simulate(scenario, "--policies", "x0,price_0.7", "--seeds", "2", "--sweep", "load=0.5,1", "--json", target)
    assert result.exit_code == 0, result.output
    points = json.loads(target.read_text())["points"]
    assert [point["at"] for point in points] == [{"load": "0.5"}, {"load": "1"}]
    assert all(list(point["policies"]) == ["x0", "price_0.7"] and point["seeds"] == [0, 1] for point in points)


@needs_matplotlib
def test_it_draws_a_scenario_a_sweep_or_a_folder_of_both(tmp_path, scenario):
    assert simulate(scenario, "--plot", tmp_path / "one.svg").exit_code == 0
    assert "controller" in (tmp_path / "one.svg").read_text()
    folder = tmp_path / "pictures"
    folder.mkdir()
    assert simulate(scenario, "--policies", "x1", "--sweep", "load=0.5,1", "--plot", folder).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "short-load-0.5.png",
        "short-load-1.png",
        "short-sweep.png",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policies", "nobody"], "--policies: unknown policy 'nobody'"),
        (["--backend", "moon"], "--backend moon: write one of loky"),
        (["--plot", "a.pdf"], "--plot a.pdf: name a .png or .svg, or a folder that exists"),
        (["--json", "nowhere/r.json"], "the folder nowhere does not exist"),
        (["--sweep", "lod=1"], 'E101 "lod": unknown key (with lod=1); did you mean load?'),
    ],
)
def test_wrong_options_end_with_one_message(scenario, arguments, words):
    result = simulate(scenario, *arguments)
    assert result.exit_code == 2 and words in result.output
    assert "Traceback" not in result.output


def test_problems_of_a_file_are_listed_by_place(scenario):
    scenario.write_text(scenario.read_text().replace("0.9/s", "0.9").replace("seeds: 1", "seeds: -1"))
    result = simulate(scenario)
    assert result.exit_code == 2
    assert f"{scenario}:11:44 E303 phases[0].traffic[0].rate" in result.output and "E302 seeds" in result.output


def test_ctrl_c_ends_it_cleanly_and_says_what_was_done(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(HEAD + PHASES.replace("30s", "24h") + "policies: [controller, x1]\nseeds: 2\n")
    target = tmp_path / "r.json"
    command = [sys.executable, "-m", "trimtab", "simulate", str(path), "--jobs", "2", "--json", str(target)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=Path.cwd()
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        for _ in range(600):  # its first children are its workers
            if process.poll() is not None or children.read_text().split():
                break
            time.sleep(0.1)
        for _ in range(12):  # it is deaf while they start, so an impatient user presses again
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
            try:
                _, error = process.communicate(timeout=10)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, error
    assert "stopped: 0 of 4 runs were done; nothing was written" in error
    assert "Traceback" not in error and not target.exists()
