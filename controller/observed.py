"""What scraping and alerting show: plain values for the page and the API, and metrics for a registry.

    registry.register(EngineCollector(scraper)); registry.register(AlertCollector(alerting))

Names and help are in `SPECS`; label values come from configuration and enums only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from estimators.histogram import BucketQuantile
from slos.alerts import State

from .alerting import Alerting
from .engines import EngineMetric, EngineReading
from .scrape import Scraper


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric: name, labels, help."""

    name: str
    labels: tuple[str, ...]
    help: str

    def gauge(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)

    def counter(self) -> CounterMetricFamily:
        return CounterMetricFamily(self.name, self.help, labels=self.labels)


ENGINE_P99 = Spec(
    "trimtab_engine_p99_seconds",
    ("model", "signal", "bound"),
    "P99 of the engines' histograms: the edges of its bucket (low, high) and a guess inside (point).",
)
ENGINE_SAMPLES = Spec("trimtab_engine_samples", ("model", "signal"), "Values behind the engines' P99.")
ENGINE_SCRAPES = Spec("trimtab_engine_scrapes", ("node", "result"), "Pages asked for, by result: ok or failed.")
ENGINE_MISSING = Spec(
    "trimtab_engine_metric_missing", ("node", "metric"), "1 if the node's page lacks a metric that is read of it."
)
ENGINE_KV = Spec("trimtab_engine_kv_cache_usage_ratio", ("node",), "Share of KV memory in use, by the engine itself.")
ALERT_STATE = Spec("trimtab_alert_state", ("slo", "state"), "1 for the state that the SLO's alert is in.")
ALERT_TURNS = Spec("trimtab_alert_window_turns", ("slo", "verdict"), "Turns within the alert's window by verdict.")
NOTICES = Spec("trimtab_notices", ("result",), "Webhook posts by what became of them.")
NOTICES_WAITING = Spec("trimtab_notices_waiting", (), "Notices that wait to be delivered.")
SPECS = (
    ENGINE_P99,
    ENGINE_SAMPLES,
    ENGINE_SCRAPES,
    ENGINE_MISSING,
    ENGINE_KV,
    ALERT_STATE,
    ALERT_TURNS,
    NOTICES,
    NOTICES_WAITING,
)


def signals(reading: EngineReading, q: float = 0.99) -> dict[str, BucketQuantile | None]:
    """A model's engine latencies at `q`, by the names under which they are shown."""
    ttft = reading.ttft(q)
    return {"ttft_local": ttft.local, "ttft_transferred": ttft.transferred, "tpot": reading.tpot(q)}


def engine_status(scraper: Scraper) -> dict[str, object]:
    """By model: P99s with bounds (None: unknown), and what nodes do not tell or tell under an older name."""
    status: dict[str, object] = {}
    for model, reading in scraper.readings().items():
        nodes = [scraper.last[node.name] for node in scraper.nodes if node.model == model]
        status[model] = {
            "p99": {signal: _plain(quantile) for signal, quantile in signals(reading).items()},
            "alarms": [{"node": alarm.node, "what": alarm.what} for alarm in reading.alarms],
            "older_names": {
                scrape.node: {metric.value: name for metric, name in scrape.older_names.items()}
                for scrape in nodes
                if scrape.older_names
            },
        }
    return status


def alert_status(alerting: Alerting) -> dict[str, object]:
    """By SLO: state, what the last evaluation said, its counts, and since when it fires (epoch seconds)."""
    firing = alerting.firing()
    return {
        name: {
            "state": alert.state.value,
            "evidence": alert.evidence.value,
            "flapping": alert.flapping,
            "valid": alerting.window(name).valid,
            "bad": alerting.window(name).bad,
            "allowed_share": alerting.slos[name].epsilon,
            "firing_since_s": firing.get(name),
        }
        for name, alert in alerting.alerts().items()
    }


class EngineCollector:
    """The engines' metrics, read off a scraper when asked."""

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper

    def collect(self) -> Iterator[Metric]:
        """For `CollectorRegistry.register`."""
        p99, samples, missing, kv = (spec.gauge() for spec in (ENGINE_P99, ENGINE_SAMPLES, ENGINE_MISSING, ENGINE_KV))
        for model, reading in self._scraper.readings().items():
            for signal, quantile in signals(reading).items():
                samples.add_metric((model, signal), 0 if quantile is None else quantile.n)
                if quantile is not None:
                    bounds = {"low": quantile.low, "point": quantile.value, "high": quantile.high}
                    for bound, value in bounds.items():
                        p99.add_metric((model, signal, bound), inf if value is None else value)
        for scrape in self._scraper.last.values():
            for metric in scrape.missing:
                missing.add_metric((scrape.node, metric.value), 1)
            if EngineMetric.KV_USAGE in scrape.gauges:
                kv.add_metric((scrape.node,), scrape.gauges[EngineMetric.KV_USAGE])
        scrapes = ENGINE_SCRAPES.counter()
        for (node, result), count in self._scraper.results.items():
            scrapes.add_metric((node, result), count)
        yield from (p99, samples, missing, kv, scrapes)


class AlertCollector:
    """The alerts' metrics, read off when asked."""

    def __init__(self, alerting: Alerting) -> None:
        self._alerting = alerting

    def collect(self) -> Iterator[Metric]:
        """For `CollectorRegistry.register`."""
        states, turns = ALERT_STATE.gauge(), ALERT_TURNS.gauge()
        for name, alert in self._alerting.alerts().items():
            for state in State:
                states.add_metric((name, state.value), float(alert.state is state))
            window = self._alerting.window(name)
            turns.add_metric((name, "good"), window.valid - window.bad)
            turns.add_metric((name, "bad"), window.bad)
        yield from (states, turns)
        if self._alerting.delivery is not None:
            notices, waiting = NOTICES.counter(), NOTICES_WAITING.gauge()
            for result, count in self._alerting.delivery.results.items():
                notices.add_metric((result.value,), count)
            waiting.add_metric((), self._alerting.delivery.waiting)
            yield from (notices, waiting)


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
