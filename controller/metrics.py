"""The control process's own metrics: a table of what they are, and a collector that reads them off the loop.

Nothing is counted here. Every value is read from where it is kept when somebody asks, so a metric cannot differ from
what the API and the page say.

The counters of SLOs begin at 0 with each process, though the counts themselves go on from the store: after a kill the
store is some seconds behind what was shown, and a counter that falls from 1,000,000 to 999,990 is taken for one that
began anew and has counted 999,990 since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from estimators.drift import Drift
from slos.counts import Count

from .loop import ControlLoop
from .safety import State, Why
from .scheduler import Scheduler


class Kind(StrEnum):
    """What Prometheus takes it for."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric. Counters are named without `_total`, which the exposition adds."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str


VALID, BAD, EXCLUDED = "trimtab_slo_valid_events", "trimtab_slo_bad_events", "trimtab_slo_excluded_events"
SLO_COUNTS = frozenset({VALID, BAD, EXCLUDED})
"""Exported by this process alone, whatever routers send."""

SPECS: tuple[Spec, ...] = (
    Spec(
        "trimtab_control_info",
        Kind.GAUGE,
        "",
        ("version", "source", "law", "mode"),
        "1; what this process is and what its numbers come from.",
    ),
    Spec(
        "trimtab_control_state",
        Kind.GAUGE,
        "",
        ("model", "state"),
        "1 for the safety state that the model's control is in, 0 for the others.",
    ),
    Spec(
        "trimtab_control_state_reason",
        Kind.GAUGE,
        "",
        ("model", "reason"),
        "1 for the reason of that state, 0 for the others.",
    ),
    Spec("trimtab_control_state_age_seconds", Kind.GAUGE, "seconds", ("model",), "How long it has been so."),
    Spec("trimtab_control_healthy", Kind.GAUGE, "", (), "0 if there was no tick for three intervals."),
    Spec("trimtab_control_tick_age_seconds", Kind.GAUGE, "seconds", (), "Time since the last tick."),
    Spec("trimtab_control_ticks", Kind.COUNTER, "", (), "Ticks."),
    Spec(
        "trimtab_control_stalls", Kind.COUNTER, "", (), "Ticks that came more than three intervals after the last one."
    ),
    Spec("trimtab_control_observer_errors", Kind.COUNTER, "", (), "Errors of what is called after ticks."),
    Spec("trimtab_price", Kind.GAUGE, "", ("model",), "w_tpot / w_ttft in force: ms of TTFT per ms x sequence."),
    Spec("trimtab_price_low", Kind.GAUGE, "", ("model",), "The lowest price that the controller may set."),
    Spec("trimtab_price_high", Kind.GAUGE, "", ("model",), "The highest price that the controller may set."),
    Spec("trimtab_price_held", Kind.GAUGE, "", ("model",), "1 if an operator set the weights to stay."),
    Spec("trimtab_price_clips", Kind.COUNTER, "", ("model",), "Prices that were outside their bounds and put inside."),
    Spec(
        "trimtab_slo_reading_seconds",
        Kind.GAUGE,
        "seconds",
        ("model", "slo", "signal"),
        "The SLO's percentile over the last ticks; absent without enough turns.",
    ),
    Spec("trimtab_slo_threshold_seconds", Kind.GAUGE, "seconds", ("slo", "signal"), "What the SLO allows."),
    Spec("trimtab_slo_objective_ratio", Kind.GAUGE, "ratio", ("slo",), "The share of turns that has to be good."),
    Spec(
        "trimtab_slo_info", Kind.GAUGE, "", ("slo", "signal", "budget"), "1; what the SLO is about and what it counts."
    ),
    Spec(
        "trimtab_slo_budget_period_seconds", Kind.GAUGE, "seconds", ("slo",), "How long the error budget has to last."
    ),
    Spec(
        "trimtab_slo_last_evaluation_timestamp_seconds",
        Kind.GAUGE,
        "seconds",
        (),
        "When turns were last taken into account: the last tick or the last report, whichever is older.",
    ),
    Spec(VALID, Kind.COUNTER, "", ("slo",), "Turns judged good or bad, over all routers, since this process began."),
    Spec(BAD, Kind.COUNTER, "", ("slo",), "Turns judged bad, over all routers, since this process began."),
    Spec(
        EXCLUDED,
        Kind.COUNTER,
        "",
        ("slo",),
        "Turns that the SLO is not about, over all routers, since this process began.",
    ),
    Spec("trimtab_infeasible", Kind.GAUGE, "", ("model",), "1 while no price can hold the model's SLOs."),
    Spec(
        "trimtab_table_residual_log",
        Kind.GAUGE,
        "",
        ("model", "route"),
        "Mean ln(measured / predicted) TTFT of the last later turns: what the table is off by.",
    ),
    Spec(
        "trimtab_table_drifted",
        Kind.GAUGE,
        "",
        ("model", "route", "direction"),
        "1 while latencies have left the table in that direction and have not come back: slower or faster.",
    ),
    Spec(
        "trimtab_table_drifts",
        Kind.COUNTER,
        "",
        ("model", "route", "direction"),
        "Alarms that latencies have left the table.",
    ),
    Spec("trimtab_control_turns", Kind.COUNTER, "", ("model",), "Turns folded."),
    Spec("trimtab_control_later_turns", Kind.COUNTER, "", ("model",), "Turns after a conversation's first."),
    Spec(
        "trimtab_control_local_turns",
        Kind.COUNTER,
        "",
        ("model",),
        "Later turns whose prompt was computed where it was decoded.",
    ),
    Spec("trimtab_control_waiting_turns", Kind.GAUGE, "", ("model",), "Turns without a first token at the last tick."),
    Spec("trimtab_publication_version", Kind.GAUGE, "", (), "Version of the publication in force."),
    Spec("trimtab_publications", Kind.COUNTER, "", (), "Publications of this process."),
    Spec(
        "trimtab_publication_jumps",
        Kind.COUNTER,
        "",
        (),
        "Publications made because a router acted on a version of an earlier process.",
    ),
    Spec("trimtab_control_policy_pollers", Kind.GAUGE, "", (), "Routers that wait for the next publication."),
    Spec(
        "trimtab_router_report_age_seconds",
        Kind.GAUGE,
        "seconds",
        ("router",),
        "Time since the router's newest report.",
    ),
    Spec("trimtab_router_silent", Kind.GAUGE, "", ("router",), "1 if the router has not reported for 15 s."),
    Spec("trimtab_router_policy_version", Kind.GAUGE, "", ("router",), "The publication that the router acts on."),
    Spec(
        "trimtab_router_pinned_ratio",
        Kind.GAUGE,
        "ratio",
        ("router",),
        "The share of later turns that the router sends local by order; absent unless pinned.",
    ),
    Spec("trimtab_control_reports", Kind.COUNTER, "", ("result",), "Reports by result: folded, repeated, refused."),
    Spec("trimtab_control_report_gaps", Kind.COUNTER, "", (), "Reports that never came, by their sequence numbers."),
    Spec(
        "trimtab_control_records_dropped",
        Kind.COUNTER,
        "",
        ("reason",),
        "Turns not folded: router_full (the router had to drop them), model_bound (too many models).",
    ),
    Spec(
        "trimtab_control_cells_dropped",
        Kind.COUNTER,
        "",
        ("model",),
        "Turns in table cells beyond the number that is followed.",
    ),
    Spec(
        "trimtab_router_metrics_unreadable",
        Kind.GAUGE,
        "",
        ("router",),
        "1 if the router's own metrics could not be read, or only in part.",
    ),
    Spec("trimtab_control_store_ok", Kind.GAUGE, "", (), "0 if the store works in memory only, or cannot be written."),
    Spec("trimtab_control_store_errors", Kind.COUNTER, "", (), "Errors of the store."),
    Spec("trimtab_control_store_pending_rows", Kind.GAUGE, "", (), "Rows that wait to be written."),
    Spec(
        "trimtab_control_store_dropped_rows",
        Kind.COUNTER,
        "",
        (),
        "Rows of history dropped because they could not be written.",
    ),
    Spec(
        "trimtab_control_job_duration_seconds",
        Kind.SUMMARY,
        "seconds",
        ("job",),
        "Runs of each job, and the time they took.",
    ),
    Spec(
        "trimtab_control_job_failures",
        Kind.COUNTER,
        "",
        ("job", "kind"),
        "Runs that failed: error, timeout, missed (the last run was still going).",
    ),
    Spec(
        "trimtab_control_job_rescues", Kind.COUNTER, "", ("job",), "Runs by the watchdog because the scheduler did not."
    ),
)

Samples = list[tuple[tuple[str, ...], float]]


class ControlCollector(Collector):
    """Reads the loop and the scheduler when it is asked."""

    def __init__(self, loop: ControlLoop, scheduler: Scheduler, version: str) -> None:
        self._loop = loop
        self._scheduler = scheduler
        self._version = version
        self._before = loop.intake.counts()
        """What earlier processes counted."""
        self.refused = 0
        """Reports that were malformed or too many; counted by whoever answers them."""

    def register(self, registry: CollectorRegistry) -> None:
        """Make them part of a registry."""
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Names only, so that registering needs no values."""
        return [_family(spec) for spec in SPECS]

    def collect(self) -> Iterator[Metric]:
        """Every metric of SPECS, with its values now."""
        values = self._values()
        for spec in SPECS:
            family = _family(spec)
            if isinstance(family, SummaryMetricFamily):
                for name, stats in self._scheduler.stats.items():
                    family.add_metric((name,), stats.runs, stats.seconds)
            else:
                for labels, value in values[spec.name]:
                    family.add_metric(labels, value)
            yield family

    def _values(self) -> Mapping[str, Samples]:
        loop, now_s = self._loop, self._loop.monotonic()
        intake, totals, store, config = loop.intake, loop.intake.totals, loop.store, loop.config
        routers, tallies, counts = intake.routers(now_s), intake.tallies, self._counts()
        guards = {model: loop.guard(model) for model in tallies}
        fits = loop.table_drift.fits()
        readings: Samples = [
            ((model, r.slo.name, r.slo.signal.value), r.value_s)
            for model, output in loop.outputs.items()
            for r in output.readings
            if r.value_s is not None
        ]
        return {
            "trimtab_control_info": [((self._version, config.source, config.law or "none", config.mode), 1.0)],
            "trimtab_control_state": [
                ((model, state.value), float(guard.safety.state is state))
                for model, guard in guards.items()
                for state in State
            ],
            "trimtab_control_state_reason": [
                ((model, why.value), float(guard.safety.reason is why))
                for model, guard in guards.items()
                for why in Why
            ],
            "trimtab_control_state_age_seconds": [
                ((model,), max(0.0, loop.wall() - loop.since_s[model])) for model in guards if model in loop.since_s
            ],
            "trimtab_control_healthy": _one(not loop.late(now_s)),
            "trimtab_control_tick_age_seconds": _one(now_s - loop.ticked_s),
            "trimtab_control_ticks": _one(loop.ticks),
            "trimtab_control_stalls": _one(loop.stalls),
            "trimtab_control_observer_errors": _one(loop.observer_errors),
            "trimtab_price": [((model,), loop.policy.weights_for(model).price) for model in tallies],
            "trimtab_price_low": [((model,), guard.bounds.low) for model, guard in guards.items()],
            "trimtab_price_high": [((model,), guard.bounds.high) for model, guard in guards.items()],
            "trimtab_price_held": [((model,), float(guard.held)) for model, guard in guards.items()],
            "trimtab_price_clips": [((model,), guard.clips) for model, guard in guards.items()],
            "trimtab_slo_reading_seconds": readings,
            "trimtab_slo_threshold_seconds": [
                ((slo.name, slo.signal.value), slo.threshold_s) for slo in config.slos if slo.threshold_s is not None
            ],
            "trimtab_slo_objective_ratio": [((slo.name,), slo.objective) for slo in config.slos],
            "trimtab_slo_info": [((slo.name, slo.signal.value, slo.budget.method.value), 1.0) for slo in config.slos],
            "trimtab_slo_budget_period_seconds": [((slo.name,), slo.budget.over_s) for slo in config.slos],
            "trimtab_slo_last_evaluation_timestamp_seconds": _one(loop.wall() - self._behind_s(now_s)),
            VALID: _by_slo(counts, "valid"),
            BAD: _by_slo(counts, "bad"),
            EXCLUDED: _by_slo(counts, "excluded"),
            "trimtab_infeasible": [
                ((model,), float(output.feasibility.relief is not None)) for model, output in loop.outputs.items()
            ],
            "trimtab_table_residual_log": [
                ((each.model, each.route.value), each.level) for each in fits if each.level is not None
            ],
            "trimtab_table_drifted": [
                (
                    (each.model, each.route.value, drift.value),
                    float(each.drifted is not None and each.drifted.drift is drift),
                )
                for each in fits
                for drift in Drift
            ],
            "trimtab_table_drifts": [
                ((each.model, each.route.value, drift.value), count) for each in fits for drift, count in each.raised
            ],
            "trimtab_control_turns": [((model,), tally.turns) for model, tally in tallies.items()],
            "trimtab_control_later_turns": [((model,), tally.later_turns) for model, tally in tallies.items()],
            "trimtab_control_local_turns": [((model,), tally.local_turns) for model, tally in tallies.items()],
            "trimtab_control_waiting_turns": [((model,), turns.waiting) for model, turns in loop.tick_turns.items()],
            "trimtab_publication_version": _one(loop.publication.version),
            "trimtab_publications": _one(loop.publications),
            "trimtab_publication_jumps": _one(loop.jumps),
            "trimtab_control_policy_pollers": _one(loop.pollers),
            "trimtab_router_report_age_seconds": [((name,), view.age_s(now_s)) for name, view in routers.items()],
            "trimtab_router_silent": [((name,), float(view.silent(now_s))) for name, view in routers.items()],
            "trimtab_router_policy_version": [((name,), view.report.policy_version) for name, view in routers.items()],
            "trimtab_router_pinned_ratio": [((name,), x) for name, x in intake.pins(now_s).items()],
            "trimtab_control_reports": [
                (("folded",), totals.reports),
                (("repeated",), totals.repeated),
                (("refused",), self.refused),
            ],
            "trimtab_control_report_gaps": _one(totals.gaps),
            "trimtab_control_records_dropped": [
                (("router_full",), totals.dropped_records),
                (("model_bound",), totals.records_of_refused_models),
            ],
            "trimtab_control_cells_dropped": [((model,), tally.cells_dropped) for model, tally in tallies.items()],
            "trimtab_router_metrics_unreadable": [],  # filled in where they are read: controller/exposition.py
            "trimtab_control_store_ok": _one(not store.problem),
            "trimtab_control_store_errors": _one(store.errors),
            "trimtab_control_store_pending_rows": _one(store.pending),
            "trimtab_control_store_dropped_rows": _one(store.dropped_rows),
            "trimtab_control_job_failures": [
                ((name, kind), count)
                for name, stats in self._scheduler.stats.items()
                for kind, count in (("error", stats.errors), ("timeout", stats.timeouts), ("missed", stats.missed))
            ],
            "trimtab_control_job_rescues": [((name,), stats.rescued) for name, stats in self._scheduler.stats.items()],
        }

    def _counts(self) -> Mapping[str, Count]:
        """Since this process began; of every declared SLO, so that its first bad turn is an increase."""
        counts = self._loop.intake.counts()
        for name, count in counts.items():
            if count.valid < self._before.get(name, count).valid:
                del self._before[name]  # it is counted anew, for it means something else now
        names = dict.fromkeys([*(slo.name for slo in self._loop.config.slos), *counts])
        return {name: counts.get(name, Count()).since(self._before.get(name, Count())) for name in names}

    def _behind_s(self, now_s: float) -> float:
        """For how long no tick or no report has come, if there ever was one."""
        ages = [view.age_s(now_s) for view in self._loop.intake.routers(now_s).values()]
        return max(now_s - self._loop.ticked_s, min(ages, default=now_s - self._loop.started_s))


def _one(value: float) -> Samples:
    return [((), float(value))]


def _by_slo(counts: Mapping[str, Count], part: str) -> Samples:
    return [((name,), getattr(count, part)) for name, count in counts.items()]


def _family(spec: Spec) -> GaugeMetricFamily | CounterMetricFamily | SummaryMetricFamily:
    if spec.kind is Kind.GAUGE:
        return GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
    if spec.kind is Kind.COUNTER:
        return CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
    return SummaryMetricFamily(spec.name, spec.help, labels=spec.labels)
