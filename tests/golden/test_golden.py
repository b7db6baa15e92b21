"""What a scenario and `trimtab slo check` print, word for word.

`make golden` rewrites the files; review reads the diff.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from textwrap import dedent

import pytest
from rich.console import Console
from typer.testing import CliRunner

from emulator.workload import AGENT, INGEST, RAG, Phase
from trimtab.cli import app
from trimtab.demo import as_json, run_all
from trimtab.runs import Outcome
from trimtab.scenarios import H1, Scenario, promises
from trimtab.tabulate import result_table

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = Scenario(
    "short",
    "Short: agents, one prefill node out, then an ingest tenant",
    H1.profile,
    H1.topology,
    (
        Phase("agents 0.8/s", 30.0, ((AGENT, 0.8),)),
        Phase("agents 0.6/s, one P out", 30.0, ((AGENT, 0.6),), out=("P1",)),
        Phase("retrieval chat 0.4/s + ingest 1/s", 30.0, ((RAG, 0.4), (INGEST, 1.0))),
    ),
    promises(0.9, 0.026),  # tight, so that the price has to move within half a minute
    settle_s=10.0,
)
BAD = """\
    version: 2
    service: Chat Service
    slo:
    slos:
      - name: later-ttft
        objective: p99(ttft) <= 2
        match: {turn: ">2", modle: "llama-*"}
      - name: later-ttft
        objektive: p99(tpot) <= 38ms
      - name: itl
        signal: inter_token
        percent: 101
        max: 38 milliseconds
      - name: whole
        objective: p99(ttft) <= 2s
        match: {streaming: false}
      - name: answers
        objective: success >= 99.9%
        percent: 99
      - name: forever
        objective: p99(e2e) <= 0s
    """


BAD_KEYS = """\
    version: 1
    service: chat
    labels: {team: chat, slo: gold, a-b: c, team: twice}
    traffic: {rps: 1e3}
    defaults:
      slice: 7m
      budget: {over: 12h, method: turns, percent: 0.99}
      min_samples: yes
    slos:
      - name: good-turns
        all_of: ["ttft <= 500", "p99(tpot) <= 40ms", "tpot <= asked", "ttft < 1s", fast]
        percent: 97
      - name: asked
        objective: p99(ttft) <= 500ms
        match: {asked: true, class: "a b", tenant: [], streaming: on}
      - preset: mlperf/llama-70b
        objective: p99(ttft) <= 12:30:00
      - name: thin
        objective: p90(e2e) <= 30s
        budget: {method: requests, percent: 99, slice: 45s}
    alerts:
      runbook: wiki/slo
      breach: {severity: call, confidence: 99, for: 60}
      burn:
        - {severity: page, spend: 2%, long: 1h, short: 5m}
        - {severity: page, spend: 5, long: 6h, short: 6h}
        - {severity: ticket, spend: 10%, long: 3d}
      min_bad_events: 0
      no_data: {after: 15, severity: mail}
    """
ADVICE = """\
    version: 1
    traffic: {rps: 0.5}
    slos:
      - name: chat-ttft
        objective: p99(ttft) <= 450ms
      - name: chat-ttft-median
        objective: p50(ttft) <= 2s
      - name: answers
        objective: success >= 99.9%
    alerts:
      burn:
        - {severity: ticket, spend: 10%, long: 3d, short: 6h}
    """


COMMAND, COMMIT = "trimtab demo --headless --scenario short --seeds 1", "commit golden"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_all(SHORT, (0,), 1, lambda done, total: None)


@pytest.mark.simulation
def test_the_json_of_a_short_scenario(outcome, golden):
    golden("short-scenario.json", as_json(outcome, COMMAND, COMMIT))


@pytest.mark.simulation
def test_the_table_of_a_short_scenario(outcome, golden):
    console = Console(file=StringIO(), width=150, color_system=None)
    console.print(result_table(outcome, COMMAND, COMMIT))
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    golden("short-scenario.txt", "\n".join(lines) + "\n")


def test_the_messages_of_slo_check_on_a_bad_file(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slo.yaml").write_text(dedent(BAD), encoding="utf-8")
    result = CliRunner().invoke(app, ["slo", "check", "slo.yaml"])
    assert result.exit_code == 2 and result.stdout == ""
    golden("slo-check.txt", result.stderr)


def test_the_messages_of_slo_check_on_a_file_whose_every_key_is_wrong(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slo.yaml").write_text(dedent(BAD_KEYS), encoding="utf-8")
    result = CliRunner().invoke(app, ["slo", "check", "slo.yaml"])
    assert result.exit_code == 2 and result.stdout == ""
    golden("slo-check-keys.txt", result.stderr)


def test_the_advice_of_slo_check(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slo.yaml").write_text(dedent(ADVICE), encoding="utf-8")
    result = CliRunner().invoke(app, ["slo", "check", "slo.yaml"])
    assert result.exit_code == 0
    golden("slo-check-advice.txt", result.stderr)


def test_an_explanation_of_every_kind_of_slo(golden):
    result = CliRunner().invoke(app, ["slo", "explain", str(EXAMPLES / "slo-full.yaml")])
    assert result.exit_code == 0
    golden("slo-explain.txt", result.stdout)


def test_an_export_to_openslo(golden):
    result = CliRunner().invoke(app, ["slo", "export", str(EXAMPLES / "slo-full.yaml")])
    assert result.exit_code == 0
    golden("slo-openslo.yaml", result.stdout)
