"""The configurations in docs/how-to/prometheus.md and alerts.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from slos.files import load_slo_file
from slos.rules import rule_file

from .programs import Programs, alertmanager, run, until
from .receiver import Receiver

CHECKOUT = Path(__file__).parents[2]
TEXT = (CHECKOUT / "docs" / "how-to" / "prometheus.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The YAML that begins with that name."""
    found = re.search(rf"```yaml\n(# {re.escape(name)}\n.*?)```", TEXT, re.DOTALL)
    assert found, name
    return found[1]


def test_prometheus_takes_its_configuration(programs: Programs, tmp_path: Path):
    rules = rule_file(load_slo_file(CHECKOUT / "examples" / "slo.yaml")).text()
    (tmp_path / "trimtab-rules.yaml").write_text(rules, encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(block("prometheus.yml"), encoding="utf-8")
    done = run(programs.promtool, "check", "config", str(tmp_path / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanager_takes_the_recipes_for_chat_pager_and_mail(programs: Programs, tmp_path: Path):
    text = (CHECKOUT / "docs" / "how-to" / "alerts.md").read_text(encoding="utf-8")
    recipes = [found for found in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if found.startswith("route:")]
    assert recipes
    for number, recipe in enumerate(recipes):
        config = tmp_path / f"{number}.yml"
        config.write_text(recipe, encoding="utf-8")
        done = run(programs.amtool, "check-config", str(config))
        assert done.returncode == 0, done.stdout + done.stderr


def alert(name: str, family: str, severity: str, slo: str = "ttft") -> dict[str, Any]:
    return {"labels": {"alertname": name, "family": family, "severity": severity, "slo": slo, "service": "chat"}}


@pytest.fixture
def routing(receiver: Receiver) -> dict[str, Any]:
    config = yaml.safe_load(block("alertmanager.yml"))
    for each in config["receivers"]:
        each["webhook_configs"] = [{"url": receiver.url}]
    config["route"]["group_wait"] = "1s"
    return dict(config)


def test_one_incident_is_one_page(programs: Programs, tmp_path: Path, receiver: Receiver, routing: dict[str, Any]):
    with alertmanager(programs, tmp_path, routing) as manager:
        incident = [
            alert("SLOBurn", "burn", "page"),
            alert("SLOBurn", "burn", "ticket"),
            alert("SLOBreach", "breach", "page"),
            alert("SLOBreach", "breach", "ticket", "other"),
        ]
        assert manager.post(incident)[0] == 200
        until(lambda: len(receiver.posts) >= 2, 20.0, "a page and a ticket")
        told = {
            (post["receiver"], a["labels"]["alertname"], a["labels"]["slo"])
            for post in receiver.posts
            for a in post["alerts"]
        }
        assert told == {("pager", "SLOBurn", "ttft"), ("tickets", "SLOBreach", "other")}
        assert len(manager.alerts("--inhibited")) == 2


def test_the_windows_of_one_slo_are_one_page(
    programs: Programs, tmp_path: Path, receiver: Receiver, routing: dict[str, Any]
):
    with alertmanager(programs, tmp_path, routing) as manager:
        pages = [alert("SLOBurn", "burn", "page") for _ in range(2)]
        for page, window in zip(pages, ("1h", "6h"), strict=True):
            page["labels"]["long_window"] = window
        assert manager.post(pages)[0] == 200
        until(lambda: receiver.posts, 20.0, "a page")
        assert [len(post["alerts"]) for post in receiver.posts] == [2]
