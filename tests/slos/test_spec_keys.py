"""Budgets, goodput, own deadlines, presets, labels and alerts in an SLO file; and the advice on them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import slos
import trimtab
from slos import advice
from slos.advice import turns_to_prove
from slos.allowance import Budget, Method
from slos.objective import Condition, Match, Signal, Slo
from slos.policy import BURNS, AlertPolicy, Breach, Burn, Declaration, NoData, Severity
from slos.presets import PRESETS
from slos.problem import CODES, Problem
from slos.spec import check_slos, load_slos

ROOT = Path(__file__).parents[2]
FULL = (ROOT / "examples" / "slo-full.yaml").read_text("utf-8")
DAY_S = 86_400.0


def declared(body: str, top: str = "") -> Declaration:
    """A file with one SLO, whose keys besides its name are `body`."""
    return load_slos(_file(body, top), "slo.yaml")


def _file(body: str, top: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"version: 1\nslos:\n  - name: x\n{lines}{top}"


def found(body: str, top: str = "", rps: float | None = None) -> list[Problem]:
    return [each for each in check_slos(_file(body, top), "slo.yaml", rps)[1] if each.code not in ("W501", "W305")]


P99 = "objective: p99(ttft) <= 500ms"


def test_the_example_of_every_key_means_what_it_says():
    declaration = load_slos(FULL, "slo-full.yaml")
    usual = Budget(28 * DAY_S, Method.REQUESTS, 0.99, 300.0, 100)
    gold = Match(classes=("gold", "silver"))
    assert declaration.slos == (
        Slo("chat-ttft", Signal.TTFT, 0.99, 0.5, Match(("llama-*",), streaming=True), budget=usual),
        Slo("chat-ttft-warm", Signal.TTFT, 0.95, 0.25, Match(turn_min=2)),
        Slo("chat-tpot", Signal.TPOT, 0.95, 0.05),
        Slo("answers", Signal.SUCCESS, 0.995, None),
        Slo("own-ttft", Signal.TTFT, 0.99, None, Match(asked=True)),
        Slo(
            "good-turns",
            Signal.GOODPUT,
            0.97,
            None,
            budget=replace(usual, method=Method.SLICES),
            conditions=(Condition(Signal.TTFT, 0.5), Condition(Signal.TPOT, 0.05), Condition(Signal.SUCCESS)),
        ),
        Slo("mlperf-llama2-70b-interactive-ttft", Signal.TTFT, 0.99, 0.45, gold),
        Slo("mlperf-llama2-70b-interactive-tpot", Signal.TPOT, 0.99, 0.04, gold),
    )
    assert declaration.slos[0].description == "the first words of an answer"
    assert declaration.slos[0].labels == (("area", "latency"),)
    assert (declaration.service, declaration.rps) == ("chat", 2.0)
    assert declaration.labels == (("team", "assistants"), ("tier", "gold"))
    assert declaration.alerts == AlertPolicy(
        "https://runbooks.example/slo/{slo}", Breach(), BURNS[:3], 10, NoData(900.0, Severity.TICKET)
    )


def test_a_file_that_says_nothing_of_budgets_and_alerts_has_the_usual_ones():
    declaration = declared(P99)
    assert declaration.slos[0].budget == Budget()
    assert declaration.alerts == AlertPolicy()
    assert declaration.labels == () and declaration.rps is None


def test_defaults_hold_for_every_slo_and_an_slo_may_differ():
    top = "  - {name: y, objective: p99(tpot) <= 50ms}\n"
    top += "defaults: {slice: 10m, budget: {over: 7d, method: slices, percent: 99.5}, min_samples: 50}\n"
    first, second = declared(f"{P99}\nbudget: {{method: requests, slice: 5m}}", top).slos
    assert second.budget == Budget(7 * DAY_S, Method.SLICES, 0.995, 600.0, 50)
    assert first.budget == Budget(7 * DAY_S, Method.REQUESTS, 0.99, 300.0, 50)


@pytest.mark.parametrize(
    ("body", "match", "threshold_s"),
    [
        ("objective: p99(ttft) <= asked", Match(asked=True), None),
        ("signal: ttft\npercent: 99\nmax: asked", Match(asked=True), None),
        ("signal: ttft\npercent: 99\nmatch: {asked: true}", Match(asked=True), None),
        ("objective: p99(ttft) <= 2s\nmatch: {asked: false}", Match(asked=False), 2.0),
        ("objective: p99(e2e) <= 2s\nmatch: {asked: true}", Match(asked=True), 2.0),
    ],
)
def test_a_limit_may_be_the_one_that_the_request_asks_for(body: str, match: Match, threshold_s):
    (slo,) = declared(body).slos
    assert (slo.match, slo.threshold_s) == (match, threshold_s)


def test_a_preset_is_two_slos_and_may_have_a_name():
    text = "version: 1\nslos:\n  - {name: chat, preset: mlperf/deepseek-r1-server}\n"
    assert load_slos(text, "x").slos == (
        Slo("chat-ttft", Signal.TTFT, 0.99, 2.0),
        Slo("chat-tpot", Signal.TPOT, 0.99, 0.08),
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_used_without_a_name(name: str):
    slos = load_slos(f"version: 1\nslos:\n  - preset: {name}\n", "x").slos
    assert [slo.signal for slo in slos] == [Signal.TTFT, Signal.TPOT]


@pytest.mark.parametrize(
    ("body", "top", "place", "code", "words"),
    [
        (P99, "labels: {slo: x}\n", (5, 10), "E111", "slo_name"),
        (P99, "labels: {__x: y}\n", (5, 10), "E111", "x_name"),
        (P99, "labels: {a-b: y}\n", (5, 10), "E111", "write a_b"),
        (P99, "labels: {a: [y]}\n", (5, 10), "E104", "assistants"),
        (P99, "traffic: {rps: fast}\n", (5, 11), "E204", "turns a second"),
        (P99, "traffic: {rps: 1e3}\n", (5, 11), "E204", "turns a second"),
        (P99, "defaults: {slice: 7m}\n", (5, 12), "E205", "write 450s"),
        (P99, "defaults: {slice: 45s}\n", (5, 12), "E205", "write 1m"),
        (P99, "defaults: {slice: 10s}\n", (5, 12), "E205", "from 30s to 1d"),
        (P99, "defaults: {slice: 5}\n", (5, 12), "E203", "5m"),
        (P99, "defaults: {budget: {over: 12h}}\n", (5, 21), "E205", "from 1d to 90d"),
        (P99, "defaults: {budget: {over: 25h}, slice: 1d}\n", (5, 21), "E205", "multiple of"),
        (P99, "defaults: {budget: {over: 1M}}\n", (5, 21), "E203", "s, m, h, d, w"),
        (P99, "defaults: {min_samples: 0}\n", (5, 12), "E104", "from 1"),
        (P99, "defaults: {min_samples: 1e2}\n", (5, 12), "E104", "whole number"),
        (f"{P99}\nbudget: {{percent: 99}}", "", (5, 14), "E210", "method: slices"),
        (f"{P99}\nbudget: {{method: slice}}", "", (5, 14), "E104", "did you mean slices?"),
        (f"{P99}\nbudget: {{method: slices, percent: 100}}", "", (5, 30), "E204", "99"),
        (f"{P99}\nmatch: {{class: [a b]}}", "", (5, 13), "E105", "gold"),
        (f"{P99}\nmatch: {{tenant: ''}}", "", (5, 13), "E104", "assistants"),
        (f"{P99}\nmatch: {{asked: yes}}", "", (5, 13), "E104", "true or false"),
        (f"{P99}\nmatch: {{asked: true}}", "", (4, 5), "E210", "p99(ttft) <= asked"),
        ("objective: p99(ttft) <= asked\nmatch: {asked: false}", "", (5, 5), "E210", "asked: false"),
        ("objective: p99(e2e) <= asked", "", (4, 5), "E201", "no request carries"),
        ('all_of: ["ttft <= 500ms", "tpot <= asked"]\npercent: 97', "", (4, 5), "E210", "ttft <= asked"),
        ('all_of: ["p99(ttft) <= 500ms"]\npercent: 97', "", (4, 14), "E201", "a single turn has no percentile"),
        ('all_of: ["ttft < 500ms"]\npercent: 97', "", (4, 14), "E201", "write <="),
        ('all_of: ["ttft <= 500"]\npercent: 97', "", (4, 14), "E203", "500ms"),
        ('all_of: ["ttft <= 1s", "ttft <= 2s"]\npercent: 97', "", (4, 28), "E210", "second condition on ttft"),
        ("all_of: [success >= 99%]\npercent: 97", "", (4, 14), "E201", "success alone"),
        ("all_of: [success, fast]\npercent: 97", "", (4, 23), "E201", "condition"),
        ("all_of: [success]", "", (3, 5), "E103", "percent"),
        ("all_of: [success]\npercent: 97\nmax: 2s", "", (6, 5), "E210", "remove it"),
        ("signal: goodput\npercent: 97", "", (3, 5), "E103", "all_of"),
        ("preset: mlperf/llama2-70b", "", (4, 5), "E211", "did you mean mlperf/llama2-70b-"),
        (f"preset: mlperf/llama2-70b-server\n{P99}", "", (4, 5), "E210", "keep one form"),
        (P99, "alerts: {runbook: wiki}\n", (5, 10), "E104", "https://"),
        (P99, "alerts: {runbook: 'https://h/{name}'}\n", (5, 10), "E104", "{slo}"),
        (P99, "alerts: {runbook: 'https://u:p@h/'}\n", (5, 10), "E104", "without a password"),
        (P99, "alerts: {breach: {severity: call}}\n", (5, 19), "E104", "page"),
        (P99, "alerts: {breach: {confidence: 99}}\n", (5, 19), "E204", "0.999"),
        (P99, "alerts: {breach: {confidence: 1.0}}\n", (5, 19), "E204", "0.999"),
        (P99, "alerts: {breach: {for: 60}}\n", (5, 19), "E203", "no unit"),
        (P99, "alerts: {min_bad_events: ten}\n", (5, 10), "E104", "10"),
        (P99, "alerts: {no_data: {after: 15}}\n", (5, 20), "E203", "no unit"),
        (P99, "alerts: {burn: []}\n", (5, 10), "E104", "one or more"),
        (P99, "alerts: {burn: [{severity: page, spend: 2, long: 1h, short: 5m}]}\n", (5, 34), "E203", "write 2%"),
        (P99, "alerts: {burn: [{severity: page, spend: 0%, long: 1h, short: 5m}]}\n", (5, 34), "E204", "above 0"),
        (P99, "alerts: {burn: [{severity: page, spend: 2%, long: 1h}]}\n", (5, 17), "E103", "short"),
        (P99, "alerts: {burn: [{severity: page, spend: 2%, long: 1h, short: 1h}]}\n", (5, 55), "E205", "write 5m"),
        (
            P99,
            "alerts: {burn: [{severity: page, spend: 2%, long: 28d, short: 1h}]}\n",
            (5, 45),
            "E205",
            "shorter than 28d",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_to_write(body, top, place, code, words):
    (problem,) = found(body, top)
    assert ((problem.line, problem.column), problem.code) == (place, code), str(problem)
    assert words in f"{problem.message}; {problem.fix}"


def test_what_differs_between_yaml_readers_is_read_as_it_is_written():
    """A confidence of 1e-3, a rate of 12:30 and a switch that is on are numbers and booleans to some."""
    for top in (
        "alerts: {breach: {confidence: 1e-3}}\n",
        "traffic: {rps: 12:30}\n",
        "alerts: {min_bad_events: 0b1010}\n",
    ):
        assert [each.code[0] for each in found(P99, top)] == ["E"]


# -- burn rules that never or always fire ------------------------------------------------------------------------------


def test_a_written_burn_rule_that_can_never_fire_is_refused_and_the_fix_works():
    top = "alerts:\n  burn:\n    - {severity: page, spend: 2%, long: 1h, short: 5m}\n"
    (problem,) = found("objective: p90(ttft) <= 500ms", top)
    assert (problem.code, problem.line, problem.column) == ("E301", 7, 24)
    assert "can never fire for x" in problem.message and "10 times" in problem.message
    spend = problem.fix.removeprefix("write ").split(",")[0]
    longer = problem.fix.split(", or ")[1]
    assert found("objective: p90(ttft) <= 500ms", top.replace("spend: 2%", spend)) == []
    assert found("objective: p90(ttft) <= 500ms", top.replace("long: 1h", longer)) == []


def test_of_the_rules_that_are_there_anyhow_those_that_cannot_fire_are_no_mistake():
    assert found("objective: p50(ttft) <= 500ms") == []


def test_by_slices_a_rule_is_measured_against_the_share_of_slices():
    top = "alerts:\n  burn:\n    - {severity: page, spend: 2%, long: 1h, short: 5m}\n"
    body = "objective: p90(ttft) <= 500ms\nbudget: {method: slices, percent: "
    assert found(body + "99}", top) == []
    assert [each.code for each in found(body + "90}", top)] == ["E301"]


def test_a_burn_rule_that_would_fire_inside_the_budget_is_advised_against_and_taken_as_one():
    top = "alerts:\n  burn:\n    - {severity: ticket, spend: 10%, long: 3d, short: 6h}\n"
    (problem,) = found(P99, top)
    assert problem.code == "W302" and "0.93" in problem.message and "10.7%" in problem.fix
    assert declared(P99, top).alerts.burns[0].factor(28 * DAY_S) == 1.0


# -- advice ----------------------------------------------------------------------------------------------------------


def codes(body: str, top: str = "", rps: float | None = None) -> list[str]:
    return [each.code for each in check_slos(_file(body, top), "slo.yaml", rps)[1]]


def test_advice_does_not_keep_a_file_from_being_used():
    declaration, problems = check_slos(_file(P99), "slo.yaml")
    assert declaration is not None
    assert [each.code for each in problems] == ["W501"]
    assert all(each.advice for each in problems)


@pytest.mark.parametrize(
    ("rps", "code"),
    [(0.3, ["W303"]), (0.34, ["W304"]), (0.99, ["W304"]), (1.0, [])],
)
def test_with_the_expected_traffic_a_slice_that_holds_too_few_turns_is_named(rps: float, code: list[str]):
    assert [each.code for each in found(P99, rps=rps)] == code
    assert [each.code for each in found(P99, f"traffic: {{rps: {rps}}}\n")] == code
    assert found(P99) == []


def test_the_rate_of_the_command_line_comes_before_that_of_the_file():
    assert found(P99, "traffic: {rps: 0.1}\n", rps=100.0) == []


@pytest.mark.parametrize(("objective", "turns"), [(0.99, 299), (0.95, 59), (0.5, 5), (0.999, 2995)])
def test_as_many_good_turns_prove_an_objective(objective: float, turns: int):
    assert turns_to_prove(objective) == turns
    assert objective**turns <= 0.05 < objective ** (turns - 1)


def test_a_threshold_that_the_engines_histograms_do_not_have_is_named_with_its_neighbours():
    (problem,) = [e for e in check_slos(_file("objective: p99(ttft) <= 450ms"), "x")[1] if e.code == "W305"]
    assert "500ms or 750ms" in problem.fix or "250ms or 500ms" in problem.fix
    assert "W305" not in codes(P99)
    assert "W305" not in codes("objective: p99(ttft) <= asked")


def test_the_bounds_are_those_that_an_engine_shows():
    from emulator.server.metrics import SPECS

    shown = {spec.name: spec.bounds for spec in SPECS}
    assert shown["time_to_first_token_seconds"] == advice.TTFT_BOUNDS_S
    assert shown["request_time_per_output_token_seconds"] == advice.TPOT_BOUNDS_S
    assert shown["e2e_request_latency_seconds"] == advice.E2E_BOUNDS_S


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("p50(ttft) <= 2s", True),
        ("p50(ttft) <= 1s", True),
        ("p50(ttft) <= 500ms", False),
        ("p99.9(ttft) <= 2s", False),
        ("p50(e2e) <= 2s", False),
    ],
)
def test_a_lower_percentile_with_no_tighter_a_limit_says_nothing_new(other: str, told: bool):
    top = f"  - {{name: y, objective: {other}}}\n"
    assert ("W206" in codes("objective: p99(ttft) <= 1s", top)) is told
    elsewhere = top.replace("}\n", ", match: {turn: 1}}\n")
    assert "W206" not in codes("objective: p99(ttft) <= 1s", elsewhere)


def test_the_advice_on_the_runbook_can_be_followed_as_it_is_written():
    (problem,) = check_slos(_file(P99), "x")[1]
    assert codes(P99, problem.fix.removeprefix("write ") + "\n") == []


def test_every_code_that_is_given_is_explained():
    sources = [*Path(slos.__path__[0]).rglob("*.py"), *Path(trimtab.__path__[0]).glob("cli_slo.py")]
    used = {code for path in sources for code in re.findall(r'"([EW]\d{3})"', path.read_text("utf-8"))}
    assert used == set(CODES)
    page = (ROOT / "docs" / "reference" / "slo-file.md").read_text("utf-8")
    assert all(f"| {code} | {about} |" in page for code, about in CODES.items())


def test_burn_rules_are_read_in_their_order():
    top = "alerts:\n  burn:\n    - {severity: page, spend: 2.5%, long: 2h, short: 10m, for: 90s}\n"
    assert declared(P99, top).alerts.burns == (Burn(Severity.PAGE, 0.025, 7200.0, 600.0, 90.0),)
