"""The router's histograms: bounds that are the SLOs' thresholds, what a reload changes, and exemplars."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from router.breaker import FAILURES
from router.membership.roster import Roster
from router.metrics import LATENCY_BUCKETS_S, SPECS, RouterMetrics, bounds, page
from router.turn import NodeId, Reason
from slos.objective import Condition, Outcome, Signal, Slo
from slos.policy import Declaration
from tests.controller.records import record
from tests.router.fleet import fleet
from tests.router.samples import key

TTFT = Slo("ttft", Signal.TTFT, 0.99, 0.45)
TPOT = Slo("tpot", Signal.TPOT, 0.99, 0.038)
ITL = Slo("itl", Signal.ITL, 0.99, 0.031)
E2E = Slo("e2e", Signal.E2E, 0.99, 12.0)
SLOS = (TTFT, TPOT, ITL, E2E, Slo("answers", Signal.SUCCESS, 0.999, None))


def made(*slos: Slo) -> tuple[CollectorRegistry, RouterMetrics]:
    registry = CollectorRegistry()
    return registry, RouterMetrics(registry, slos)


def bucket_bounds(registry: CollectorRegistry, name: str) -> set[str]:
    families = {family.name: family for family in text_string_to_metric_families(page(registry))}
    return {s.labels["le"] for s in families[name].samples if s.name.endswith("_bucket")}


def test_every_threshold_of_the_start_is_a_bound_of_its_own_histogram():
    registry, metrics = made(*SLOS)
    metrics.ended(record(ttft_s=0.3))
    assert "0.45" in bucket_bounds(registry, "trimtab_ttft_seconds")
    assert {"0.038", "0.031"} <= bucket_bounds(registry, "trimtab_tpot_seconds")
    assert "12.0" in bucket_bounds(registry, "trimtab_e2e_seconds")
    assert "12.0" not in bucket_bounds(registry, "trimtab_ttft_seconds")


def test_bounds_are_spelled_in_one_way_and_never_twice():
    slos = [
        Slo("a", Signal.TTFT, 0.99, 0.07 * 60),
        Slo("b", Signal.TTFT, 0.99, 0.1 + 0.2),
        Slo("c", Signal.TTFT, 0.9, 0.5),
    ]
    assert bounds(LATENCY_BUCKETS_S, slos, Signal.TTFT) == tuple(sorted({*LATENCY_BUCKETS_S, 4.2, 0.3}))


def test_the_thresholds_of_goodput_are_bounds_too_and_one_that_is_none_is_told():
    both = (Condition(Signal.TTFT, 0.45), Condition(Signal.TPOT, 0.033), Condition(Signal.SUCCESS))
    goodput = Slo("good", Signal.GOODPUT, 0.97, None, conditions=both)
    registry, metrics = made(goodput)
    assert "0.45" in bucket_bounds(registry, "trimtab_ttft_seconds")
    assert "0.033" in bucket_bounds(registry, "trimtab_tpot_seconds")
    other = replace(goodput, conditions=(Condition(Signal.TTFT, 0.46), *both[1:]))
    assert metrics.redeclare(Declaration((other,))) == (other,)


def test_a_reload_says_which_thresholds_are_no_bounds_until_a_restart(caplog: pytest.LogCaptureFixture):
    registry, metrics = made(TTFT, TPOT)
    tighter, coarse = Slo("ttft", Signal.TTFT, 0.99, 0.4), Slo("coarse", Signal.TPOT, 0.95, 0.05)
    with caplog.at_level(logging.WARNING):
        assert metrics.redeclare(Declaration((tighter, coarse, SLOS[-1]))) == (tighter,)
    assert "ttft is judged exactly from now on" in caplog.text
    unbound = {
        name: registry.get_sample_value("trimtab_slo_threshold_unbound", {"slo": name})
        for name in ("ttft", "coarse", "tpot")
    }
    assert unbound == {"ttft": 1.0, "coarse": 0.0, "tpot": None}, "0.05 always is a bound; tpot is gone"
    assert metrics.redeclare(Declaration((TTFT,))) == ()


def exemplars(registry: CollectorRegistry) -> dict[str, str]:
    return {
        family.name: sample.exemplar.labels["request_id"]
        for family in text_string_to_metric_families(page(registry))
        for sample in family.samples
        if sample.exemplar
    }


def test_a_bucket_leads_to_the_request_as_its_client_knows_it():
    registry, metrics = made()
    metrics.ended(record(ttft_s=0.3), "chat-7")
    assert exemplars(registry) == dict.fromkeys(
        ("trimtab_ttft_seconds", "trimtab_tpot_seconds", "trimtab_e2e_seconds"), "chat-7"
    )


def test_a_failed_turn_has_no_whole_time():
    registry, metrics = made()
    metrics.ended(record(outcome=Outcome.FAILED), "chat-7")
    assert registry.get_sample_value("trimtab_e2e_seconds_count") == 0


@pytest.mark.parametrize("request_id", ["", 'a"b', "a\\b", "a b", "}{ # 1", "é", "{x}"])
def test_an_id_that_could_break_the_page_is_left_out(request_id: str):
    registry, metrics = made()
    metrics.ended(record(ttft_s=0.3), request_id)
    assert exemplars(registry) == {}
    assert registry.get_sample_value("trimtab_e2e_seconds_count") == 1


def test_a_long_id_is_cut_to_what_openmetrics_allows():
    registry, metrics = made()
    metrics.ended(record(ttft_s=0.3), "x" * 256)
    assert {len("request_id" + value) for value in exemplars(registry).values()} == {128}


def test_every_metric_of_the_router_is_in_the_reference_with_its_labels():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md").read_text()
    rows = {line.split("`")[1].removesuffix("_total"): line for line in page.splitlines() if line.startswith("| `")}
    for spec in SPECS:
        assert spec.name in rows, spec.name
        labels = ", ".join(f"`{label}`" for label in spec.labels) or "–"
        assert f"| {labels} | {spec.help} |" in rows[spec.name], rows[spec.name]


# -- membership --------------------------------------------------------------------------------------------------------


def test_what_memory_costs_is_shown_for_decode_nodes_and_a_node_that_left_no_more():
    run = fleet("P0 D0 D1")
    run.talk("c1", 5000)
    known = run.core.conversations.peek(key("c1"))
    assert known is not None and known.decode_node is not None
    home = known.decode_node
    run.core.residency.drop(home, key("c1"))
    run.finish(run.start("c1"))
    registry, metrics = made()
    for _ in range(2):  # counters do not count twice
        metrics.churn(run.core, run.now_s)

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"trimtab_kv_{name}", {"node": str(home)})

    churn = run.core.churn[home]
    assert value("evicted_tokens_total") == churn.evicted_total and churn.evicted_total > 4900
    assert value("evicted_ratio") == churn.evicted(run.now_s) and churn.evicted(run.now_s) > 0.9
    assert value("recomputed_ratio") == churn.recomputed(run.now_s)
    assert value("demand_ratio") == pytest.approx(0.052, abs=0.002)
    assert registry.get_sample_value("trimtab_kv_demand_ratio", {"node": "P0"}) is None
    run.core.remove_node(home)
    metrics.churn(run.core, run.now_s)
    assert value("demand_ratio") is None and value("evicted_ratio") is None


def test_nodes_breakers_sources_and_moves_are_shown_and_a_node_that_left_no_more():
    core = fleet("P0 D0 D1").core
    registry, metrics = made()
    roster = Roster(("static", "file"))
    roster.fail("file", "nodes.yaml:2:3 E104 ...", 0.0)
    d0, d1 = NodeId("D0"), NodeId("D1")
    for _ in range(FAILURES):
        core.node_failed(d0, "timeout", 0.0)
    core.moves[Reason.NODE_DRAINED] += 2
    for _ in range(2):  # counters do not count twice
        metrics.members(core, roster, 0.0)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"trimtab_{name}", labels)

    assert value("breaker_open", node="D0") == 1.0
    assert value("breaker_openings_total", node="D0", kind="timeout") == 1.0
    assert value("moves_total", reason="node_drained") == 2.0
    assert value("source_up", source="file") == 0.0 and value("source_up", source="static") == 1.0
    assert value("node_up", node="D1", role="decode") == 1.0 and value("node_slow", node="D1") == 0.0
    core.drain_node(d1, True)
    core.remove_node(d0)
    metrics.members(core, roster, 0.0)
    metrics.believe(core)
    assert value("node_draining", node="D1") == 1.0 and value("node_up", node="D1", role="decode") == 0.0
    assert value("node_up", node="D0", role="decode") is None and value("believed_tokens", node="D0") is None
