"""What operators do to the loop, over the API and by the command line: it holds, is on record, outlives a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from controller.app import create_app
from controller.audit import MAX_AUDIT, AuditRow
from controller.guard import Guard
from controller.kept import MAX_MODELS, Kept, from_json, to_json
from controller.metrics import ControlCollector
from controller.safety import Why
from controller.scheduler import Scheduler
from controller.store import FILE, Store
from router.pin import Pin, read_pin, write_pin
from router.policy import Weights
from slos.counts import Count
from tests.controller_shell.alerting_site import AlertingSite, served
from tests.controller_shell.reports import Clock, drive, loop_in, report, turns
from trimtab.cli import app

SLOW_D = turns(40, tpot_s=0.08)


class Site:
    """A loop that has seen a model, and a client of its API."""

    def __init__(self, folder: Path, clock: Clock | None = None, **changes: Any) -> None:
        self.loop, self.clock = loop_in(folder, clock, **changes)
        registry = CollectorRegistry()
        collector = ControlCollector(self.loop, Scheduler(), "1.2.3")
        registry.register(collector)
        self.client = TestClient(
            create_app(self.loop, collector, registry, version="1.2.3"), base_url="http://127.0.0.1:9400"
        )
        self.seq = 0

    def run(self, ticks: int = 1, **what: Any) -> None:
        drive(self.loop, self.clock, ticks, lambda seq: report(seq, **{"records": turns(40), **what}), self.seq + 1)
        self.seq += ticks

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        response = self.client.post(f"/api/v1/{path}", json=body)
        assert response.status_code == status, response.text
        return response.json()

    def audit(self, actor: str | None = None) -> list[str]:
        rows = self.client.get("/api/v1/audit").json()["audit"]
        return [f"{row['action']} {row['detail']}" for row in rows if actor in (None, row["actor"])]

    @property
    def state(self) -> str:
        return self.loop.safety.state

    @property
    def price(self) -> float:
        return self.loop.policy.weights_for("m").price


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with made.client:
        made.run(2)
        yield made


def test_bounds_hold_the_price_and_are_on_record_from_what_to_what(site: Site) -> None:
    answer = site.post("bounds", model="m", high=0.5, by="ann")
    assert answer["models"]["m"]["bounds"] == {"low": 0.02, "high": 0.5}
    assert site.audit("ann") == ["bounds m: bounds 0.02..5 -> 0.02..0.5"]
    site.run(12, records=SLOW_D)
    assert site.price == pytest.approx(0.5)
    site.post("bounds", high=0.3, by="ann")
    site.run()
    assert site.price == pytest.approx(0.3)
    assert site.audit("controller")[0] == "clip m: price 0.5 -> 0.3, for the bounds"
    assert 'trimtab_price_clips_total{model="m"} 1.0' in site.client.get("/metrics").text


def test_weights_set_by_hand_are_published_at_once_and_the_law_goes_on_from_there(site: Site) -> None:
    version = site.loop.publication.version
    site.post("weights", price=1.5, by="ann")
    assert site.loop.publication.version == version + 1 and site.price == pytest.approx(1.5)
    assert site.audit("ann") == [
        "weights m: price 0.4 (w_ttft 1.42857, w_tpot 0.571429) -> price 1.5 (w_ttft 0.8, w_tpot 1.2)"
    ]
    site.run(3)
    assert site.loop.guard("m").safety.reason is Why.SETTLING and site.price == pytest.approx(1.5)
    site.run(3, records=SLOW_D)
    assert site.price > 1.5


def test_held_weights_may_be_any_pair_and_stay_until_resume(site: Site) -> None:
    answer = site.post("weights", w_ttft=3, w_tpot=0, hold=True, by="ann")
    assert answer["models"]["m"]["held"] and answer["models"]["m"]["price"] == 0
    site.run(6, records=SLOW_D)
    assert site.loop.policy.weights_for("m") == Weights(3.0, 0.0)
    status = site.client.get("/api/v1/status").json()
    assert (status["state"], status["reason"]) == ("hold", "set_by_hand") and status["models"]["m"]["held"]
    site.post("weights", w_ttft=1, w_tpot=1, hold=True)
    site.run(4)
    site.post("resume", by="bob")
    site.run(2, records=SLOW_D)
    assert site.price > 1.0 and site.state == "active"
    assert site.audit("bob") == ["resume m: hold (set_by_hand), held -> going on from price 1"]


def test_resume_lifts_the_pin_and_leaves_a_hold(site: Site, tmp_path: Path) -> None:
    write_pin(tmp_path, Pin(1.0, "carol", "t1"))
    site.run(1, pin_x=1.0)
    site.loop.store.audit(AuditRow(1.0, "carol", "pin", "off -> x=1, t1"))  # as the flush would
    assert site.state == "pinned"
    site.post("resume", by="bob")
    assert read_pin(tmp_path) is None and site.audit("bob")[-1] == "unpin x=1 -> off"
    site.run(1)
    assert site.state == "active", "without the wait for a window"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("bounds", {"low": 3, "high": 1}, "low < high"),
        ("bounds", {"low": 0.001}, "not within 0.02..5"),
        ("bounds", {"low": "x"}, "low"),
        ("bounds", {"model": "nobody", "low": 1}, "'nobody' is no model that was seen; there are m"),
        ("weights", {}, 'give "w_ttft" and "w_tpot", or "price" alone'),
        ("weights", {"w_ttft": 1}, 'give "w_ttft" and "w_tpot", or "price" alone'),
        ("weights", {"w_ttft": 1, "w_tpot": 1, "price": 1}, 'give "w_ttft" and "w_tpot", or "price" alone'),
        ("weights", {"w_ttft": 0, "w_tpot": 0, "hold": True}, "not both 0"),
        ("weights", {"w_ttft": -1, "w_tpot": 1, "hold": True}, ">= 0"),
        ("weights", {"price": 20}, "hold it, or widen the bounds"),
        ("weights", {"price": 1, "colour": "red"}, "colour"),
        ("resume", {"model": "nobody"}, "there are m"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_with_what_to_write(
    site: Site, path: str, body: dict[str, Any], told: str
) -> None:
    assert told in site.post(path, 400, **body)["error"]["message"]
    assert site.audit("api") == [] and site.price == pytest.approx(0.4)


def test_with_several_models_one_has_to_be_named(site: Site) -> None:
    site.loop.guards = {**site.loop.guards, "n": Guard()}
    assert "which model? there are m, n" in site.post("weights", 400, price=1)["error"]["message"]
    assert list(site.post("resume")["models"]) == ["m", "n"]


def test_orders_ask_for_the_token_and_for_this_site(tmp_path: Path) -> None:
    site = Site(tmp_path, token="s3cret")
    for path in ("bounds", "weights", "resume"):
        assert site.client.post(f"/api/v1/{path}", json={}).status_code == 401
        headers = {"origin": "http://evil.example", "content-type": "application/json"}
        assert site.client.post(f"/api/v1/{path}", content="{}", headers=headers).status_code == 403
    assert site.client.get("/api/v1/controls").status_code == 200


def test_an_operators_change_that_goes_far_over_is_taken_back_and_told(site: Site) -> None:
    site.run(2, counts={"tpot": Count(100, 0)})
    site.post("weights", price=0.05, by="ann")
    for bad in (30, 60):
        site.run(1, counts={"tpot": Count(100 + 2 * bad, bad)})
    assert site.price == pytest.approx(0.4) and not site.loop.policy.model_weights
    assert [each.split()[0] for each in site.audit("controller")[:2]] == ["state", "revert"]
    assert "taken back" in site.client.get("/api/v1/status").json()["models"]["m"]["why"]


def test_a_restart_changes_neither_price_nor_bounds_nor_hold_nor_state(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.run(3, records=SLOW_D)
    site.post("bounds", low=0.1, high=0.9)
    site.post("weights", w_ttft=0, w_tpot=1, hold=True)
    site.run(2)
    since = site.client.get("/api/v1/controls").json()["models"]["m"]["since"]
    weights = site.loop.policy.model_weights
    site.loop.store.flush(site.clock())  # as it is every five seconds; then it is killed
    site.clock.advance(1.0)
    again = Site(tmp_path, site.clock)
    assert again.loop.policy.model_weights == weights
    row = again.client.get("/api/v1/controls").json()["models"]["m"]
    assert row["bounds"] == {"low": 0.1, "high": 0.9} and row["held"] and row["price"] == "inf"
    again.run(3, records=SLOW_D, boot="boot-a")
    assert again.loop.policy.model_weights == weights and again.loop.safety.reason is Why.SET_BY_HAND
    assert again.client.get("/api/v1/controls").json()["models"]["m"]["since"] == since
    again.post("resume")
    again.run(1)
    assert again.price == pytest.approx(0.9)


def test_a_state_is_gone_on_from_and_is_no_news_after_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.run(3)
    site.loop.store.close(site.clock())
    again = Site(tmp_path, site.clock)
    again.run(3)
    assert again.audit("controller") == ["state m: offline (starting) -> active (running)"]


def test_a_document_that_cannot_be_read_costs_bounds_and_no_price(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.run(3, records=SLOW_D)
    price = site.price
    site.loop.store.put_document("guards", '{"m": 1}', site.clock())
    site.loop.store.close(site.clock())
    again = Site(tmp_path, site.clock)
    assert again.price == price and not again.loop.guards


def test_what_is_kept_of_models_is_bounded_and_an_operators_word_stays() -> None:
    guards = {f"m{at}": Guard(held=at == 0) for at in range(MAX_MODELS + 10)}
    found = from_json(to_json(Kept(guards, {name: float(at) for at, name in enumerate(guards)})))
    assert len(found.guards) == MAX_MODELS and found.guards["m0"].held and "m5" not in found.guards


def test_metrics_and_status_tell_state_reason_and_since(site: Site) -> None:
    text = site.client.get("/metrics").text
    assert 'trimtab_control_state{model="m",state="active"} 1.0' in text
    assert 'trimtab_control_state_reason{model="m",reason="running"} 1.0' in text
    assert 'trimtab_control_state_age_seconds{model="m"} 5.0' in text
    model = site.client.get("/api/v1/status").json()["models"]["m"]
    assert (model["state"], model["reason"], model["why"]) == ("active", "running", "the law moves the price")
    assert model["since"].startswith("1970-01-01T00:16:45")


def test_the_audit_refuses_changes_and_keeps_the_last_ten_thousand(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for at in range(MAX_AUDIT // 2):
        store.audit(AuditRow(float(at), "ann", "pin", ""))
    store.flush(1.0)
    for at in range(MAX_AUDIT // 2, MAX_AUDIT + 5):
        store.audit(AuditRow(float(at), "ann", "pin", ""))
    store.flush(2.0)
    store.close(1e9)  # which prunes
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("SELECT count(*), min(at_s) FROM audit").fetchone() == (MAX_AUDIT, 5.0)
        for statement in (
            "UPDATE audit SET actor = 'bob' WHERE at_s = 7",
            "DELETE FROM audit WHERE at_s = 5",
            "DELETE FROM audit",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                db.execute(statement)
        db.execute("INSERT OR REPLACE INTO audit SELECT id, at_s, 'bob', action, detail FROM audit WHERE at_s = 9")
        assert db.execute("SELECT count(*) FROM audit WHERE actor = 'bob'").fetchone() == (0,)


# -- the command line -------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, " ".join(result.output.split())


def test_the_commands_say_what_is_and_do_what_is_asked(tmp_path: Path) -> None:
    site = AlertingSite(tmp_path)
    site.run(1)
    with served(site) as url:
        at = ("--url", url)
        code, said = run("bounds", *at)
        assert code == 0 and "0.02..5" in said and "active" in said
        code, said = run("bounds", "--low", "0.1", "--by", "ann", *at)
        assert code == 0 and "0.1..5" in said
        code, said = run("weights", "m", "--price", "0.7", "--by", "ann", *at)
        assert code == 0 and "0.7" in said
        code, said = run("weights", "--w-ttft", "0", "--w-tpot", "2", "--hold", "--by", "ann", *at)
        assert code == 0 and "inf held" in said
        code, said = run("weights", *at)
        assert code == 0 and "inf held" in said
        code, said = run("resume", "--by", "bob", "--state-dir", str(tmp_path), *at)
        assert code == 0 and "held" not in said.replace("price is held", "")
        code, said = run("audit", *at)
        assert code == 0 and "ann bounds m: bounds 0.02..5 -> 0.1..5" in said and "bob resume m:" in said
        code, said = run("audit", "--limit", "1", "--json", *at)
        assert code == 0 and said.count('"actor"') == 1
        code, said = run("weights", "--price", "20", *at)
        assert code == 2 and "hold it, or widen the bounds" in said
        code, said = run("weights", "--hold", *at)
        assert code == 2 and "--price" in said


def test_resume_lifts_the_pin_with_the_control_process_dead(tmp_path: Path) -> None:
    write_pin(tmp_path, Pin(1.0, "carol", "t1"))
    code, said = run("resume", "--state-dir", str(tmp_path), "--url", "http://127.0.0.1:9")
    assert code == 2 and "the pin is lifted" in said and "does not answer" in said
    assert read_pin(tmp_path) is None
