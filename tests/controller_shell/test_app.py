"""The HTTP face: shapes, refusals, and who may change something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from controller.app import MAX_REPORT_BYTES, create_app
from controller.config import with_artefacts
from controller.loop import ControlLoop
from controller.metrics import ControlCollector
from controller.scheduler import Scheduler
from controller.store import FILE
from dashboards.page import mount
from router.pin import read_pin
from router.policy import TableKey
from router.wire import WaitingTurn, publication_from_wire, report_to_json
from slos.counts import Count
from tests.controller.records import failed
from tests.controller_shell.reports import Clock, drive, loop_in, report, turns
from tests.router import samples

JSON = {"content-type": "application/json"}


class Site:
    """An app around a loop, and a client of it."""

    def __init__(self, tmp_path: Path, **changes: Any) -> None:
        self.loop: ControlLoop
        self.clock: Clock
        self.loop, self.clock = loop_in(tmp_path, **changes)
        registry = CollectorRegistry()
        collector = ControlCollector(self.loop, Scheduler(), "1.2.3")
        registry.register(collector)
        app = create_app(self.loop, collector, registry, version="1.2.3", poll_s=0.05)
        mount(app)
        self.client = TestClient(app, base_url="http://127.0.0.1:9400")

    def get(self, path: str) -> Any:
        response = self.client.get(path)
        assert response.status_code == 200, response.text
        return json.loads(response.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with made.client:
        yield made


def test_a_report_is_taken_once_and_acknowledged(site: Site) -> None:
    body = report_to_json(report(3, records=turns(4)))
    for _ in range(2):
        response = site.client.post("/internal/v1/turns", content=body)
        assert response.status_code == 200 and response.json() == {"accepted_seq": 3}
    assert site.loop.intake.tallies["m"].turns == 4


def test_a_malformed_report_is_refused_with_the_reason_and_counted(site: Site) -> None:
    response = site.client.post("/internal/v1/turns", content=b'{"router": 1}')
    assert response.status_code == 400
    assert "$.router" in response.json()["error"]["message"]
    assert 'trimtab_control_reports_total{result="refused"} 1.0' in site.client.get("/metrics").text


def test_a_report_may_have_8_mib_and_no_more(site: Site) -> None:
    padding = " " * (MAX_REPORT_BYTES - len(report_to_json(report(1))))
    fits = report_to_json(report(1)) + padding.encode()
    assert site.client.post("/internal/v1/turns", content=fits).status_code == 200
    response = site.client.post("/internal/v1/turns", content=fits + b" ")
    assert response.status_code == 413 and "error" in response.json()


def test_the_policy_comes_at_once_if_newer_and_204_if_not_in_time(site: Site) -> None:
    wire = site.get("/internal/v1/policy")
    assert wire["version"] == 1
    assert publication_from_wire(wire, lambda digest, text: samples.tables(digest=digest)) == site.loop.publication
    response = site.client.get("/internal/v1/policy?after=1")
    assert response.status_code == 204 and response.content == b""
    assert site.client.get("/internal/v1/policy?after=many").status_code == 400


def test_tables_travel_only_to_routers_that_lack_them(tmp_path: Path) -> None:
    folder = files("trimtab") / "tables"
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in folder.iterdir() if path.name.endswith(".json")]
    tables, documents = with_artefacts(texts)
    site = Site(tmp_path, tables=tables, documents=documents)
    assert site.get("/internal/v1/policy")["tables"] == documents
    one = next(iter(documents))
    assert one not in site.get(f"/internal/v1/policy?have={one},unknown")["tables"]
    assert site.get(f"/internal/v1/policy?have={','.join(documents)}")["tables"] == {}
    policy = site.get("/api/v1/policy")
    assert "tables" not in policy and len(policy["arms"]["main"]["tables"]) == len(documents)


def test_status_says_what_is_known(site: Site) -> None:
    waiting = (WaitingTurn("m", 2, True, 0.1),)
    drive(site.loop, site.clock, 2, lambda seq: report(seq, records=turns(50), waiting=waiting))
    status = site.get("/api/v1/status")
    assert status["source"] == "emulated" and status["state"] == "active" and status["health"] == "ok"
    assert status["headline"] == "Both SLOs hold; price 0.4."
    model = status["models"]["m"]
    assert model["price"] == 0.4 and model["local_share"] == 1.0 and model["turns"] == 100 and model["waiting"] == 1
    assert model["binding"]["ttft"] == {
        "slo": "later-ttft",
        "signal": "ttft",
        "percentile": 0.99,
        "threshold_s": 2.0,
        "value_s": 0.5,
        "severity": 0.25,
    }
    [router] = status["routers"]
    assert router["router"] == "router-0" and router["age_s"] == 5.0 and not router["silent"]
    assert [node["id"] for node in status["nodes"]] == ["P0", "D0"]
    assert status["publication"]["version"] == 1 and len(status["publication"]["sha256"]) == 64
    assert status["warnings"] == []


def test_status_is_json_even_where_a_percentile_is_infinite(site: Site) -> None:
    drive(site.loop, site.clock, 1, lambda seq: report(seq, records=(failed(),) * 50))
    status = site.get("/api/v1/status")
    assert status["models"]["m"]["binding"]["tpot"]["value_s"] == "inf"
    assert "never answered" in status["headline"]
    assert site.get("/api/v1/series?minutes=60")["models"]["m"]["tpot_s"] == ["inf"]


def test_before_any_data_every_page_answers(site: Site) -> None:
    for path in ("status", "series?minutes=15", "slos", "policy", "pin", "audit"):
        site.get(f"/api/v1/{path}")
    assert site.get("/api/v1/status")["headline"] == "No router has reported yet."
    assert site.get("/health")["status"] == "ok"
    assert site.client.get("/metrics").status_code == 200


def test_series_are_columns_of_equal_length_and_thinned(site: Site) -> None:
    drive(site.loop, site.clock, 30, lambda seq: report(seq, records=turns(20)))
    columns = site.get("/api/v1/series?minutes=60")["models"]["m"]
    assert {len(column) for column in columns.values()} == {30}
    assert columns["price"][-1] == 0.4 and columns["later_turns"] == [20] * 30
    thin = site.get("/api/v1/series?minutes=1440")
    assert thin["step_s"] == 120.0
    column = thin["models"]["m"]["later_turns"]
    assert len(column) <= 3 and sum(column) == 600
    for bad in ("minutes=0", "minutes=9999", "minutes=x"):
        assert site.client.get(f"/api/v1/series?{bad}").status_code == 400


def test_slos_tell_counts_and_promises(site: Site) -> None:
    counts = {"tpot": Count(1000, 5, 3), "later-ttft": Count(100, 2)}
    site.loop.accept(report(1, counts=counts), site.clock())
    rows = {row["slo"]: row for row in site.get("/api/v1/slos")["slos"]}
    assert rows["tpot"]["good_share"] == 0.995 and rows["tpot"]["kept"] and rows["tpot"]["excluded"] == 3
    assert rows["later-ttft"]["good"] == 98 and rows["later-ttft"]["kept"] is False
    assert rows["later-ttft"]["promise"] == "99 % of later turns: TTFT at most 2 s"


def test_a_pin_is_written_where_routers_look_and_on_record(site: Site, tmp_path: Path) -> None:
    response = site.client.post("/api/v1/pin", json={"x": 0, "by": "alice"})
    assert response.status_code == 200 and response.json()["x"] == 0.0
    pin = read_pin(tmp_path)
    assert pin is not None and (pin.x, pin.by) == (0.0, "alice")
    assert site.get("/api/v1/pin")["by"] == "alice"
    site.loop.accept(report(1), site.clock())
    assert "router router-0 does not report" in site.get("/api/v1/status")["warnings"][0]
    assert site.client.post("/api/v1/pin", json={"x": None}).json()["x"] is None
    assert read_pin(tmp_path) is None
    assert [row["action"] for row in site.get("/api/v1/audit")["audit"]] == ["unpin", "pin"]


@pytest.mark.parametrize(
    "bad", ['{"x": 2}', '{"x": true}', '{"x": "0"}', "{}", "[]", "x", '{"x": 0, "by": 1}', '{"x": NaN}']
)
def test_a_pin_that_makes_no_sense_is_refused(site: Site, tmp_path: Path, bad: str) -> None:
    response = site.client.post("/api/v1/pin", content=bad, headers=JSON)
    assert response.status_code == 400 and response.json()["error"]["message"]
    assert read_pin(tmp_path) is None


def test_a_damaged_pin_file_is_a_warning(site: Site, tmp_path: Path) -> None:
    (tmp_path / "pin.json").write_text("{", encoding="utf-8")
    assert "pin.json" in site.get("/api/v1/pin")["warning"]
    assert any("pin.json" in text for text in site.get("/api/v1/status")["warnings"])


def test_other_web_pages_cannot_change_anything(site: Site, tmp_path: Path) -> None:
    send = site.client.post
    body = '{"x": 0}'
    assert send("/api/v1/pin", content=body, headers={"content-type": "text/plain"}).status_code == 403
    assert send("/api/v1/pin", content=body, headers={**JSON, "origin": "http://evil.example"}).status_code == 403
    assert send("/api/v1/pin", content=body, headers={**JSON, "host": "evil.example:9400"}).status_code == 403
    assert read_pin(tmp_path) is None
    same = {**JSON, "origin": "http://127.0.0.1:9400"}
    assert send("/api/v1/pin", content=body, headers=same).status_code == 200


def test_a_token_guards_what_routers_use_and_what_changes_something(tmp_path: Path) -> None:
    site = Site(tmp_path, token="s3cret", host="0.0.0.0")
    body, good = report_to_json(report(1)), {"authorization": "Bearer s3cret"}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}, {"authorization": "Bearer é"}):
        sent = {name: value.encode("latin-1") for name, value in headers.items()}
        assert site.client.post("/internal/v1/turns", content=body, headers=sent).status_code == 401  # type: ignore[arg-type]
        assert site.client.get("/internal/v1/policy", headers=sent).status_code == 401  # type: ignore[arg-type]
        assert site.client.post("/api/v1/pin", json={"x": 0}, headers=sent).status_code == 401  # type: ignore[arg-type]
    assert site.client.post("/internal/v1/turns", content=body, headers=good).status_code == 200
    assert site.client.post("/api/v1/pin", json={"x": 0}, headers=good).status_code == 200
    assert site.get("/api/v1/status") and site.get("/health")
    assert "s3cret" not in repr(site.loop.config)


def test_without_a_token_only_this_host_is_listened_to(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token"):
        loop_in(tmp_path, host="0.0.0.0")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"source": "guessed"}, "source"),
        ({"law": "pid"}, "law"),
        ({"mode": "magic"}, "mode"),
        ({"start_price": 0.0}, "start_price"),
        ({"pin_x": 2.0}, "pin_x"),
        ({"tick_s": 0.0}, "tick_s"),
        ({"port": 70000}, "port"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        loop_in(tmp_path, **changes)


def test_tables_need_their_documents(tmp_path: Path) -> None:
    folder = files("trimtab") / "tables"
    path = next(path for path in folder.iterdir() if path.name.endswith(".json"))
    tables, _ = with_artefacts([(path.name, path.read_text(encoding="utf-8"))])
    key: TableKey = next(iter(tables))
    with pytest.raises(ValueError, match=key.model):
        loop_in(tmp_path, tables=tables)


def test_health_is_degraded_without_ticks_for_three_intervals(site: Site) -> None:
    drive(site.loop, site.clock, 1, lambda seq: report(seq))
    site.clock.advance(14.9)
    assert site.get("/health")["status"] == "ok"
    site.clock.advance(0.2)
    response = site.client.get("/health")
    assert response.status_code == 503 and response.json()["status"] == "degraded"
    assert "No tick for 15 s" in response.json()["problems"][0]
    assert "trimtab_control_healthy 0.0" in site.client.get("/metrics").text
    assert site.get("/api/v1/status")["health"] == "degraded"


def test_a_store_that_is_damaged_is_told_loudly(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"rubbish" * 1000)
    site = Site(tmp_path)
    drive(site.loop, site.clock, 1, lambda seq: report(seq, records=turns()))
    status = site.get("/api/v1/status")
    assert f"{FILE} was damaged" in status["warnings"][0] and status["store"]["on_disk"]
    assert "trimtab_control_store_ok 1.0" in site.client.get("/metrics").text
    assert site.get("/health")["status"] == "ok", "the loop runs all the same"
    assert site.get("/api/v1/series")["models"]["m"]["price"] == [0.4]


def test_a_router_that_falls_silent_or_behind_is_told(site: Site) -> None:
    drive(site.loop, site.clock, 3, lambda seq: report(seq, records=turns(tpot_s=0.09), version=1))
    site.clock.advance(11)
    site.loop.accept(report(4, version=1), site.clock())
    assert "still acts on version 1" in " ".join(site.get("/api/v1/status")["warnings"])
    site.clock.advance(16)
    status = site.get("/api/v1/status")
    assert "has not reported for 16 s" in " ".join(status["warnings"])
    assert status["headline"].startswith("No router reports any more")
    assert status["routers"][0]["silent"] and status["nodes"] == []


def test_metrics_are_one_valid_exposition_of_all_processes(site: Site) -> None:
    text = "# TYPE trimtab_turns_total counter\ntrimtab_turns_total 5\n"
    drive(site.loop, site.clock, 1, lambda seq: report(seq, records=turns(), metrics=text))
    response = site.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    found = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert [sample.labels for sample in found["trimtab_turns"].samples] == [{"process": "router-0"}]
    assert [sample.value for sample in found["trimtab_control_turns"].samples] == [100.0]
    site.clock.advance(20)
    found = {family.name: family for family in text_string_to_metric_families(site.client.get("/metrics").text)}
    assert "trimtab_turns" not in found, "a silent router's gauges must not look alive"


def test_what_the_table_is_off_by_is_a_metric_and_its_alarms_begin_at_nothing(site: Site) -> None:
    drive(site.loop, site.clock, 1, lambda seq: report(seq, records=turns()))
    found = {family.name: family for family in text_string_to_metric_families(site.client.get("/metrics").text)}
    (sample,) = found["trimtab_table_residual_log"].samples
    assert sample.labels == {"model": "m", "route": "append_local"} and abs(sample.value) < 5
    for name in ("trimtab_table_drifted", "trimtab_table_drifts"):
        assert [sample.value for sample in found[name].samples] == [0.0] * 4, name


def test_unknown_paths_and_methods_have_error_bodies(site: Site) -> None:
    for response in (site.client.get("/nope"), site.client.delete("/api/v1/pin", headers=JSON)):
        assert response.status_code in (404, 405) and response.json()["error"]["message"]


def test_other_parts_add_sections_to_the_status(site: Site) -> None:
    site.loop.sections["alerts"] = lambda: {"tpot": {"state": "firing"}}
    site.loop.sections["engines"] = lambda: 1 / 0
    site.loop.sections["odd"] = lambda: float("inf")
    status = site.get("/api/v1/status")
    assert "ValueError" in status["odd"]["error"]
    assert status["alerts"] == {"tpot": {"state": "firing"}}
    assert "ZeroDivisionError" in status["engines"]["error"]


def test_the_page_is_one_document_that_fetches_nothing_from_elsewhere(site: Site) -> None:
    response = site.client.get("/")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/html")
    text = response.text
    assert "/*STYLE*/" not in text and "/*SCRIPT*/" not in text and "askStatus" in text
    outside = text.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in outside and "https://" not in outside and "@import" not in text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    assert response.headers["cache-control"] == "no-store"


def test_the_pages_text_never_becomes_markup(site: Site) -> None:
    text = site.client.get("/").text
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in text


def test_a_hostile_name_stays_a_name(site: Site) -> None:
    name = '"><script>alert(1)</script>\n\x00é\U0001f600'
    hostile = tuple(replace(record, model=name) for record in turns(30))
    drive(site.loop, site.clock, 1, lambda seq: report(seq, router=name, records=hostile))
    assert name in site.get("/api/v1/status")["models"]
    assert name in site.get("/api/v1/series")["models"]
    families = {f.name: f for f in text_string_to_metric_families(site.client.get("/metrics").text)}
    assert families["trimtab_price"].samples[0].labels["model"] == name
