"""The Prometheus rules of the shipped example, and of a file with a bit of everything."""

from __future__ import annotations

from pathlib import Path

from slos.allowance import Budget, Method
from slos.files import load_slo_file
from slos.objective import Match, Signal, Slo
from slos.policy import AlertPolicy, Breach, Burn, Declaration, NoData, Severity
from slos.rules import RuleOptions, rule_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "slo.yaml"
WEEK_S = 7 * 86_400.0
MIXED = Declaration(
    (
        Slo("warm", Signal.TTFT, 0.99, 0.25, Match(turn_min=2), budget=Budget(method=Method.SLICES)),
        Slo("whole", Signal.E2E, 0.95, 20.0, budget=Budget(WEEK_S, Method.SLICES, 0.97, 600.0, 60)),
        Slo("answers", Signal.SUCCESS, 0.999, None),
        Slo("loose", Signal.TPOT, 0.9, 0.04, budget=Budget(WEEK_S)),
    ),
    "chat",
    (("team", "assistants"),),
    AlertPolicy(
        "https://runbooks.example/slo/{slo}",
        Breach(Severity.TICKET, 0.99, 120.0, 600.0),
        (Burn(Severity.PAGE, 0.07, 3600.0, 300.0), Burn(Severity.TICKET, 0.1, 5 * 86_400.0, 43_200.0, 3600.0)),
        5,
        NoData(1800.0),
    ),
    "mixed.yaml",
)


def test_the_rules_of_the_example(golden):
    golden("slo-rules.yaml", rule_file(load_slo_file(EXAMPLE)).text())


def test_the_rules_of_slices_other_periods_and_an_alert_that_cannot_fire(golden):
    options = RuleOptions("router", (("cluster", "eu"),), "https://grafana.example/d/slo?var-slo={slo}")
    golden("slo-rules-mixed.yaml", rule_file(MIXED, options).text())
