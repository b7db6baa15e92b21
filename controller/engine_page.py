"""An engine's /metrics page, read into a `NodeScrape`.

Pages are vLLM's (0.32), with the names of older releases in `NAMES`. Each series keeps its own counts: data parallel
ranks differ in the label `engine`. Gauges of one page are added up, except KV usage, of which the fullest counts. A
page that serves one model is taken whatever it calls it; of several models, only the node's own.

Nothing is guessed where a page is damaged. A page that does not end where its format says is refused whole. A
histogram is taken if its counts are numbers, reach +Inf and agree with its `_count`; a metric that only some of the
page's engines show is told as missing.

Prometheus' text format is asked for. OpenMetrics is read too: exemplars and timestamps are passed over, and names
begin with `vllm_` as prometheus_client writes them there.

Shell only by its import: the parser of prometheus_client.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from estimators.histogram import Snapshot

from .engines import HISTOGRAMS, EngineMetric, EngineNode, NodeScrape, Series, needed

NAMES: dict[EngineMetric, tuple[str, ...]] = {
    EngineMetric.TTFT: ("vllm:time_to_first_token_seconds",),
    EngineMetric.TPOT: ("vllm:request_time_per_output_token_seconds", "vllm:time_per_output_token_seconds"),
    EngineMetric.KV_USAGE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    EngineMetric.RUNNING: ("vllm:num_requests_running",),
    EngineMetric.WAITING: ("vllm:num_requests_waiting",),
}
"""Today's name first; the first that a page shows is taken. When the others were shown (vLLM's sources and issues, as
of November 2026; only 0.32 has been run):

    gpu_cache_usage_perc             until 0.9.1 alone, 0.9.2 beside kv_cache_usage_perc, then hidden, gone in 0.12
    time_per_output_token_seconds    until 0.10.1 alone, from 0.10.2 beside request_time_per_output_token_seconds,
                                     0.12 hidden, gone after it

The older TPOT counts steps and not requests: its P99 has the right unit and another meaning. So readers are told under
which name a metric came. `inter_token_latency_seconds` is that same histogram under a new name and came together with
the per-request one, so no release needs it here. The 0.8 series and older (V0 engine) have no label `engine`.
"""
STARTED = "process_start_time_seconds"
MAX_LINES = 20_000
"""Of the metrics that are read: 55 for an engine of vLLM 0.32. More would hold up the ticks."""
_OURS = [name for names in NAMES.values() for name in names]
_PREFIXES = (*_OURS, *(name.replace(":", "_") for name in _OURS), STARTED)


class PageError(ValueError):
    """A page that cannot be used; the message says why, without quoting it."""


def read_page(node: EngineNode, text: str, openmetrics: bool = False) -> NodeScrape:
    """What a page says of `node`. Raises PageError, or ValueError or LookupError of the parser."""
    if text and not text.endswith("# EOF\n" if openmetrics else "\n"):
        raise PageError("page cut off")
    samples = _samples(node, text)
    engines = {sample.labels["engine"] for rows in samples.values() for sample in rows if "engine" in sample.labels}
    started = max((sample.value for sample in samples.get(STARTED, ()) if math.isfinite(sample.value)), default=None)
    histograms: dict[EngineMetric, Mapping[Series, Snapshot]] = {}
    gauges: dict[EngineMetric, float] = {}
    older: dict[EngineMetric, str] = {}
    partial: set[EngineMetric] = set()
    for metric, names in NAMES.items():
        for name in names:
            if metric in HISTOGRAMS:
                found = _histograms(samples, name, started)
                shown = {dict(series).get("engine") for series in found}
                if found:
                    histograms[metric] = found
            else:
                rows = [sample for sample in samples.get(name, ()) if math.isfinite(sample.value)]
                shown = {sample.labels.get("engine") for sample in rows}
                if rows:
                    values = [sample.value for sample in rows]
                    gauges[metric] = max(values) if metric is EngineMetric.KV_USAGE else sum(values)
            if shown:
                if shown != {None} and engines - shown:
                    partial.add(metric)
                if name != names[0]:
                    older[metric] = name
                break
    missing = tuple(
        metric
        for metric in needed(node.role)
        if metric in partial or (metric not in histograms and metric not in gauges)
    )
    return NodeScrape(node.name, histograms, gauges, missing, older, _models(samples))


def _samples(node: EngineNode, text: str) -> Mapping[str, list[Sample]]:
    # Only the lines that are asked for: a page has hundreds, and a new kind of line in another metric must not
    # cost these. Lines end with \n only: what else str.splitlines() takes for an end may stand in a label.
    wanted = [line for line in text.split("\n") if line.startswith(_PREFIXES)]
    if len(wanted) > MAX_LINES:
        raise PageError("page too large")
    samples: dict[str, list[Sample]] = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(wanted) + "\n"):
        for sample in family.samples:
            samples[sample.name.replace("vllm_", "vllm:", 1)].append(sample)
    if len(_models(samples)) < 2:
        return samples
    return {
        name: [sample for sample in rows if sample.labels.get("model_name", node.model) == node.model]
        for name, rows in samples.items()
    }


def _models(samples: Mapping[str, Iterable[Sample]]) -> tuple[str, ...]:
    rows = (sample for found in samples.values() for sample in found)
    return tuple(sorted({sample.labels["model_name"] for sample in rows if "model_name" in sample.labels}))


def _histograms(samples: Mapping[str, list[Sample]], name: str, started: float | None) -> dict[Series, Snapshot]:
    """The whole ones, by series."""
    buckets: dict[Series, dict[float, float]] = defaultdict(dict)
    twice: set[Series] = set()
    for sample in samples.get(f"{name}_bucket", ()):
        series, edge = _series(sample), float(sample.labels.get("le", "nan"))
        if edge in buckets[series]:
            twice.add(series)
        buckets[series][edge] = sample.value
    counts = {_series(sample): sample.value for sample in samples.get(f"{name}_count", ())}
    # Several processes behind one page have no common start; then the histogram's own will do.
    created = {_series(sample): sample.value for sample in samples.get(f"{name}_created", ())}
    found: dict[Series, Snapshot] = {}
    for series, rows in buckets.items():
        began = created.get(series) if started is None else started
        try:
            snapshot = Snapshot.of(rows, began if began is not None and math.isfinite(began) else None)
        except ValueError:
            continue
        whole = counts.get(series, snapshot.counts[-1]) == snapshot.counts[-1]
        if whole and len(snapshot.edges) > 1 and series not in twice:
            found[series] = snapshot
    return found


def _series(sample: Sample) -> Series:
    return tuple(sorted((name, value) for name, value in sample.labels.items() if name not in ("le", "model_name")))
