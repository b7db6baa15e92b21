"""The generated rules under promtool: what fires, when, and what does not. One promise: P99 TTFT of 500 ms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slos.allowance import Budget, Method
from slos.objective import Signal, Slo
from slos.policy import AlertPolicy, Burn, Declaration, NoData, Severity
from slos.rules import RuleOptions, rule_file

from .programs import Programs
from .scenario import Scenario, Traffic, told

TTFT = Slo("ttft", Signal.TTFT, 0.99, 0.5)
DECLARED = Declaration((TTFT,), alerts=AlertPolicy(runbook="https://runbooks.example/{slo}"))
BUSY = 120.0
"""Turns a minute: two a second."""
HEALTHY = Traffic(180, BUSY, 0.005 * BUSY)
BREACH, PAGE, SLOW_PAGE = told("SLOBreach", "page"), told("SLOBurn", "page", "1h"), told("SLOBurn", "page", "6h")
TICKET, LONG_TICKET = told("SLOBurn", "ticket", "1d"), told("SLOBurn", "ticket", "3d")
STALE, ABSENT, IDLE = (told(f"SLO{name}", "ticket") for name in ("EvaluationStale", "ControllerAbsent", "NoTraffic"))
DRIFT = told("TrimtabTableDrift", "ticket")
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["slo-rules.yaml", "slo-rules-mixed.yaml"])
def test_promtool_has_nothing_to_say_against_the_golden_files(programs: Programs, name: str):
    assert "SUCCESS" in programs.check_rules(GOLDEN / name)


SLICES = Budget(method=Method.SLICES)
BURNS = (Burn(Severity.TICKET, 0.5, 90.0, 60.0, 1.5), Burn(Severity.PAGE, 0.02, 5400.0, 61.5))
DECLARATIONS = {
    "no texts": Declaration((TTFT,)),
    "labels that need quoting": replace(DECLARED, service="chat", labels=(("team", 'a "b" \\ `c` {{ d'),)),
    "many": replace(DECLARED, slos=tuple(replace(TTFT, name=f"slo-{n}", objective=1 - 0.1**n) for n in (1, 2, 3, 4))),
    "slices beside requests": replace(DECLARED, slos=(TTFT, replace(TTFT, name="by-slices", budget=SLICES))),
    "odd windows": replace(DECLARED, alerts=AlertPolicy(burns=BURNS, min_bad_events=0, no_data=NoData(61.0))),
    "no burn alerts": replace(DECLARED, alerts=AlertPolicy(burns=())),
}


@pytest.mark.parametrize("name", DECLARATIONS)
@pytest.mark.parametrize("options", [RuleOptions(), RuleOptions('a "job"', (("cluster", 'e`u"\\'),), "http://d/{slo}")])
def test_promtool_has_nothing_to_say_against_other_declarations(
    programs: Programs, tmp_path: Path, name: str, options: RuleOptions
):
    (tmp_path / "rules.yaml").write_text(rule_file(DECLARATIONS[name], options).text(), encoding="utf-8")
    assert "SUCCESS" in programs.check_rules(tmp_path / "rules.yaml")


def test_a_healthy_service_is_silent(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [Traffic(600, BUSY, 0.005 * BUSY)])
    for minute in (1, 10, 60, 180, 400, 600):
        scenario.firing(minute)
    scenario.run(programs, tmp_path)


def test_one_in_five_slow_pages_within_minutes_and_resolves_after_recovery(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [HEALTHY, Traffic(60, BUSY, 0.2 * BUSY), Traffic(120, BUSY, 0.005 * BUSY)])
    scenario.firing(180)
    scenario.firing(183, BREACH)
    scenario.paging(219, BREACH)
    scenario.paging(223, BREACH, PAGE)  # it takes 40 minutes of it until the last hour is 13.44 % bad
    scenario.paging(239, BREACH, PAGE)
    scenario.paging(253)
    scenario.paging(360)
    scenario.run(programs, tmp_path)


def test_everything_slow_pages_by_the_burn_of_the_budget_too_within_ten_minutes(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [HEALTHY, Traffic(20, BUSY, BUSY)])
    scenario.firing(183, BREACH)
    scenario.firing(190, BREACH, PAGE)
    scenario.run(programs, tmp_path)


def test_a_slow_burn_is_a_ticket_and_wakes_nobody_by_its_burn(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [Traffic(240, BUSY, 0.032 * BUSY)])
    scenario.firing(100, BREACH, TICKET, LONG_TICKET)
    scenario.firing(240, BREACH, TICKET, LONG_TICKET)
    scenario.run(programs, tmp_path)


QUIET = [Traffic(60, 0.0), Traffic(1, 1.0, 1.0), Traffic(3, 0.0), Traffic(1, 1.0), Traffic(60, 0.0)]


def test_a_bad_turn_at_low_traffic_is_nothing(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, QUIET)
    for minute in (61, 62, 63, 64, 65, 67, 70, 100):
        scenario.firing(minute)
    scenario.run(programs, tmp_path)


def test_unless_one_is_said_to_be_enough(programs: Programs, tmp_path: Path):
    declared = replace(DECLARED, alerts=replace(DECLARED.alerts, min_bad_events=1))
    Scenario(declared, QUIET).paging(64, PAGE).run(programs, tmp_path)


def test_a_quiet_bad_hour_weighs_as_many_turns_as_it_has(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [Traffic(1200, 600.0), Traffic(60, 6.0, 6.0)], every_s=300.0)
    scenario.asks("round(slo:budget_error_ratio:over28d * 1e5)", 1260, ('{slo="ttft"}', 50.0))  # .050 %
    scenario.asks("round(avg_over_time(slo:error_ratio:rate5m[21h]) * 1e3)", 1260, ('{slo="ttft"}', 48.0))  # 4.8 %
    scenario.asks("round(slo:budget_left:ratio * 100)", 1260, ('{slo="ttft"}', 95.0))
    scenario.run(programs, tmp_path)


def test_hours_without_traffic_are_no_ratio_and_poison_nothing(programs: Programs, tmp_path: Path):
    some = Traffic(120, BUSY, 0.005 * BUSY)
    scenario = Scenario(DECLARED, [some, Traffic(360, 0.0), some])
    scenario.asks("slo:error_ratio:rate5m", 300)
    scenario.asks("round(slo:budget_error_ratio:over28d * 1e4)", 300, ('{slo="ttft"}', 50.0))
    scenario.asks("round(slo:budget_error_ratio:over28d * 1e4)", 600, ('{slo="ttft"}', 50.0))
    for record in ("slo:budget_error_ratio:over28d", "slo:error_ratio:rate5m", "slo:breach_evidence:nats"):
        scenario.asks(f"count_over_time(({record} != {record})[10h:1m])", 600)  # only NaN differs from itself
    for minute in (130, 300, 490, 600):
        scenario.firing(minute)
    scenario.run(programs, tmp_path)


def test_a_restart_of_the_controller_is_no_incident(programs: Programs, tmp_path: Path):
    some = Traffic(60, BUSY, 0.005 * BUSY)
    scenario = Scenario(DECLARED, [some, replace(some, restart=True), replace(some, restart=True)])
    for minute in (61, 62, 66, 122, 180):
        scenario.firing(minute)
    scenario.asks("round(slo:error_ratio:rate1h * 1e4)", 90, ('{slo="ttft"}', 50.0))
    scenario.run(programs, tmp_path)


def test_a_controller_that_is_gone_is_told_after_five_minutes_by_a_ticket(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [Traffic(30, BUSY, 0.005 * BUSY)], controller=False)
    scenario.more = [
        {"series": 'trimtab_control_info{job="trimtab"}', "values": "1+0x30 stale"},
        {"series": 'trimtab_slo_last_evaluation_timestamp_seconds{job="trimtab"}', "values": "0+60x30 stale"},
    ]
    scenario.firing(30)
    scenario.firing(35)
    scenario.firing(37, ABSENT)
    scenario.says(
        "SLOControllerAbsent",
        37,
        {"job": "trimtab", "severity": "ticket", "family": "health", "evaluator": "prometheus"},
        {
            "summary": "nobody exports the SLOs' counters as job trimtab",
            "description": "Routers serve on; only nobody counts what they do. See the alerts of the operator's guide.",
        },
    )
    scenario.run(programs, tmp_path)


def test_a_drift_of_the_table_is_a_ticket_for_as_long_as_it_stands(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [Traffic(60, BUSY, 0.005 * BUSY)])
    labels = 'job="trimtab",model="m",route="prefill_transfer"'
    scenario.more = [
        {"series": f'trimtab_table_drifted{{{labels},direction="slower"}}', "values": "0x10 1x20 0x30"},
        {"series": f'trimtab_table_drifted{{{labels},direction="faster"}}', "values": "0x60"},
    ]
    scenario.firing(8)
    scenario.firing(20, DRIFT)
    scenario.says(
        "TrimtabTableDrift",
        20,
        {
            "model": "m",
            "route": "prefill_transfer",
            "direction": "slower",
            "severity": "ticket",
            "family": "system",
            "evaluator": "prometheus",
        },
        {
            "summary": "m: latencies of prefill_transfer have become slower than the table predicts",
            "description": "Find out what has changed, mend it, or measure again: trimtab calibrate.",
        },
    )
    scenario.firing(40)
    scenario.run(programs, tmp_path)


def test_counters_that_stand_still_for_want_of_reports_are_stale_and_not_idle(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [Traffic(30, BUSY), Traffic(30, 0.0)], controller=False)
    scenario.more = [
        {"series": 'trimtab_control_info{job="trimtab"}', "values": "1+0x60"},
        {"series": 'trimtab_slo_last_evaluation_timestamp_seconds{job="trimtab"}', "values": "0+60x30 1800+0x30"},
    ]
    scenario.firing(32)
    scenario.firing(36, STALE)
    scenario.run(programs, tmp_path)


def test_no_traffic_is_a_ticket_only_where_there_was_some_at_this_time_of_yesterday(programs: Programs, tmp_path: Path):
    day = 24 * 60
    office = [Traffic(600, 0.0), Traffic(480, BUSY), Traffic(360, 0.0)]
    scenario = Scenario(DECLARED, [*office, Traffic(day, 0.0)], every_s=300.0)
    scenario.firing(300)
    scenario.firing(day + 300)
    scenario.firing(day + 700, IDLE)
    scenario.firing(day + 1200)
    scenario.run(programs, tmp_path)


def test_a_budget_by_slices_counts_a_quiet_slice_like_a_busy_one(programs: Programs, tmp_path: Path):
    declared = replace(DECLARED, slos=(replace(TTFT, budget=SLICES),))
    scenario = Scenario(declared, [Traffic(240, 600.0), Traffic(60, 60.0, 6.0), Traffic(60, 1.0, 1.0)], every_s=300.0)
    scenario.asks("sum_over_time(slo:slice:measured[6h])", 360, ('{slo="ttft"}', 60.0))  # too few turns: not measured
    scenario.asks("sum_over_time(slo:slice:bad[6h])", 360, ('{slo="ttft"}', 12.0))
    scenario.asks("slo:budget_error_ratio:over28d * 1", 360, ('{slo="ttft"}', 0.2))
    scenario.asks('count(ALERTS{alertname="SLOBurn",severity="page",alertstate="firing"})', 300, ("{}", 2.0))
    scenario.run(programs, tmp_path)


def test_what_a_page_says(programs: Programs, tmp_path: Path):
    scenario = Scenario(DECLARED, [Traffic(600, BUSY), Traffic(60, BUSY, 0.2 * BUSY)], every_s=300.0)
    common = {"severity": "page", "evaluator": "prometheus", "slo": "ttft"}
    scenario.says(
        "SLOBreach",
        620,
        {**common, "family": "breach"},
        {
            "summary": "ttft: 20% of 600 turns were bad in the last 5m, where 1 % may be",
            "description": "Promised: p99(ttft) <= 500ms. If it were kept, so many bad turns had a chance below 0.001.",
            "runbook_url": "https://runbooks.example/ttft",
        },
    )
    scenario.run(programs, tmp_path)
