"""promtool's unit tests, written by what happens: stretches of traffic in, questions about rules out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from slos.policy import Declaration
from slos.rules import rule_file
from slos.rules.promql import duration

from .programs import Programs

MINUTE_S = 60.0


@dataclass(frozen=True)
class Traffic:
    """So many minutes of so many turns a minute, of which so many are bad; `restart`: the counters begin anew."""

    minutes: int
    turns: float
    bad: float = 0.0
    restart: bool = False


@dataclass
class Scenario:
    """The counters of one SLO over time, a sample a minute, and what is asked."""

    declaration: Declaration
    traffic: list[Traffic]
    every_s: float = 30.0
    """How often rules are evaluated; promtool ignores what their groups say."""
    controller: bool = True
    """Its own metrics are there as long as the counters are; the last evaluation is always now."""
    more: list[dict[str, str]] = field(default_factory=list)
    questions: list[dict[str, object]] = field(default_factory=list)
    alerts: list[dict[str, object]] = field(default_factory=list)

    def asks(self, expr: str, minute: float, *samples: tuple[str, float]) -> Scenario:
        """`expr` has exactly these samples then, labels as promtool writes them."""
        self.questions.append(
            {
                "expr": expr,
                "eval_time": duration(minute * MINUTE_S),
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
            }
        )
        return self

    def firing(self, minute: float, *names: str) -> Scenario:
        """Exactly these alerts fire then, by name, severity and long window, as `told` joins them."""
        expr = 'count by (alertname, severity, long_window) (ALERTS{alertstate="firing"})'
        return self.asks(expr, minute, *((_labels(name), 1.0) for name in names))

    def paging(self, minute: float, *names: str) -> Scenario:
        """The same of pages alone."""
        expr = 'count by (alertname, severity, long_window) (ALERTS{alertstate="firing",severity="page"})'
        return self.asks(expr, minute, *((_labels(name), 1.0) for name in names))

    def says(self, alert: str, minute: float, labels: dict[str, str], annotations: dict[str, str]) -> Scenario:
        """The alert fires then, with exactly these labels and texts."""
        expected = {"exp_labels": labels, "exp_annotations": annotations}
        self.alerts.append({"eval_time": duration(minute * MINUTE_S), "alertname": alert, "exp_alerts": [expected]})
        return self

    def run(self, programs: Programs, folder: Path) -> None:
        """Fails with what promtool says."""
        (folder / "rules.yaml").write_text(rule_file(self.declaration).text(), encoding="utf-8")
        programs.check_rules(folder / "rules.yaml")
        test = {
            "interval": "1m",
            "input_series": [*self._series(), *self.more],
            "promql_expr_test": self.questions,
            "alert_rule_test": self.alerts,
        }
        document = {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": duration(self.every_s),
            "tests": [test],
        }
        (folder / "test.yaml").write_text(yaml.safe_dump(document, sort_keys=False, width=10_000), encoding="utf-8")
        programs.test_rules(folder / "test.yaml")

    def _series(self) -> list[dict[str, str]]:
        slo = self.declaration.slos[0].name
        rows = []
        for name, part in (("valid", "turns"), ("bad", "bad")):
            values, at = ["0"], 0.0
            for stretch in self.traffic:
                at = 0.0 if stretch.restart else at
                for _ in range(stretch.minutes):
                    at += getattr(stretch, part)
                    values.append(f"{at + 1e-6:.0f}")  # whole turns, and never one less than before
            rows.append(
                {"series": f'trimtab_slo_{name}_events_total{{job="trimtab",slo="{slo}"}}', "values": " ".join(values)}
            )
        if self.controller:
            minutes = sum(stretch.minutes for stretch in self.traffic)
            now = f"0+60x{minutes}"
            rows += [
                {"series": 'trimtab_control_info{job="trimtab"}', "values": f"1+0x{minutes}"},
                {"series": 'trimtab_slo_last_evaluation_timestamp_seconds{job="trimtab"}', "values": now},
            ]
        return rows


def told(alertname: str, severity: str, long_window: str = "") -> str:
    """An alert as `firing` names it."""
    return "/".join((alertname, severity, long_window))


def _labels(name: str) -> str:
    alertname, severity, long_window = name.split("/")
    window = f', long_window="{long_window}"' if long_window else ""
    return f'{{alertname="{alertname}", severity="{severity}"{window}}}'
