"""`trimtab config check`: all problems at once, each at its place, and nothing secret in what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab.config_check import check, effective, without_secrets

GOOD = """\
version: 1
state_dir: /tmp/x
models:
  llama-3.1-8b:
    prefill: [http://127.0.0.1:1]
    decode: [http://127.0.0.1:2]
    engine_key_env: T_ENGINE
slos:
  - {name: later-ttft, objective: p99(ttft) <= 2s}
control: {webhook: "https://u:hunter2@hooks.example/T0/secret-part?token=hunter3", webhook_secret_env: T_HOOK}
router: {api_keys_env: T_KEYS}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "trimtab.yaml"
    path.write_text(text)
    return path


def test_a_good_file_is_printed_in_its_own_shape_without_secrets(tmp_path, monkeypatch):
    for name in ("T_ENGINE", "T_KEYS"):
        monkeypatch.setenv(name, "hunter2-of-" + name)
    monkeypatch.delenv("T_HOOK", raising=False)
    result = CliRunner().invoke(app, ["config", "check", str(written(tmp_path, GOOD))])
    assert result.exit_code == 0, result.output
    assert "hunter" not in result.output and "secret-part" not in result.output
    shown = yaml.safe_load(result.stdout)
    assert shown["models"]["llama-3.1-8b"]["engine_key_env"] == "T_ENGINE (set)"
    assert shown["control"]["webhook_secret_env"] == "T_HOOK (not set)"
    assert shown["control"]["webhook"] == "https://…@hooks.example/…?…"
    assert shown["slos"] == ["later-ttft: 0.99 ttft"]
    assert set(yaml.safe_load(GOOD)) <= set(shown)


def test_what_is_shown_has_every_setting(tmp_path):
    """A setting that is added has to be shown, too."""
    import dataclasses

    from trimtab.settings import Settings

    settings, problems = check(written(tmp_path, GOOD))
    assert settings is not None and not problems
    shown = effective(settings, {})
    inside = [shown[part] for part in ("listen", "admin", "control", "router")] + [shown["models"]["llama-3.1-8b"]]  # type: ignore[index]
    count = sum(len(part) for part in inside) + len(shown) - 5  # type: ignore[arg-type, misc]
    aside = {"further", "model", "slo_inline"}  # the keys of `models`, and where the SLOs stand
    assert count == len({field.name for field in dataclasses.fields(Settings)} - aside) + 1  # + version


BAD = """\
version: 1
listen: {host: 0.0.0.0, port: 9400}
admin: {host: 10.1.2.3}
models:
  llama-3.1-8b:
    prefill: [http://127.0.0.1:1]
    decode: [ftp://user:hunter2@127.0.0.1:2]
    lease: 1s
control:
  price: 0
router: {forward_headers: [host]}
"""


def test_all_problems_are_told_with_line_and_column(tmp_path):
    path = written(tmp_path, BAD)
    result = CliRunner().invoke(app, ["config", "check", str(path)])
    assert result.exit_code == 2
    places = [line.removeprefix(f"{path}:").split(" ")[0] for line in result.output.splitlines() if line]
    assert places == ["3:9", "7:14", "8:5", "10:3", "11:10"], result.output
    assert "hunter2" not in result.output


def test_a_file_that_cannot_be_read_by_itself_is_told_with_all_its_problems(tmp_path):
    result = CliRunner().invoke(
        app, ["config", "check", str(written(tmp_path, "version: 3\nlisten: {port: x}\nx: 1\n"))]
    )
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 3


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8100", "http://127.0.0.1:8100"),
        ("http://u:p@h:1/x", "http://…@h:1/x"),
        ("http://h/?k=v#f", "http://h/?…#…"),
        ("ipc:///run/x", "ipc:///run/x"),
        ("", ""),
        ("http://[", "…"),
    ],
)
def test_what_may_be_a_password_is_not_shown(url, shown):
    assert without_secrets(url) == shown


def test_what_is_shown_is_plain_values(tmp_path):
    settings, _ = check(written(tmp_path, GOOD))
    assert settings is not None
    json.dumps(effective(settings, {}))
