"""trimtab slo: what the commands print, and how they end."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from slos.files import load_slo_file
from slos.openslo import PREFIX
from slos.presets import PRESETS
from slos.schema import json_schema
from trimtab.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"
FULL = EXAMPLES / "slo-full.yaml"
THIN = "version: 1\nslos:\n  - {name: ttft, objective: p99(ttft) <= 500ms}\n"


def run(*arguments: object):
    return CliRunner().invoke(app, ["slo", *map(str, arguments)])


@pytest.fixture
def thin(tmp_path: Path) -> Path:
    path = tmp_path / "slo.yaml"
    path.write_text(THIN, encoding="utf-8")
    return path


def test_advice_is_told_and_fails_only_where_it_is_asked_to(thin: Path):
    plain, strict = run("check", thin), run("check", thin, "--strict")
    assert (plain.exit_code, strict.exit_code) == (0, 2)
    assert f"{thin}:2:1 W501 slos: no runbook" in plain.stderr
    assert plain.stdout == f"{thin}: ttft: 99 % of turns: TTFT at most 500 ms\n"


def test_the_expected_traffic_may_be_given(thin: Path):
    assert "W303" in run("check", thin, "--rps", "0.1").stderr
    assert "W30" not in run("check", thin, "--rps", "10").stderr


def test_problems_come_as_json(thin: Path):
    thin.write_text(THIN.replace("500ms", "500"), encoding="utf-8")
    result = run("check", thin, "--format", "json")
    assert result.exit_code == 2
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem == {
        "source": str(thin),
        "line": 3,
        "column": 18,
        "code": "E203",
        "message": 'slos[0].objective: "500" has no unit',
        "fix": "write 500ms or 0.5s",
        "advice": False,
        "about": "not a duration, or no unit",
    }


def test_problems_come_as_annotations_of_a_pull_request(thin: Path):
    assert run("check", thin, "--format", "github").stdout.startswith(
        f"::warning file={thin},line=2,col=1,title=W501::"
    )
    thin.write_text(THIN.replace("99", "100%"), encoding="utf-8")
    (line,) = run("check", thin, "--format", "github").stdout.splitlines()
    assert line.startswith(f"::error file={thin},line=3,col=18,title=E204::") and "100%25" in line


def test_a_file_that_is_not_there_is_a_problem_like_any_other(tmp_path: Path):
    for command in ("check", "explain", "export", "import"):
        result = run(command, tmp_path / "none.yaml")
        assert result.exit_code == 2 and "E110" in result.stderr, result.output


def test_explain_says_in_words_and_numbers_what_is_counted_and_allowed():
    told = run("explain", FULL, "--rps", "2").stdout
    for words in (
        "the first token came within 500 ms",
        "its client left after waiting as long as promised",
        "turns that carry x-slo-ttft-ms",
        "the x-slo-ttft-ms that the request carried",
        "1,728 of 172,800 a day, 48,384 in 28d",
        "6.7 hours (403 minutes) of nothing but bad turns",
        "80.6 of 8,064",
        "13.44 times too fast over 1h and 5m: 13.4 % bad turns in both",
        "at 2 a second from 16 bad ones of 600 on",
        "https://runbooks.example/slo/good-turns",
    ):
        assert words in told, words
    assert "Give --rps" in run("explain", EXAMPLES / "slo.yaml").stdout


def test_explain_names_a_rule_that_cannot_fire(thin: Path):
    thin.write_text(THIN.replace("p99", "p90"), encoding="utf-8")
    assert "never, for with all bad it is 10 times" in run("explain", thin).stdout
    assert "never, for a slice holds too few" in run("explain", thin, "--rps", "0.01").stdout


def test_every_preset_is_listed():
    told = run("presets").stdout
    assert all(name in told for name in PRESETS)
    assert len(told.splitlines()) == len(PRESETS)


def test_the_schema_is_printed():
    assert json.loads(run("schema").stdout) == json_schema()


def test_there_and_back(tmp_path: Path):
    there, back = tmp_path / "openslo.yaml", tmp_path / "slo.yaml"
    assert run("export", FULL, "--to", there).exit_code == 0
    assert PREFIX in there.read_text("utf-8")
    assert run("import", there, "--to", back).exit_code == 0
    assert load_slo_file(back).slos == load_slo_file(FULL).slos


def test_what_cannot_be_imported_writes_nothing(tmp_path: Path):
    there, back = tmp_path / "openslo.yaml", tmp_path / "slo.yaml"
    documents = list(yaml.safe_load_all(run("export", FULL).stdout))
    documents[1]["spec"]["timeWindow"] = [{"duration": "1M", "isRolling": True}]
    there.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    result = run("import", there, "--to", back)
    assert result.exit_code == 2 and "E601" in result.stderr and not back.exists()


@pytest.fixture
def admin():
    """An admin address that knows one SLO with turns and one without."""
    rows = {"slos": [{"slo": "ttft", "valid": 5}, {"slo": "idle", "valid": 0}]}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(rows).encode() if self.path == "/api/v1/slos" else b"[]"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_running_installation_is_asked_whether_the_slos_count_anything(thin: Path, admin: str):
    assert run("check", thin, "--live", admin).exit_code == 0
    more = "  - {name: idle, objective: success >= 99%}\n  - {name: new, objective: success >= 99%}\n"
    thin.write_text(THIN + more, encoding="utf-8")
    result = run("check", thin, "--live", admin)
    assert result.exit_code == 2
    told = [line for line in result.stderr.splitlines() if "E401" in line]
    assert len(told) == 2 and "idle has counted no turn" in told[0] and "new is not declared" in told[1]
    assert "--live" in run("check", thin, "--live", "http://127.0.0.1:1").stderr
    assert "--live" in run("check", thin, "--live", "file:///etc/passwd").stderr


def test_a_trimtab_yaml_that_holds_slos_is_checked_as_a_whole(tmp_path: Path):
    path = tmp_path / "trimtab.yaml"
    models = "models: {m: {decode: [http://127.0.0.1:1]}}\n"
    path.write_text(THIN + models, encoding="utf-8")
    result = run("check", path, "--rps", "0.1")
    assert result.exit_code == 0
    assert "W303" in result.stderr and "W501" in result.stderr and "ttft: 99 %" in result.stdout
    path.write_text(THIN.replace("500ms", "500, match: {tenant: t}") + models + "listne: {}\n", encoding="utf-8")
    result = run("check", path)
    assert [line.split(" ")[1] for line in result.stderr.splitlines()] == ["E203", "E101"]
    path.write_text(THIN.replace("500ms", "500ms, match: {tenant: t}") + models, encoding="utf-8")
    assert "E211" in run("check", path).stderr
