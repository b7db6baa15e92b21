"""What the engines' own histograms say of each model: P99 TTFT and TPOT with bucket bounds, and, for
`control.signal: engine`, the readings that the law runs on.

    TPOT           D's request_time_per_output_token_seconds
    TTFT local     D's time_to_first_token_seconds
    TTFT transfer  P's quantile + D's quantile, an upper bound: the two need not be slow in the same turn
    TTFT           the worse of the two, where both occur

A replica counts as a D. The sum is at least the quantile of the sum as long as the two are not slow in turns
of their own, and in any case at least its (1 - 2 epsilon)-quantile.

What no histogram can say: which of D's values belong to local turns (the legs of transferred turns are fast
and hide them), which turn of a conversation it was (an SLO on later turns is judged on all), whether the answer
streamed or had 8 tokens, and what the router itself adds. So the router's clock is the signal by default.

A metric that is not there is an alarm and never a zero. A node that cannot be read is left out once its window
has run empty; without any P that can be read, TTFT is unknown and not "local only".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from estimators.histogram import SCRAPES, BucketQuantile, Histogram, HistogramWindow, Snapshot, merged
from router.turn import Role
from slos.objective import Slo
from slos.reduce import SloReading, driving

MIN_SAMPLES = 20
"""As for the router's own windows (`cells.py`)."""


class EngineMetric(StrEnum):
    """What is read of an engine, by today's name without the prefix `vllm:`."""

    TTFT = "time_to_first_token_seconds"
    TPOT = "request_time_per_output_token_seconds"
    KV_USAGE = "kv_cache_usage_perc"
    RUNNING = "num_requests_running"
    WAITING = "num_requests_waiting"


HISTOGRAMS = (EngineMetric.TTFT, EngineMetric.TPOT)

Series = tuple[tuple[str, str], ...]
"""One series of a metric on one page: its labels but `le` and `model_name`; data parallel ranks differ in `engine`."""


def needed(role: Role) -> tuple[EngineMetric, ...]:
    """What a node must show; a P answers with one token, so it has no TPOT."""
    return tuple(metric for metric in EngineMetric if role is not Role.PREFILL or metric is not EngineMetric.TPOT)


@dataclass(frozen=True, slots=True)
class EngineNode:
    """Where an engine is scraped."""

    name: str
    role: Role
    url: str
    model: str
    key: str = field(default="", repr=False)
    """What it asks for, if it was started with --api-key."""


@dataclass(frozen=True, slots=True)
class NodeScrape:
    """One node's page in one round."""

    node: str
    histograms: Mapping[EngineMetric, Mapping[Series, Snapshot]] = field(default_factory=dict)
    gauges: Mapping[EngineMetric, float] = field(default_factory=dict)
    missing: tuple[EngineMetric, ...] = ()
    """What the page lacks, or shows of some of its engines only."""
    older_names: Mapping[EngineMetric, str] = field(default_factory=dict)
    """Which metrics came under another name than today's."""
    models: tuple[str, ...] = ()
    """The `model_name` labels of what was read."""
    error: str | None = None
    """Why there is no page; then the rest is empty."""


@dataclass(frozen=True, slots=True)
class EngineAlarm:
    """Something that a node does not tell: a metric's name, or why it cannot be read."""

    node: str
    what: str


@dataclass(frozen=True, slots=True)
class EngineTtft:
    """The same quantile of TTFT on both routes; None where it is unknown or does not occur."""

    local: BucketQuantile | None
    transferred: BucketQuantile | None

    @property
    def worse(self) -> BucketQuantile | None:
        known = [quantile for quantile in (self.local, self.transferred) if quantile is not None]
        return max(known, key=lambda quantile: quantile.value, default=None)


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One model's histograms over the window, summed over its nodes; None where no node tells."""

    model: str
    ttft_d: Histogram | None
    ttft_p: Histogram | None
    tpot_d: Histogram | None
    transfers_known: bool = True
    """False where the model has P nodes and none of them can be read."""
    alarms: tuple[EngineAlarm, ...] = ()
    min_samples: int = MIN_SAMPLES

    def tpot(self, q: float = 0.99) -> BucketQuantile | None:
        """D's TPOT; None below the minimum of samples."""
        return self._quantile(self.tpot_d, q)

    def ttft(self, q: float = 0.99) -> EngineTtft:
        """TTFT by route. Both are None while transfers are unknown."""
        on_d, on_p = self._quantile(self.ttft_d, q), self._quantile(self.ttft_p, q)
        if on_d is None or self.ttft_d is None or not self.transfers_known:
            return EngineTtft(None, None)
        handed_over = 0 if self.ttft_p is None else self.ttft_p.n
        return EngineTtft(
            local=on_d if self.ttft_d.n > handed_over else None,
            transferred=None if on_p is None else on_p + on_d,
        )

    def _quantile(self, histogram: Histogram | None, q: float) -> BucketQuantile | None:
        return None if histogram is None or histogram.n < self.min_samples else histogram.quantile(q)


class Engines:
    """The windows of all nodes."""

    def __init__(self, nodes: Sequence[EngineNode], scrapes: int = SCRAPES, min_samples: int = MIN_SAMPLES) -> None:
        """Raises ValueError if two nodes have one name."""
        self._nodes = {node.name: node for node in nodes}
        if len(self._nodes) != len(nodes):
            raise ValueError("two nodes have one name")
        self._min_samples = min_samples
        self._last: dict[str, NodeScrape] = {}
        self._scrapes = scrapes
        self._windows: dict[tuple[str, EngineMetric], dict[Series, HistogramWindow]] = {
            (node.name, metric): {} for node in nodes for metric in HISTOGRAMS if metric in needed(node.role)
        }

    def follow(self, nodes: Sequence[EngineNode]) -> None:
        """These are the nodes from now on. What was seen of others, or of another engine of a name, is forgotten."""
        fresh = Engines(nodes, self._scrapes, self._min_samples)
        stay = {name for name, node in fresh._nodes.items() if self._nodes.get(name) == node}
        self._windows = {
            key: self._windows[key] if key[0] in stay else windows for key, windows in fresh._windows.items()
        }
        unseen = {name: NodeScrape(name, error="not scraped") for name in fresh._nodes}
        self._last = unseen | {name: scrape for name, scrape in self._last.items() if name in stay}
        self._nodes = fresh._nodes

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.model for node in self._nodes.values()))

    @property
    def last(self) -> Mapping[str, NodeScrape]:
        """The newest round, by node."""
        return self._last

    def fold(self, scrapes: Iterable[NodeScrape]) -> None:
        """Takes one round; a node that is not in it counts as not answering."""
        by_node = {scrape.node: scrape for scrape in scrapes}
        self._last = {name: by_node.get(name, NodeScrape(name, error="not scraped")) for name in self._nodes}
        for (name, metric), windows in self._windows.items():
            shown = self._last[name].histograms.get(metric, {})
            # By series and not their sum: one of them that is not shown must not look like a restart of all.
            for series in windows.keys() | shown.keys():
                windows.setdefault(series, HistogramWindow(self._scrapes)).add(shown.get(series))
            for series in [series for series, window in windows.items() if window.silent]:
                del windows[series]

    def reading(self, model: str) -> EngineReading:
        """What the window says of `model` now."""
        own = [node for node in self._nodes.values() if node.model == model]
        alarms = [alarm for node in own for alarm in self._alarms(node)]
        prefill = [node for node in own if node.role is Role.PREFILL]
        decode = [node for node in own if node.role is not Role.PREFILL]
        ttft_p = self._sum(prefill, EngineMetric.TTFT)
        return EngineReading(
            model=model,
            ttft_d=self._sum(decode, EngineMetric.TTFT),
            ttft_p=ttft_p,
            tpot_d=self._sum(decode, EngineMetric.TPOT),
            transfers_known=not prefill or ttft_p is not None,
            alarms=(*alarms, *self._strangers(own)),
            min_samples=self._min_samples,
        )

    def _sum(self, nodes: Iterable[EngineNode], metric: EngineMetric) -> Histogram | None:
        totals = (window.total() for node in nodes for window in self._windows[node.name, metric].values())
        return merged(total for total in totals if total is not None)

    def _alarms(self, node: EngineNode) -> list[EngineAlarm]:
        scrape = self._last.get(node.name)
        if scrape is None:
            return []
        if scrape.error is not None:
            return [EngineAlarm(node.name, scrape.error)]
        return [EngineAlarm(node.name, f"no {metric}") for metric in scrape.missing]

    def _strangers(self, nodes: Iterable[EngineNode]) -> list[EngineAlarm]:
        """Nodes whose page speaks of another model than those of most nodes."""
        served = {node.name: self._last[node.name].models for node in nodes if node.name in self._last}
        named = Counter(models for models in served.values() if models)
        if len(named) < 2:
            return []
        usual = named.most_common(1)[0][0]
        return [
            EngineAlarm(name, f"serves {_listed(models)}, others {_listed(usual)}")
            for name, models in served.items()
            if models and models != usual
        ]


def slo_quantiles(slos: Iterable[Slo], reading: EngineReading) -> list[tuple[Slo, BucketQuantile | None]]:
    """For each SLO that can drive the model's law, the engines' latency at the SLO's own percentile."""
    drives = driving(slos, reading.model)
    return [(slo, reading.ttft(slo.objective).worse) for slo in drives.ttft] + [
        (slo, reading.tpot(slo.objective)) for slo in drives.tpot
    ]


def as_slo_readings(slos: Iterable[Slo], reading: EngineReading) -> list[SloReading]:
    """The same as the law takes it: the guess inside the bucket."""
    return [
        SloReading(slo, None if quantile is None else quantile.value) for slo, quantile in slo_quantiles(slos, reading)
    ]


def _listed(models: Iterable[str]) -> str:
    return " and ".join(name[:60] for name in models)
