"""An engine's /metrics page, read into a `NodeScrape`.

Pages are vLLM's (0.32), with the names of older releases in `NAMES`. Series of one page that differ only in
`engine` are added up. A page that serves one model is taken whatever it calls it; of several models, only the
node's own.

An older `time_per_output_token_seconds` counts tokens and not requests: its P99 has the right unit and another
meaning, so readers are told under which name a metric came.

Shell only by its import: the parser of prometheus_client.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from estimators.histogram import Snapshot

from .engines import HISTOGRAMS, EngineMetric, EngineNode, NodeScrape, needed

NAMES: dict[EngineMetric, tuple[str, ...]] = {
    EngineMetric.TTFT: ("vllm:time_to_first_token_seconds",),
    EngineMetric.TPOT: ("vllm:request_time_per_output_token_seconds", "vllm:time_per_output_token_seconds"),
    EngineMetric.KV_USAGE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    EngineMetric.RUNNING: ("vllm:num_requests_running",),
    EngineMetric.WAITING: ("vllm:num_requests_waiting",),
}
"""Today's name first. The first that a page shows is taken."""
_STARTED = "process_start_time_seconds"
_PREFIXES = (*(name for names in NAMES.values() for name in names), _STARTED)

Series = Mapping[str, list[Sample]]


def read_page(node: EngineNode, text: str) -> NodeScrape:
    """What a page says of `node`. Raises ValueError or LookupError if it is no Prometheus text."""
    series = _series(node, text)
    started = [sample.value for sample in series.get(_STARTED, ())]
    histograms: dict[EngineMetric, Snapshot] = {}
    gauges: dict[EngineMetric, float] = {}
    older: dict[EngineMetric, str] = {}
    for metric, names in NAMES.items():
        for name in names:
            if metric in HISTOGRAMS:
                snapshot = _snapshot(series, name, started)
                if snapshot is None:
                    continue
                histograms[metric] = snapshot
            else:
                values = [sample.value for sample in series.get(name, ())]
                if not values or not all(math.isfinite(value) for value in values):
                    continue
                gauges[metric] = max(values) if metric is EngineMetric.KV_USAGE else sum(values)
            if name != names[0]:
                older[metric] = name
            break
    missing = tuple(metric for metric in needed(node.role) if metric not in histograms and metric not in gauges)
    return NodeScrape(node.name, histograms, gauges, missing, older)


def _series(node: EngineNode, text: str) -> Series:
    # Only the lines that are asked for: a page has hundreds, and a new kind of line in another metric must not
    # cost these.
    wanted = (line for line in text.splitlines() if line.removeprefix("# TYPE ").startswith(_PREFIXES))
    series: dict[str, list[Sample]] = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(wanted) + "\n"):
        for sample in family.samples:
            series[sample.name].append(sample)
    models = {
        sample.labels["model_name"] for rows in series.values() for sample in rows if "model_name" in sample.labels
    }
    if len(models) < 2:
        return series
    return {
        name: [sample for sample in rows if sample.labels.get("model_name", node.model) == node.model]
        for name, rows in series.items()
    }


def _snapshot(series: Series, name: str, started: Sequence[float]) -> Snapshot | None:
    buckets: dict[float, float] = defaultdict(float)
    for sample in series.get(f"{name}_bucket", ()):
        buckets[float(sample.labels.get("le", "nan"))] += sample.value
    # Several processes behind one page have no common start; then the histogram's own will do.
    began = started or [sample.value for sample in series.get(f"{name}_created", ())]
    try:
        snapshot = Snapshot.of(buckets, max(began, default=None))
    except ValueError:
        return None
    return snapshot if len(snapshot.edges) > 1 else None
