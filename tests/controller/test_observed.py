"""What scraping and alerting show."""

import asyncio
import json
import math

from prometheus_client import CollectorRegistry, generate_latest

from controller.alerting import Alerting
from controller.engines import EngineMetric, EngineNode, NodeScrape
from controller.feasibility import Feasibility
from controller.judging import Judging
from controller.laws.protocol import Action
from controller.ledgers import Ledgers
from controller.metrics import SPECS as CONTROL_SPECS
from controller.observed import SPECS, AlertCollector, EngineCollector, alert_status, engine_status
from controller.scrape import Scraper
from controller.tick import ModelOutput, Outputs
from estimators.histogram import Snapshot
from router.turn import Role
from slos.counts import Count
from slos.epoch import Epoch
from slos.objective import Signal, Slo
from slos.policy import Declaration
from slos.reduce import Binding, SloReading

SLO = Slo("tpot", Signal.TPOT, 0.99, 0.040)
NODES = (EngineNode("P0", Role.PREFILL, "http://p", "m"), EngineNode("D0", Role.DECODE, "http://d", "m"))
EDGES = (0.025, 0.05, math.inf)


def scraper(tpots: tuple[float, ...] = (0.0, 50.0, 50.0)) -> Scraper:
    """One that has had two rounds, without a network."""
    made = Scraper(NODES, (SLO,), clock=lambda: 0.0)
    for share in (0.0, 1.0):
        ttft = Snapshot(EDGES, (0.0, 0.0, 40.0 * share), 1.0)
        tpot = Snapshot(EDGES, tuple(share * count for count in tpots), 1.0)
        gauges, older = {EngineMetric.KV_USAGE: 0.5}, {EngineMetric.TPOT: "old"}
        made._engines.fold(
            [
                NodeScrape("P0", {EngineMetric.TTFT: {(): ttft}}, {}, (EngineMetric.KV_USAGE,)),
                NodeScrape("D0", {EngineMetric.TTFT: {(): ttft}, EngineMetric.TPOT: {(): tpot}}, gauges, (), older),
            ]
        )
    made._round_s = 0.0
    return made


def alerting() -> Alerting:
    declared = Declaration((SLO,))
    ledgers = Ledgers((SLO,), Epoch(1.7e9, 0.0), start={"tpot": Count()})
    judging = Judging(declared, ledgers, settle_s=0.0)
    made = Alerting(declared, ledgers, webhook_url="http://127.0.0.1:9/", judging=judging)
    for now_s, count in ((0.0, Count()), (5.0, Count(60, 20)), (31.0, Count(60, 20))):
        ledgers.take({"tpot": count}, now_s, 1.7e9 + now_s)
        made(now_s, Outputs(None, {}), {"tpot": count})
    return made


def test_the_engines_status_is_json_with_bounds_alarms_and_older_names():
    status = engine_status(scraper(), {})
    assert json.loads(json.dumps(status, allow_nan=False)) == status
    model = status["m"]
    assert isinstance(model, dict)
    assert model["alarms"] == [{"node": "P0", "what": "no kv_cache_usage_perc"}]
    assert model["older_names"] == {"D0": {"request_time_per_output_token_seconds": "old"}}
    p99 = model["p99"]
    assert (p99["tpot"]["low_s"], p99["tpot"]["high_s"], p99["tpot"]["n"]) == (0.025, 0.05, 50)
    assert p99["ttft_local"] is None
    assert p99["ttft_transferred"] == {"value_s": 0.1, "low_s": 0.1, "high_s": None, "at_least": True, "n": 40}


def test_the_engines_percentile_of_an_slo_stands_beside_the_routers_own():
    reading = SloReading(SLO, 0.036)
    output = ModelOutput((reading,), Binding(None, reading), 0.4, Action.HOLD, Feasibility())
    (row,) = engine_status(scraper(), {"m": output})["m"]["slos"]  # type: ignore[index]
    assert row["slo"] == "tpot" and row["router_s"] == 0.036 and row["percentile"] == 0.99
    assert (row["engine"]["low_s"], row["engine"]["high_s"], row["engine"]["n"]) == (0.025, 0.05, 50)
    (before,) = engine_status(scraper(), {})["m"]["slos"]  # type: ignore[index]
    assert before["router_s"] is None, "not zero"


def test_the_alerts_status_is_json_too():
    status = alert_status(alerting())
    assert json.loads(json.dumps(status, allow_nan=False)) == status
    assert status["tpot"] == {
        "state": "pending",
        "evidence": "breach",
        "flapping": False,
        "valid": 60,
        "bad": 20,
        "allowed_share": 0.01,
        "firing_since_s": None,
    }


def test_every_metric_is_exported_as_its_spec_says():
    registry = CollectorRegistry()
    registry.register(EngineCollector(scraper()))
    registry.register(AlertCollector(alerting()))
    text = generate_latest(registry).decode()
    for line in (
        'trimtab_engine_p99_seconds{bound="low",model="m",signal="tpot"} 0.025',
        'trimtab_engine_p99_seconds{bound="high",model="m",signal="tpot"} 0.05',
        'trimtab_engine_p99_seconds{bound="high",model="m",signal="ttft_transferred"} +Inf',
        'trimtab_engine_samples{model="m",signal="ttft_local"} 0.0',
        'trimtab_engine_slo_reading_seconds{bound="low",model="m",signal="tpot",slo="tpot"} 0.025',
        'trimtab_engine_slo_reading_seconds{bound="high",model="m",signal="tpot",slo="tpot"} 0.05',
        'trimtab_engine_scrapes_total{node="D0",result="failed"} 0.0',
        'trimtab_engine_metric_missing{metric="kv_cache_usage_perc",node="P0"} 1.0',
        'trimtab_engine_kv_cache_usage_ratio{node="D0"} 0.5',
        'trimtab_alert_state{slo="tpot",state="pending"} 1.0',
        'trimtab_alert_state{slo="tpot",state="firing"} 0.0',
        'trimtab_alert_window_turns{slo="tpot",verdict="bad"} 20.0',
        'trimtab_slo_burn_ratio{slo="tpot",window="5m"} 33.3',
        'trimtab_slo_budget_left_ratio{slo="tpot"} 0.99',
        'trimtab_incidents{lane="page"} 0.0',
        'trimtab_notices_total{result="delivered",sink="webhook"} 0.0',
        'trimtab_notices_waiting{sink="webhook"} 0.0',
    ):
        assert line in text
    families = {family.name for family in registry.collect()}
    assert families == {spec.name for spec in SPECS}


def test_no_metric_has_a_name_that_the_control_process_uses_already():
    names = [spec.name for spec in (*CONTROL_SPECS, *SPECS)]
    assert len(names) == len(set(names))


def test_before_the_first_round_and_tick_there_is_nothing_to_show_and_no_error():
    idle = Scraper(NODES, (SLO,))
    assert engine_status(idle, {}) == {}
    registry = CollectorRegistry()
    registry.register(EngineCollector(idle))
    registry.register(AlertCollector(Alerting(Declaration((SLO,)), Ledgers((SLO,), Epoch(0.0, 0.0)))))
    assert "trimtab_engine_scrapes_total" in generate_latest(registry).decode()
    asyncio.run(idle.close())
