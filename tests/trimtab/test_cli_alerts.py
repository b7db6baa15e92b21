"""The commands that ask a running control process: alerts, and the status of SLOs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.controller_shell.alerting_site import AlertingSite, served
from trimtab.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def flat(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture
def site(tmp_path: Path) -> AlertingSite:
    made = AlertingSite(tmp_path)
    made.run(10)
    return made


def test_slo_status_answers_what_operators_ask_first(site: AlertingSite):
    site.run(5, bad=5)
    with served(site) as url:
        told = flat(run("slo", "status", "--url", url))
        document = json.loads(run("slo", "status", "tpot", "--json", "--url", url).output)
    for part in (
        "later-ttft: 99 % of later turns: TTFT at most 2 s",
        "verdict breach: 2",
        "P99 500 ms (500 ms to 500 ms), n = ",
        " of 28 days seen, 100 % of the slices measured)",
        "burn 5m 2",
        "exhausted in ",
        "alert firing since ",
        "controller: ",
        "weights version 1 at ",
    ):
        assert part in told, part
    assert [row["slo"] for row in document["slos"]] == ["tpot"]
    assert document["controller"]["weights_changed_by"] == "start" and document["source"] == "emulated"


def test_an_slo_that_is_not_declared_is_named_with_those_that_are(site: AlertingSite):
    with served(site) as url:
        result = run("slo", "status", "strange", "--url", url)
    assert result.exit_code == 2 and "'strange'" in result.output and "later-ttft, tpot" in flat(result)


def test_alerts_list_silence_unsilence_and_test(site: AlertingSite):
    with served(site) as url:
        assert run("alerts", "list", "--url", url).exit_code == 0
        site.run(5, bad=5)
        listed = run("alerts", "list", "--url", url)
        assert listed.exit_code == 1 and "page firing since" in flat(listed) and "told: log" in flat(listed)
        more = ("--for", "2h", "--comment", "deploy", "--by", "ann", "--url", url)
        made = run("alerts", "silence", "slo=later-*", "severity=page", *more)
        assert made.exit_code == 0, made.output
        site.run(0.5, bad=5)
        silenced = run("alerts", "list", "--url", url)
        assert silenced.exit_code == 0 and "slo=later-*, severity=page (ann: deploy)" in flat(silenced)
        document = json.loads(run("alerts", "list", "--json", "--url", url).output)
        silence_id = document["silences"][0]["id"]
        assert "is over" in run("alerts", "unsilence", silence_id, "--url", url).output
        assert run("alerts", "unsilence", silence_id, "--url", url).exit_code == 2
        assert "log: delivered" in run("alerts", "test", "--url", url).output


@pytest.mark.parametrize("length", ["2", "h", "-1h", "2 h", "1e3h", ""])
def test_a_silence_of_no_length_says_what_to_write(length: str):
    result = run("alerts", "silence", "slo=x", f"--for={length}", "--comment", "x", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2 and "e.g. 2h" in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("command", [("slo", "status"), ("alerts", "list"), ("alerts", "test")])
def test_nobody_at_the_address_is_one_sentence(command: tuple[str, ...]):
    result = run(*command, "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2 and "does not answer" in flat(result) and "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)


def test_a_token_is_asked_for_and_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRIMTAB_TOKEN", "t0ken")
    with served(AlertingSite(tmp_path, token="t0ken")) as url:
        without = run("alerts", "test", "--url", url)
        assert without.exit_code == 2 and "--token-env" in without.output
        assert run("alerts", "test", "--url", url, "--token-env", "TRIMTAB_TOKEN").exit_code == 0
        missing = run("alerts", "test", "--url", url, "--token-env", "TRIMTAB_OTHER")
    assert missing.exit_code == 2 and "TRIMTAB_OTHER is not set" in flat(missing) and "t0ken" not in missing.output
