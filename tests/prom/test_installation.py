"""A real Prometheus scrapes a real installation on an emulated fleet, and tells a real Alertmanager.

The windows are seconds instead of hours, and everything else is what `trimtab slo rules` writes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest
import yaml

from slos.allowance import REQUESTS_28D, Budget, Method
from slos.objective import Signal, Slo
from slos.policy import AlertPolicy, Breach, Burn, Declaration, Severity
from slos.rules import RuleOptions, rule_file
from trimtab.installation import Installation, install

from .programs import Alertmanager, Programs, Prometheus, alertmanager, get, prometheus, until
from .receiver import Receiver
from .traffic import Traffic

PROFILE = "llama-3.1-8b-h100"
METRICS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
RATE_HZ = 8.0

BUDGET = Budget(over_s=120.0, slice_s=10.0, min_samples=5)
DECLARED = Declaration(
    (
        Slo("answers", Signal.SUCCESS, 0.9, None, budget=BUDGET),
        Slo("by-slices", Signal.SUCCESS, 0.9, None, budget=replace(BUDGET, method=Method.SLICES, good_slices=0.5)),
        Slo("first-token", Signal.TTFT, 0.9, 0.45, budget=BUDGET),
        Slo("pace", Signal.TPOT, 0.9, 0.33, budget=BUDGET),
        Slo("whole", Signal.E2E, 0.9, 7.5, budget=BUDGET),
    ),
    "chat",
    alerts=AlertPolicy(
        runbook="https://runbooks.example/{slo}",
        breach=Breach(Severity.TICKET, for_s=1.0, clear_s=2.0),
        burns=(Burn(Severity.PAGE, 0.5, 12.0, 4.0),),
        min_bad_events=5,
    ),
)
SERVED = tuple(replace(slo, budget=REQUESTS_28D) for slo in DECLARED.slos)
"""The same promises for the installation, which takes no budget of two minutes. Counters know nothing of budgets."""
OPTIONS = RuleOptions("trimtab", interval_s=1.0, period_interval_s=5.0, keep_firing_s=2.0)


@dataclass(frozen=True)
class Stack:
    """All that runs."""

    installation: Installation
    traffic: Traffic
    prometheus: Prometheus
    alertmanager: Alertmanager
    receiver: Receiver
    rules: list[dict[str, Any]]

    def some(self, expr: str, within_s: float) -> list[tuple[dict[str, str], float]]:
        """The samples of an expression, as soon as there are some."""
        return until(lambda: self.prometheus.query(expr), within_s, f"no result of {expr}")

    def exemplars(self, name: str) -> list[dict[str, Any]]:
        """Those of the last minutes."""
        now = time()
        series = self.prometheus.ask("query_exemplars", query=name, start=f"{now - 300}", end=f"{now}")
        return [exemplar for each in series for exemplar in each["exemplars"]]

    def node(self, action: str, name: str) -> None:
        asyncio.run(self.installation.node(action, name))


@pytest.fixture(scope="module")
def stack(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    text = rule_file(DECLARED, OPTIONS).text()
    (folder / "rules.yaml").write_text(text, encoding="utf-8")
    programs.check_rules(folder / "rules.yaml")
    installation = asyncio.run(install(folder, PROFILE, "1P_1D", SERVED, speed=4.0))
    try:
        admin = installation.admin_url.removeprefix("http://")
        with (
            Receiver() as receiver,
            alertmanager(programs, folder / "alertmanager", _routing(receiver.url)) as told,
            prometheus(programs, folder / "prometheus", _scraping(folder / "rules.yaml", admin, told.url)) as scraper,
            Traffic(installation.router_url, installation.model, RATE_HZ, "prom") as traffic,
        ):
            rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
            yield Stack(installation, traffic, scraper, told, receiver, rules)
    finally:
        installation.stop()


def _scraping(rules: Path, admin: str, alertmanager_url: str) -> dict[str, object]:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}],
        },
        "scrape_configs": [{"job_name": "trimtab", "static_configs": [{"targets": [admin]}]}],
    }


def _routing(hook: str) -> dict[str, object]:
    times = {"group_wait": "2s", "group_interval": "1s", "repeat_interval": "1h"}
    return {
        "route": {"receiver": "hook", "group_by": ["service", "severity"], **times},
        "receivers": [{"name": "hook", "webhook_configs": [{"url": hook, "send_resolved": True}]}],
    }


def test_the_counters_are_there_from_the_start_and_once(stack: Stack):
    names = {slo.name for slo in DECLARED.slos}
    for part in ("valid", "bad", "excluded"):
        counter = f"trimtab_slo_{part}_events_total"
        found = stack.some(counter, 20.0)
        assert {labels["slo"] for labels, _ in found} == names
        assert len(found) == len(names), "one process exports them, for all"
    until(lambda: stack.prometheus.value('trimtab_slo_valid_events_total{slo="answers"}') > 20, 30.0, "no turn counted")
    for name in ("trimtab_slo_objective_ratio", "trimtab_slo_info", "trimtab_slo_budget_period_seconds"):
        assert {labels["slo"] for labels, _ in stack.prometheus.query(name)} == names
    age = "time() - trimtab_slo_last_evaluation_timestamp_seconds"
    assert stack.prometheus.value(age) < 30.0


def test_thresholds_are_bucket_bounds(stack: Stack):
    bounds = {"trimtab_ttft_seconds": "0.45", "trimtab_tpot_seconds": "0.33", "trimtab_e2e_seconds": "7.5"}
    for name, bound in bounds.items():
        stack.some(f'{name}_bucket{{le="{bound}"}} > 0', 20.0)
    assert {value for _, value in stack.prometheus.query("trimtab_slo_threshold_unbound")} == {0.0}


def test_every_recording_rule_has_a_result(stack: Stack):
    records = {rule["record"] for rule in stack.rules if "record" in rule}
    assert len(records) > 12
    for record in sorted(records):
        stack.some(record, 45.0)
    for slo in DECLARED.slos:
        stack.some(f'slo:budget_left:ratio{{slo="{slo.name}"}}', 30.0)
    groups = stack.prometheus.ask("rules")["groups"]
    wrong = [(rule["name"], rule["lastError"]) for group in groups for rule in group["rules"] if rule.get("lastError")]
    assert not wrong


def test_exemplars_lead_to_requests(stack: Stack):
    for name in ("trimtab_ttft_seconds", "trimtab_tpot_seconds", "trimtab_e2e_seconds"):
        exemplars = until(partial(stack.exemplars, f"{name}_bucket"), 20.0, f"no exemplar of {name}")
        assert all(set(e["labels"]) == {"request_id"} for e in exemplars)
        assert all(re.fullmatch(r"prom-\d+", e["labels"]["request_id"]) for e in exemplars)


def test_nothing_fires_while_all_is_well(stack: Stack):
    assert set(stack.traffic.statuses) == {200}
    assert stack.prometheus.query('ALERTS{alertstate="firing"}') == []
    assert stack.receiver.posts == [] and stack.alertmanager.alerts() == []


def test_an_outage_is_told_once_in_one_group_and_resolved_after_recovery(stack: Stack):
    began = monotonic()
    stack.node("kill", "D0")
    until(lambda: stack.receiver.of("SLOBurn", "firing"), 60.0, f"no page; answers {stack.traffic.statuses}")
    paged_s = monotonic() - began
    shown = stack.alertmanager.alerts("alertname=SLOBurn", "slo=answers")
    assert [alert["labels"]["severity"] for alert in shown] == ["page"]
    assert shown[0]["annotations"]["runbook_url"] == "https://runbooks.example/answers"
    until(lambda: stack.alertmanager.alerts("alertname=SLOBreach", "slo=answers"), 30.0, "no breach")
    stack.node("revive", "D0")
    began = monotonic()
    until(lambda: not stack.alertmanager.alerts(), 60.0, "it does not resolve")
    until(lambda: _open(stack.receiver) == set(), 20.0, f"not resolved: {_open(stack.receiver)}")
    print(f"paged after {paged_s:.0f} s, resolved after {monotonic() - began:.0f} s")
    posts = stack.receiver.of("SLOBurn", "firing")
    assert {len(post["groupLabels"]) for post in posts} == {2}
    both = {"answers", "by-slices"}
    assert any({a["labels"]["slo"] for a in post["alerts"]} == both for post in stack.receiver.posts), "one group"
    began_at = {
        (a["labels"]["alertname"], a["labels"]["slo"], a["startsAt"])
        for post in stack.receiver.posts
        for a in post["alerts"]
    }
    assert len(began_at) == len({each[:2] for each in began_at}), "each alert began once"


def _open(receiver: Receiver) -> set[tuple[str, str]]:
    """Alerts that were told to fire and not that they are over."""
    state: dict[tuple[str, str], str] = {}
    for post in list(receiver.posts):
        for alert in post["alerts"]:
            state[(alert["labels"]["alertname"], alert["labels"].get("slo", ""))] = alert["status"]
    return {key for key, status in state.items() if status == "firing"}


# -- names -------------------------------------------------------------------------------------------------------------

OBSERVING = "trimtab_observe_"
"""Of those that only observe mode has (tests/controller_shell/test_observe.py)."""
SOMETIMES = {
    "trimtab_kv_events_live",
    "trimtab_kv_events",
    "trimtab_kv_event_gaps",
    "trimtab_kv_event_lag_seconds",
    "trimtab_kv_blocks",  # with models.NAME.kv_events
    "trimtab_leg_failures_total",
    "trimtab_residency_checks",
    "trimtab_foreign_tokens_per_second",
    "trimtab_others_kv_tokens",
    "trimtab_breaker_openings_total",
    "trimtab_moves_total",
    "trimtab_passed_through_total",
}
"""Documented, and without a sample where nothing of the kind has happened or is configured."""


def documented() -> dict[str, tuple[str, str]]:
    """Type and meaning by name, from the tables of the reference."""
    row = re.compile(r"^\| `(trimtab_\w+)` \| (\w+) \| .* \| (.*) \|$")
    lines = METRICS.read_text(encoding="utf-8").splitlines()
    return {found[1]: (found[2], found[3]) for line in lines if (found := row.match(line))}


def test_what_is_exported_is_what_the_reference_says(stack: Stack):
    exported = {}
    for name, told in stack.prometheus.ask("metadata").items():
        if name.startswith("trimtab_"):
            suffix = "_total" if told[0]["type"] == "counter" and not name.endswith("_total") else ""
            exported[name + suffix] = (told[0]["type"], told[0]["help"])
    reference = documented()
    assert exported.keys() - reference.keys() == set(), "not in docs/reference/metrics.md"
    missing = {name for name in reference.keys() - exported.keys() - SOMETIMES if not name.startswith(OBSERVING)}
    assert missing == set(), "documented, and not exported"
    for name, told in exported.items():
        assert told == reference[name], name


def test_the_page_is_openmetrics_only_where_that_is_asked_for(stack: Stack):
    status, body = get(f"{stack.installation.admin_url}/metrics")
    assert status == 200 and b"# EOF" not in body and b"prom-" not in body, "the older format has no exemplars"
