"""Rules out of declarations. What Prometheus itself makes of them is in tests/prom."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.metrics import SPECS
from estimators.binomial import tail
from slos.allowance import Budget, Method
from slos.objective import Signal, Slo
from slos.policy import AlertPolicy, Burn, Declaration, Severity
from slos.rules import RuleOptions, rule_file
from slos.rules.alerting import nats, promise
from slos.rules.promql import duration, number

TTFT = Slo("ttft", Signal.TTFT, 0.99, 0.5)
DECLARED = Declaration(
    (TTFT,), "chat", (("team", "assistants"),), AlertPolicy(runbook="https://runbooks.example/{slo}")
)


def rules(declaration: Declaration, options: RuleOptions | None = None) -> list[dict]:
    groups = yaml.safe_load(rule_file(declaration, options).text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def named(found: list[dict], alert: str) -> list[dict]:
    return [rule for rule in found if rule.get("alert") == alert]


def test_durations_and_numbers_are_as_prometheus_reads_them():
    assert [duration(s) for s in (0.0015, 5.0, 90.0, 300.0, 5400.0, 86_400.0, 28 * 86_400.0)] == [
        "2ms",
        "5s",
        "1m30s",
        "5m",
        "1h30m",
        "1d",
        "28d",
    ]
    assert number(13.44 * 0.01) == "0.1344" and number(100) == "100"


def test_a_promise_reads_as_the_file_has_it():
    assert promise(TTFT) == "p99(ttft) <= 500ms"
    assert promise(replace(TTFT, objective=0.999, threshold_s=1.5)) == "p99.9(ttft) <= 1s500ms"
    assert promise(Slo("answers", Signal.SUCCESS, 0.995, None)) == "success >= 99.5%"


def test_burn_alerts_have_the_factors_of_28_days_and_an_inside_budget_is_never_told():
    burns = named(rules(DECLARED), "SLOBurn")
    assert [rule["labels"]["burn_factor"] for rule in burns] == ["13.44", "5.6", "2.8", "1"]
    assert [rule["labels"]["severity"] for rule in burns] == ["page", "page", "ticket", "ticket"]
    assert [rule["for"] for rule in burns] == ["1m", "5m", "15m", "1h"]
    assert {rule["keep_firing_for"] for rule in burns} == {"5m"}
    assert "> 0.1344\nand" in burns[0]["expr"]
    assert all(rule["expr"].endswith(">= 10") for rule in burns)


def test_a_factor_that_can_never_be_reached_is_left_out_with_the_reason():
    file = rule_file(replace(DECLARED, slos=(replace(TTFT, objective=0.92),)))
    assert [str(each) for each in file.left_out] == [
        "ttft: no burn alert over 1h: 13.44 times the allowed 8 % is all there is or more, so it could never fire"
    ]
    assert f"# Left out: {file.left_out[0]}." in file.text()
    assert len(named(rules(replace(DECLARED, slos=(replace(TTFT, objective=0.92),))), "SLOBurn")) == 3


def test_no_label_holds_a_number_that_moves_and_no_rule_asks_for_a_bucket():
    for rule in rules(DECLARED):
        assert not any("{{" in value for value in rule.get("labels", {}).values())
        assert "le=" not in rule["expr"] and "_bucket" not in rule["expr"]


def test_alerts_carry_the_declared_labels_the_runbook_and_the_dashboard():
    found = rules(DECLARED, RuleOptions(dashboard="https://grafana.example/d/{slo}"))
    for rule in [*named(found, "SLOBurn"), *named(found, "SLOBreach")]:
        assert rule["labels"].items() >= {"team": "assistants", "service": "chat", "slo": "ttft"}.items()
        assert rule["annotations"]["runbook_url"] == "https://runbooks.example/ttft"
        assert rule["annotations"]["dashboard_url"] == "https://grafana.example/d/ttft"
    assert named(found, "SLONoTraffic")[0]["annotations"]["runbook_url"] == "https://runbooks.example/{{ $labels.slo }}"
    assert "runbook_url" not in named(found, "SLOEvaluationStale")[0]["annotations"], "it is of no one SLO"


def test_a_declared_label_cannot_take_the_place_of_one_of_ours():
    found = rules(replace(DECLARED, labels=(("severity", "none"), ("slo", "x"))))
    assert {rule["labels"]["slo"] for rule in named(found, "SLOBurn")} == {"ttft"}
    assert {rule["labels"]["severity"] for rule in named(found, "SLOBreach")} == {"page"}


def test_absence_of_traffic_is_a_ticket():
    assert {
        rule["labels"]["severity"] for rule in rules(DECLARED) if rule.get("labels", {}).get("family") == "health"
    } == {"ticket"}


def test_a_table_that_drifted_is_a_ticket_whose_series_the_controller_exports():
    (rule,) = named(rules(DECLARED), "TrimtabTableDrift")
    assert (rule["labels"]["severity"], rule["labels"]["family"]) == ("ticket", "system")
    (spec,) = [spec for spec in SPECS if f"{spec.name}{{" in rule["expr"]]
    assert spec.labels == ("model", "route", "direction")


def test_no_two_recording_rules_give_the_same_series():
    slices = Budget(method=Method.SLICES)
    slos = (
        TTFT,
        replace(TTFT, name="b"),
        replace(TTFT, name="c", budget=slices),
        replace(TTFT, name="d", budget=slices),
    )
    seen = [
        (rule["record"], tuple(sorted(rule["labels"].items())))
        for rule in rules(replace(DECLARED, slos=slos))
        if "record" in rule
    ]
    assert len(seen) == len(set(seen))


def test_a_budget_by_slices_counts_slices():
    budget = Budget(method=Method.SLICES, good_slices=0.98, slice_s=600.0, min_samples=70)
    found = rules(replace(DECLARED, slos=(replace(TTFT, budget=budget),)))
    recorded = {rule["record"]: rule["expr"] for rule in found if "record" in rule}
    assert recorded["slo:slice:measured"].endswith("[10m])) >= bool 70")
    assert recorded["slo:budget_left:ratio"].endswith("/ 0.02")
    assert "slo:bad_events:every5m" not in recorded, "no budget by requests"
    page = named(found, "SLOBurn")[0]
    assert page["labels"]["short_window"] == "20m", "two slices at least"
    assert "slo:slice:bad" in page["expr"] and "> 0.2688\nand" in page["expr"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"job": ""}, "--job is empty"),
        ({"match": (("le", "x"), ("le", "y"))}, "named twice"),
        ({"match": (("slo", "x"),)}, "set by the rules"),
        ({"match": (("job", "x"),)}, "no label to match on"),
        ({"match": (("a-b", "x"),)}, "no label to match on"),
        ({"interval_s": 600.0}, "not more often"),
    ],
)
def test_options_that_prometheus_would_misread_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        RuleOptions(**options)


def test_a_window_shorter_than_two_evaluations_and_an_empty_declaration_are_refused():
    short = replace(DECLARED, alerts=AlertPolicy(burns=(Burn(Severity.PAGE, 0.02, 3600.0, 40.0),)))
    with pytest.raises(ValueError, match="less than two evaluations"):
        rule_file(short)
    with pytest.raises(ValueError, match="no SLO is declared"):
        rule_file(replace(DECLARED, slos=()))


@cache
def evidence_rule(objective: float) -> str:
    found = rules(replace(DECLARED, slos=(replace(TTFT, objective=objective),)))
    return next(rule["expr"] for rule in found if rule.get("record") == "slo:breach_evidence:nats")


def evidence(valid: int, bad: int, objective: float) -> float:
    """The recording rule itself, read as Python."""
    expr, selected = evidence_rule(objective), '{slo="ttft",service="chat"}'
    for name, value in (("slo:valid_events:increase5m", valid), ("slo:error_ratio:rate5m", bad / valid)):
        expr = expr.replace(name + selected, repr(value))
    return float(eval(expr, {"ln": math.log, "clamp": lambda x, low, high: min(max(x, low), high)}))


@given(st.data(), st.integers(50, 3000), st.sampled_from([0.9, 0.95, 0.99, 0.999]), st.sampled_from([0.99, 0.999]))
def test_the_breach_alert_is_never_surer_than_the_exact_test(data, valid, objective, confidence):
    allowed = 1.0 - objective
    bad = data.draw(st.integers(0, min(valid, int(4 * allowed * valid) + 12)))
    exact = tail(bad, valid, allowed)
    surprise = -math.log(exact) if exact > 1e-300 else math.inf  # below that a float says no more of it
    if bad > allowed * valid:
        assert evidence(valid, bad, objective) <= surprise * (1 + 1e-9) + 1e-6
    else:
        assert evidence(valid, bad, objective) == pytest.approx(0.0, abs=1e-9)


def test_the_breach_alert_comes_a_few_bad_turns_after_the_exact_test():
    for valid, exact, bound in ((100, 6, 7), (600, 16, 18), (3000, 49, 53)):
        assert next(bad for bad in range(valid) if tail(bad, valid, 0.01) < 0.001) == exact
        assert next(bad for bad in range(valid) if evidence(valid, bad, 0.99) > nats(0.999)) == bound
