"""One Prometheus exposition of all processes: this one's registry, and what each router sent of its own, with a label
`process`.

Families of the same name and type are joined, so that none appears twice; a sample's own `process` label becomes
`exported_process`, as Prometheus would have it. What does not fit (another type under the same name, the same sample
twice, text that is no exposition) is left out and told in `trimtab_router_metrics_unreadable`. Routers that have fallen
silent are left out too: their gauges would look alive.

What SLOs count is exported by this process alone, over all routers. A router that exports a counter of that name is not
believed, or a sum over processes would count its turns twice.

Whoever asks for OpenMetrics gets it, exemplars included; others get Prometheus' older text format, which has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from .metrics import SLO_COUNTS

UNREADABLE = "trimtab_router_metrics_unreadable"
_SUFFIXES = {"counter": "_total", "info": "_info"}
"""What a family's name has in the text that it lacks in here."""
_OPENMETRICS_ENDS = "# EOF"


def render(own: Iterable[Metric], routers: Mapping[str, str], accept: str = "") -> tuple[bytes, str]:
    """The text for `/metrics` and its content type, by what the Accept header asks for; `own` are this process's
    families, `routers` the others' expositions by name."""
    encode, content_type = choose_encoder(accept)
    return encode(_Fixed(merged(own, routers))), content_type


def merged(own: Iterable[Metric], routers: Mapping[str, str]) -> list[Metric]:
    """Families, each name in the text once."""
    families: dict[str, Metric] = {}
    for metric in own:
        _join(families, metric, metric.samples)
    unreadable = families.get(UNREADABLE)
    for process, text in routers.items():
        whole = _read(families, process, text)
        if unreadable is not None:
            unreadable.samples.append(Sample(UNREADABLE, {"router": process}, 0.0 if whole else 1.0))
    return list(families.values())


def _read(families: dict[str, Metric], process: str, text: str) -> bool:
    """Add one router's families; False if some of them could not be."""
    openmetrics = text.rstrip().endswith(_OPENMETRICS_ENDS)
    try:
        parsed = list((read_openmetrics if openmetrics else text_string_to_metric_families)(text))
    except Exception:  # the parser raises whatever it trips over
        return False
    whole = True
    for metric in parsed:
        if not metric.samples:
            continue  # a declaration alone, or one that its samples do not follow
        if metric.name in SLO_COUNTS:
            whole = False
            continue
        seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        samples = []
        for sample in metric.samples:
            labels = dict(sample.labels)
            if "process" in labels:
                labels["exported_process"] = labels["process"]
            labels["process"] = process
            key = (sample.name, tuple(sorted(labels.items())))
            if key in seen:
                whole = False
                continue
            seen.add(key)
            samples.append(Sample(sample.name, labels, sample.value, exemplar=sample.exemplar))
        whole = _join(families, metric, samples) and whole
    return whole


def _join(families: dict[str, Metric], metric: Metric, samples: Iterable[Sample]) -> bool:
    if metric.name.endswith("_created"):
        return True  # when a counter began: nobody needs it, and it would collide with the counter's own
    shown = metric.name + _SUFFIXES.get(metric.type, "")
    family = families.get(shown)
    if family is None:
        family = families[shown] = Metric(metric.name, metric.documentation, metric.type)
    elif family.type != metric.type:
        return False
    family.samples.extend(sample for sample in samples if not sample.name.endswith("_created"))
    return True


class _Fixed(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
