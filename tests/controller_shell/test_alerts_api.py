"""The alerts' part of the HTTP face: what fires, silences, a test, and the standing of every SLO."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slos.counts import Count
from slos.revisions import revision
from tests.controller_shell.alerting_site import AlertingSite
from tests.controller_shell.reports import SLOS, loop_in, report


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AlertingSite]:
    made = AlertingSite(tmp_path)
    with made.client:
        yield made


def row(site: AlertingSite, name: str) -> dict:
    return next(row for row in site.get("/api/v1/slos")["slos"] if row["slo"] == name)


def test_before_the_first_judgement_everything_is_unknown(site: AlertingSite):
    found = row(site, "tpot")
    assert found["verdict"] == "unknown" and found["budget"] is None and found["alert"]["state"] == "unknown"
    assert site.get("/api/v1/alerts")["incidents"] == []


def test_a_healthy_slo_says_verdict_percentile_budget_and_burn(site: AlertingSite):
    site.run(30)
    found = row(site, "tpot")
    assert found["verdict"] == "ok" and found["slice"]["bad_share"] == 0 and found["slice"]["p_value"] == 1
    assert found["slice"]["valid"] in (1200, 1220)
    assert found["percentile_ms"] == {"estimate": 20.0, "low": 20.0, "high": 20.0, "n": found["percentile_ms"]["n"]}
    assert found["percentile_ms"]["n"] >= 1000
    assert found["budget"]["left"] == 1 and found["budget"]["exhausted_in_s"] is None
    assert found["burn"] == {"5m": 0, "1h": 0, "6h": 0, "3d": 0}
    assert found["alert"] == {"state": "ok", "since": None, "family": None}
    assert len(found["revision"]) == 12 and "1 % is allowed" in found["why"]


def test_a_breach_is_seen_in_the_alerts_and_in_the_slos_row_and_says_why(site: AlertingSite):
    site.run(10)
    site.run(5, bad=5)
    (incident,) = site.get("/api/v1/alerts")["incidents"]
    assert (incident["about"], incident["severity"], incident["state"]) == ("later-ttft", "page", "firing")
    assert incident["annotations"]["runbook_url"] == "https://runbooks.example/later-ttft"
    assert len(incident["key"]) == 64 and "users waited over 2 s" in incident["summary"]
    found = row(site, "later-ttft")
    assert found["verdict"] == "breach" and found["alert"]["family"] == "breach"
    assert found["budget"]["bad_left"] > 0 and found["burn"]["5m"] > 20
    assert found["budget"]["exhausted_in_s"] > 0 and found["budget"]["exhausted_at"] > "1970-01-01"
    assert "chance alone does that never" in found["why"]


def test_a_silence_holds_back_what_it_matches_until_it_is_ended_and_is_in_the_audit(site: AlertingSite):
    made = site.post(
        "/api/v1/silences",
        {"matchers": ["slo=later-*"], "for_s": 7200, "by": "ann", "comment": "deploy"},
        201,
    )
    assert made["active"] and made["matchers"] == ["slo=later-*"] and made["note"] == ""
    site.run(10)
    site.run(5, bad=5)
    (incident,) = site.get("/api/v1/alerts")["incidents"]
    assert incident["state"] == "silenced" and incident["told_at"] is None and site.alerting.notices == 0
    response = site.client.delete(f"/api/v1/silences/{made['id']}?by=bob", headers={"content-type": "application/json"})
    assert response.status_code == 200 and not response.json()["active"]
    site.run(0.5, bad=5)
    assert site.alerting.notices == 1
    assert site.get("/api/v1/silences")["silences"][0]["by"] == "ann"
    audit = [(entry["actor"], entry["action"]) for entry in site.get("/api/v1/audit")["audit"]]
    assert [entry for entry in audit if entry[0] != "controller"] == [("bob", "unsilence"), ("ann", "silence")]
    again = site.client.delete(f"/api/v1/silences/{made['id']}", headers={"content-type": "application/json"})
    assert again.status_code == 404 and "GET /api/v1/silences" in again.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "an object"),
        ({"matchers": "slo=x", "for_s": 60, "by": "a", "comment": "b"}, "list of texts"),
        ({"matchers": ["slo"], "for_s": 60, "by": "a", "comment": "b"}, "write label=value"),
        ({"matchers": ["slo=x"], "for_s": "2h", "by": "a", "comment": "b"}, "number of seconds"),
        ({"matchers": ["slo=x"], "for_s": True, "by": "a", "comment": "b"}, "number of seconds"),
        ({"matchers": ["slo=x"], "for_s": -1, "by": "a", "comment": "b"}, "within a year"),
        ({"matchers": ["slo=x"], "for_s": 60, "by": "a"}, "by whom and why"),
        ({"matchers": ["slo=x"], "for_s": 60, "by": 5, "comment": "b"}, "texts"),
        ({"matchers": ["slo=*"], "for_s": 60, "by": "a", "comment": "b"}, "everything"),
        ({"matchers": ["slo=x"], "until": "noon"}, "'until' is not known"),
    ],
)
def test_a_silence_that_cannot_be_says_what_to_write(site: AlertingSite, body: object, says: str):
    assert says in site.post("/api/v1/silences", body, 400)["error"]["message"]
    assert site.alerting.silences == ()


def test_a_body_that_is_no_json_or_far_too_large_is_refused(site: AlertingSite):
    headers = {"content-type": "application/json"}
    assert site.client.post("/api/v1/silences", content=b"{", headers=headers).status_code == 400
    assert site.client.post("/api/v1/silences", content=b"1" * 20_000, headers=headers).status_code == 413


def test_changing_asks_for_the_token_and_for_json(tmp_path: Path):
    site = AlertingSite(tmp_path, token="t0ken")
    body = {"matchers": ["slo=x"], "for_s": 60, "by": "a", "comment": "b"}
    assert site.client.post("/api/v1/silences", json=body).status_code == 401
    assert site.client.delete("/api/v1/silences/x").status_code == 403
    assert site.client.post("/api/v1/alerts/test", json={}).status_code == 401
    assert site.client.get("/api/v1/alerts").status_code == 200
    allowed = site.client.post("/api/v1/silences", json=body, headers={"authorization": "Bearer t0ken"})
    assert allowed.status_code == 201


def test_a_test_goes_to_every_receiver(site: AlertingSite):
    assert site.post("/api/v1/alerts/test", {"by": "ann"}) == {"results": {"log": "delivered"}}


def test_incidents_silences_and_budgets_survive_a_restart(tmp_path: Path):
    before = AlertingSite(tmp_path)
    before.run(10)
    before.run(5, bad=5)
    before.alerting.silence(["slo=tpot"], 3600.0, "ann", "deploy")
    before.loop.save_counts()
    before.loop.store.close(before.clock())
    after = AlertingSite(tmp_path)
    after.clock.now_s = before.clock.now_s
    assert [one.about for one in after.alerting.incidents] == ["later-ttft"]
    assert [one.comment for one in after.alerting.silences] == ["deploy"]
    after._seq, after._counts = before._seq, before._counts
    after.run(1, bad=5)
    standing, old = after.alerting.standing("later-ttft"), before.alerting.standing("later-ttft")
    assert standing is not None and old is not None and standing.budget.spent == old.budget.spent + 12 * 5
    assert after.alerting.notices == 0, "nothing is told again"
    after.run(20)
    assert after.alerting.notices == 1 and after.alerting.incidents == ()


def test_what_was_counted_under_another_promise_stays_visible(tmp_path: Path):
    before = AlertingSite(tmp_path)
    before.run(10, bad=1)
    before.loop.save_counts()
    before.loop.store.close(before.clock())
    changed = (replace(SLOS[0], threshold_s=1.5), SLOS[1])
    loop, _ = loop_in(tmp_path, before.clock, slos=changed)
    assert list(loop.ledgers.history("later-ttft").rows()) == []
    assert sum(count.valid for _, count in loop.ledgers.history("tpot").rows()) == 2400
    rows = {(row.slo, row.revision): row.count for row in loop.store.revisions()}
    assert rows["later-ttft", revision(SLOS[0])] == Count(2400, 120)


def test_the_history_says_which_promise_is_the_present_one(site: AlertingSite):
    site.run(10)
    site.loop.save_counts()
    site.loop.store.flush(site.clock())
    found = {row["slo"]: row for row in site.get("/api/v1/slos/history")["history"]}
    assert found["tpot"]["current"] and found["tpot"]["valid"] == 2400 and found["tpot"]["good_share"] == 1
    assert found["tpot"]["from"] < found["tpot"]["to"]


def test_a_store_that_cannot_be_written_is_an_incident_and_serving_goes_on(site: AlertingSite):
    site.run(1)
    site.loop.store.problem = "the disk is full"
    site.run(2)
    (incident,) = site.get("/api/v1/alerts")["incidents"]
    assert incident["labels"]["alertname"] == "TrimtabStoreFailed" and "disk is full" in incident["summary"]
    site.loop.store.problem = ""
    site.run(2)
    assert site.get("/api/v1/alerts")["incidents"] == []


def test_a_loop_that_stands_still_is_told_by_the_job_that_looks_after_it(site: AlertingSite):
    site.run(2)
    site.clock.advance(30.0)
    asyncio.run(site.alerting.watch())
    assert "TrimtabControllerStale" in {one.labels["alertname"] for one in site.alerting.incidents}
    assert site.alerting.notices >= 1


def test_turns_that_never_end_hold_the_price_then_send_it_home_and_that_is_an_alert(site: AlertingSite):
    site.run(1)
    states = []
    for seq in range(100, 120):
        site.loop.accept(report(seq), site.clock())  # its node runs seven sequences
        site.loop.tick(site.clock.advance(5.0))
        states.append(site.loop.safety.state.value)
    assert states == ["active"] * 2 + ["hold"] * 10 + ["fallback_home"] * 8
    assert "TrimtabPriceFellBack" in {one.labels["alertname"] for one in site.alerting.incidents}
    status = site.get("/api/v1/status")
    assert (status["state"], status["reason"]) == ("fallback_home", "stale")
    assert any("no turn has ended for a minute" in text for text in status["warnings"])
    audit = [row["detail"] for row in site.get("/api/v1/audit")["audit"]]
    assert audit[:2] == [
        "m: hold (no_samples) -> fallback_home (stale)",
        "m: active (running) -> hold (no_samples)",
    ]


def test_every_document_is_plain_json(site: AlertingSite):
    site.run(10, bad=1)
    for path in ("/api/v1/slos", "/api/v1/alerts", "/api/v1/silences", "/api/v1/status"):
        assert json.loads(site.client.get(path).text) is not None
