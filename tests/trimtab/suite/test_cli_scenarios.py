"""`trimtab scenarios`: what it lists, runs and writes, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from trimtab import cli_scenarios
from trimtab.cli import app
from trimtab.suite import policies
from trimtab.suite.catalogue import CATALOGUE, Entry, Sided
from trimtab.suite.split import shipped_split

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed: pip install 'trimtab[plots]'"
)


def scenarios(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["scenarios", *arguments])


@pytest.fixture
def short(monkeypatch) -> Entry:
    """Three phases of ten seconds, one seed and a small cast, whatever tuning has frozen."""
    entry = replace(CATALOGUE["p_failure"], scenario=CATALOGUE["p_failure"].scenario.lasting(30), sided=Sided.TWO)
    monkeypatch.setattr(cli_scenarios, "entries_named", lambda names: (entry,))
    monkeypatch.setattr(cli_scenarios, "shipped_split", lambda: replace(shipped_split(), frozen={}))
    monkeypatch.setattr(policies, "PRICE_GRID", ("price_0.2", "price_0.8"))
    monkeypatch.setattr(policies, "THRESHOLD_GRID", ("threshold_1024", "threshold_2048"))
    monkeypatch.setattr(policies, "PAPER_GRID", ())
    return entry


def test_the_list_has_every_scenario_with_its_use():
    result = scenarios("list")
    assert result.exit_code == 0 and all(name in result.output for name in CATALOGUE)
    assert "held out" in result.output and "tuning" in result.output


@needs_matplotlib
def test_a_run_prints_its_cost_and_writes_json_and_a_page_with_a_picture(tmp_path, short):
    result = scenarios(
        "run", "p_failure", "--seeds", "1", "--jobs", "1", "--json", str(tmp_path / "r.json"), "--report", str(tmp_path)
    )
    assert result.exit_code == 0, result.output
    assert "18 runs, about 0 minutes of one core" in result.output and "musts:" in result.output
    scenario = json.loads((tmp_path / "r.json").read_text())["scenarios"]["p_failure"]
    assert scenario["attainment"]["controller"] > 0 and scenario["oracle"]["phases"]
    page = (tmp_path / "README.md").read_text()
    assert "## p_failure" in page and "source: emulated" in page
    assert (tmp_path / "p_failure.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "load_stop"], "unknown scenario 'load_stop'; did you mean load_step?"),
        (["check", "load_stop"], "unknown scenario 'load_stop'; did you mean load_step?"),
        (["run", "h1", "--backend", "moon"], "--backend moon: write one of loky"),
        (["run", "h1", "--report", "nowhere"], "--report nowhere: name a folder that exists"),
        (["run", "h1", "--json", "nowhere/r.json"], "the folder nowhere does not exist"),
    ],
)
def test_wrong_options_end_with_one_message(arguments, words):
    result = scenarios(*arguments)
    assert result.exit_code == 2 and words in result.output
    assert "Traceback" not in result.output


def test_a_run_that_is_stopped_keeps_the_scenarios_that_are_done(tmp_path, short, monkeypatch):
    target = tmp_path / "r.json"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_scenarios, "play_entry", stop)
    result = scenarios("run", "p_failure", "--seeds", "1", "--json", str(target))
    assert result.exit_code == 130 and "stopped: 0 of 1 scenarios were done; nothing was written" in result.output
    assert not target.exists()
