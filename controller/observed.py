"""What scraping and alerting show: plain values for the page and the API, and metrics for a registry.

    registry.register(EngineCollector(scraper)); registry.register(AlertCollector(alerting))

Names and help are in `SPECS`; label values come from configuration and enums only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from estimators.histogram import BucketQuantile
from slos.alerts import State
from slos.incidents import Lane
from slos.objective import Slo

from .alerting import Alerting
from .engines import EngineMetric, EngineReading
from .judging import SHOWN_BURNS_S, span
from .metrics import Kind, Spec
from .scrape import Scraper
from .status import number
from .tick import ModelOutput

ENGINE_P99 = Spec(
    "trimtab_engine_p99_seconds",
    Kind.GAUGE,
    "seconds",
    ("model", "signal", "bound"),
    "P99 of the engines' histograms: the edges of its bucket (low, high) and a guess inside (point).",
)
ENGINE_SAMPLES = Spec(
    "trimtab_engine_samples", Kind.GAUGE, "", ("model", "signal"), "Values behind the engines' P99; 0 where unknown."
)
ENGINE_SLO = Spec(
    "trimtab_engine_slo_reading_seconds",
    Kind.GAUGE,
    "seconds",
    ("model", "slo", "signal", "bound"),
    "The engines' view of trimtab_slo_reading_seconds: the SLO's percentile over all turns, by low, point and high.",
)
ENGINE_SCRAPES = Spec(
    "trimtab_engine_scrapes", Kind.COUNTER, "", ("node", "result"), "Pages asked for, by result: ok or failed."
)
ENGINE_MISSING = Spec(
    "trimtab_engine_metric_missing",
    Kind.GAUGE,
    "",
    ("node", "metric"),
    "1 if the node's page lacks a metric that is read of it.",
)
ENGINE_KV = Spec(
    "trimtab_engine_kv_cache_usage_ratio", Kind.GAUGE, "ratio", ("node",), "Share of KV memory in use, by the engine."
)
ALERT_STATE = Spec(
    "trimtab_alert_state", Kind.GAUGE, "", ("slo", "state"), "1 for the state that the SLO's alert is in."
)
ALERT_TURNS = Spec(
    "trimtab_alert_window_turns", Kind.GAUGE, "", ("slo", "verdict"), "Turns in the alert's window: good or bad."
)
BUDGET_LEFT = Spec(
    "trimtab_slo_budget_left_ratio",
    Kind.GAUGE,
    "ratio",
    ("slo",),
    "Share of the error budget that is left, below 0 when overspent; absent until something was counted.",
)
BURN = Spec(
    "trimtab_slo_burn_ratio",
    Kind.GAUGE,
    "ratio",
    ("slo", "window"),
    "How many times faster than allowed the budget was spent over the window; absent without turns.",
)
INCIDENTS = Spec("trimtab_incidents", Kind.GAUGE, "", ("lane",), "Open incidents: page, ticket, or told once.")
NOTICES = Spec("trimtab_notices", Kind.COUNTER, "", ("sink", "result"), "Posts to receivers by what became of them.")
NOTICES_WAITING = Spec("trimtab_notices_waiting", Kind.GAUGE, "", ("sink",), "What waits to be delivered.")
ENGINE_SPECS = (ENGINE_P99, ENGINE_SAMPLES, ENGINE_SLO, ENGINE_SCRAPES, ENGINE_MISSING, ENGINE_KV)
ALERT_SPECS = (ALERT_STATE, ALERT_TURNS, BUDGET_LEFT, BURN, INCIDENTS, NOTICES, NOTICES_WAITING)
SPECS = (*ENGINE_SPECS, *ALERT_SPECS)


def signals(reading: EngineReading, q: float = 0.99) -> dict[str, BucketQuantile | None]:
    """A model's engine latencies at `q`, by the names under which they are shown."""
    ttft = reading.ttft(q)
    return {"ttft_local": ttft.local, "ttft_transferred": ttft.transferred, "tpot": reading.tpot(q)}


def engine_status(scraper: Scraper, outputs: Mapping[str, ModelOutput]) -> dict[str, object]:
    """By model: P99s with bounds (None: unknown), each driving SLO's percentile by the engines' clocks and by the
    routers', and what nodes do not tell or tell under an older name. `outputs` are those of the last tick."""
    status: dict[str, object] = {}
    beside = scraper.slo_quantiles()
    for model, reading in scraper.readings().items():
        nodes = [scraper.last[node.name] for node in scraper.nodes if node.model == model]
        status[model] = {
            "p99": {signal: _plain(quantile) for signal, quantile in signals(reading).items()},
            "slos": [
                {
                    "slo": slo.name,
                    "signal": slo.signal.value,
                    "percentile": slo.objective,
                    "engine": _plain(quantile),
                    "router_s": _router_s(outputs.get(model), slo),
                }
                for slo, quantile in beside.get(model, ())
            ],
            "alarms": [{"node": alarm.node, "what": alarm.what} for alarm in reading.alarms],
            "older_names": {
                scrape.node: {metric.value: name for metric, name in scrape.older_names.items()}
                for scrape in nodes
                if scrape.older_names
            },
        }
    return status


def alert_status(alerting: Alerting) -> dict[str, object]:
    """By SLO: the breach machine's state, what the last evaluation said, its counts, and since when an incident about
    it is open (epoch seconds)."""
    found: dict[str, object] = {}
    for name, alert in alerting.alerts().items():
        standing = alerting.standing(name)
        open_since = [one.starts_s for one in alerting.incidents if one.about == name]
        found[name] = {
            "state": alert.state.value,
            "evidence": alert.evidence.value,
            "flapping": any(one.flapping for one in alerting.incidents if one.about == name),
            "valid": 0 if standing is None else standing.window.valid,
            "bad": 0 if standing is None else standing.window.bad,
            "allowed_share": None if standing is None else standing.slo.epsilon,
            "firing_since_s": min(open_since, default=None),
        }
    return found


class EngineCollector(Collector):
    """The engines' metrics, read off a scraper when asked."""

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper

    def describe(self) -> list[Metric]:
        """Names only, so that registering needs no values."""
        return [_family(spec, ()) for spec in ENGINE_SPECS]

    def collect(self) -> Iterator[Metric]:
        """Every metric of ENGINE_SPECS, with its values now."""
        by_model = {model: signals(reading) for model, reading in self._scraper.readings().items()}
        p99s = [(model, signal, p99) for model, rows in by_model.items() for signal, p99 in rows.items()]
        bounds = [((model, signal, bound), value) for model, signal, p99 in p99s for bound, value in _bounds(p99)]
        slos = [
            ((model, slo.name, slo.signal.value, bound), value)
            for model, rows in self._scraper.slo_quantiles().items()
            for slo, quantile in rows
            for bound, value in _bounds(quantile)
        ]
        pages = self._scraper.last.values()
        kv = [((p.node,), p.gauges[EngineMetric.KV_USAGE]) for p in pages if EngineMetric.KV_USAGE in p.gauges]
        yield _family(ENGINE_P99, bounds)
        yield _family(ENGINE_SAMPLES, [((m, signal), 0 if p99 is None else p99.n) for m, signal, p99 in p99s])
        yield _family(ENGINE_SLO, slos)
        yield _family(ENGINE_SCRAPES, self._scraper.results.items())
        yield _family(ENGINE_MISSING, [((page.node, metric.value), 1) for page in pages for metric in page.missing])
        yield _family(ENGINE_KV, kv)


class AlertCollector(Collector):
    """The alerts' metrics, read off when asked."""

    def __init__(self, alerting: Alerting) -> None:
        self._alerting = alerting

    def describe(self) -> list[Metric]:
        """Names only, so that registering needs no values."""
        return [_family(spec, ()) for spec in ALERT_SPECS]

    def collect(self) -> Iterator[Metric]:
        """Every metric of ALERT_SPECS, with its values now."""
        alerts, delivery, peers = self._alerting.alerts(), self._alerting.delivery, self._alerting.alertmanagers
        found = {name: self._alerting.standing(name) for name in alerts}
        standings = {name: standing for name, standing in found.items() if standing is not None}
        windows = {name: standing.window for name, standing in standings.items()}
        yield _family(
            ALERT_STATE,
            [((name, state.value), alert.state is state) for name, alert in alerts.items() for state in State],
        )
        yield _family(
            ALERT_TURNS,
            [((name, "good"), window.valid - window.bad) for name, window in windows.items()]
            + [((name, "bad"), window.bad) for name, window in windows.items()],
        )
        left = [((name,), one.budget.left) for name, one in standings.items() if one.budget.known]
        rates = [(name, span(s), one.burns[s].rate) for name, one in standings.items() for s in SHOWN_BURNS_S]
        yield _family(BUDGET_LEFT, left)
        yield _family(BURN, [((name, window), rate) for name, window, rate in rates if rate is not None])
        lanes = [one.lane for one in self._alerting.incidents]
        yield _family(INCIDENTS, [((lane.value,), lanes.count(lane)) for lane in Lane])
        sinks = {"webhook": delivery, "alertmanager": peers}
        told = [(name, result, n) for name, sink in sinks.items() if sink for result, n in sink.results.items()]
        yield _family(NOTICES, [((name, result.value), n) for name, result, n in told])
        yield _family(NOTICES_WAITING, [((name,), sink.waiting) for name, sink in sinks.items() if sink is not None])


def _family(spec: Spec, values: Iterable[tuple[tuple[str, ...], float]]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(spec.name, spec.help, labels=spec.labels)
    for labels, value in values:
        family.add_metric(labels, float(value))
    return family


def _bounds(quantile: BucketQuantile | None) -> list[tuple[str, float]]:
    if quantile is None:
        return []
    return [
        ("low", quantile.low),
        ("point", quantile.value),
        ("high", inf if quantile.high is None else quantile.high),
    ]


def _router_s(output: ModelOutput | None, slo: Slo) -> float | str | None:
    readings = () if output is None else output.readings
    return number(next((reading.value_s for reading in readings if reading.slo == slo), None))


def _plain(quantile: BucketQuantile | None) -> dict[str, float | int | bool | None] | None:
    if quantile is None:
        return None
    return {
        "value_s": quantile.value,
        "low_s": quantile.low,
        "high_s": quantile.high,
        "at_least": quantile.at_least,
        "n": quantile.n,
    }
