"""/metrics of one node: the names, labels, buckets and help of vLLM 0.32, filled from the emulated engine.

Times are what a client's clock would show: engine seconds / speed. Counters begin again when the node is revived,
and `process_start_time_seconds` moves. Not emulated and always 0: preemptions, multi-modal cache, MFU estimates,
admission limits. As in vLLM, a client that leaves is counted nowhere, and `external_prefix_cache_hits` counts what
was to be loaded, also where the load failed.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

from ..engine import Engine

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_STEP_TOKENS = (1, *(2**n for n in range(3, 15)))
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
    2560,
)
_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_PHASE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_XFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
_CHOICES = (1, 2, 5, 10, 20)
_BYTES = tuple(2.0 ** (11 + 2 * n) for n in range(12))
_DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric. `bounds` makes it a histogram; `label` has a fixed set of values; `roles` have it."""

    name: str
    help: str
    bounds: tuple[float, ...] = ()
    label: str = ""
    values: tuple[str, ...] = ()
    roles: str = "PDR"
    gauge: bool = False
    engine: bool = True
    """Whether it has the label `engine`."""

    @property
    def kind(self) -> str:
        """Its TYPE."""
        return "histogram" if self.bounds else "gauge" if self.gauge else "counter"


_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
_REASONS = ("stop", "length", "abort", "error", "repetition")

SPECS = (
    Spec("nixl_xfer_time_seconds", "Duration of NIXL KV cache transfers.", _XFER, roles="PD"),
    Spec("nixl_post_time_seconds", "Post time of NIXL KV cache transfers.", (0.001, *_XFER), roles="PD"),
    Spec("nixl_bytes_transferred", "Bytes per NIXL KV cache transfer.", _BYTES, roles="PD"),
    Spec("nixl_num_descriptors", "Descriptors per NIXL KV cache transfer.", _DESCRIPTORS, roles="PD"),
    Spec("nixl_num_failed_transfers_total", "Failed NIXL KV cache transfers.", roles="PD"),
    Spec("nixl_num_failed_notifications_total", "Failed NIXL KV cache notifications.", roles="PD"),
    Spec("nixl_num_kv_expired_reqs_total", "Requests whose KV expired, on the P instance.", roles="PD"),
    Spec("nixl_num_notifications_after_expiry_total", "Reads of KV that was no longer held.", roles="PD"),
    Spec("estimated_flops_per_gpu_total", "Estimated floating point operations per GPU."),
    Spec("estimated_read_bytes_per_gpu_total", "Estimated bytes read from memory per GPU."),
    Spec("estimated_write_bytes_per_gpu_total", "Estimated bytes written to memory per GPU."),
    Spec("num_requests_running", "Requests in model execution batches.", gauge=True),
    Spec("num_requests_waiting", "Requests waiting to be processed.", gauge=True),
    Spec(
        "num_requests_waiting_by_reason",
        "Waiting requests by reason; they add up to num_requests_waiting.",
        label="reason",
        values=("capacity", "deferred"),
        gauge=True,
    ),
    Spec(
        "num_requests_kv_fetch_by_stage",
        "Waiting requests by stage of their KV load.",
        label="stage",
        values=("waiting_to_start", "in_progress", "completed_waiting"),
        roles="D",
        gauge=True,
    ),
    Spec(
        "engine_sleep_state",
        "Engine sleep state.",
        label="sleep_state",
        values=("awake", "weights_offloaded", "discard_all"),
        gauge=True,
    ),
    Spec("kv_cache_usage_perc", "KV cache usage. 1 means 100 percent usage.", gauge=True),
    Spec("prefix_cache_queries_total", "Prefix cache queries, in tokens."),
    Spec("prefix_cache_hits_total", "Prefix cache hits, in tokens."),
    Spec("external_prefix_cache_queries_total", "External prefix cache queries, in tokens."),
    Spec("external_prefix_cache_hits_total", "External prefix cache hits, in tokens."),
    Spec("mm_cache_queries_total", "Multi-modal cache queries, in items."),
    Spec("mm_cache_hits_total", "Multi-modal cache hits, in items."),
    Spec("num_preemptions_total", "Cumulative number of preemptions."),
    Spec("prompt_tokens_total", "Prefill tokens processed."),
    Spec("prompt_tokens_by_source_total", "Prompt tokens by source.", label="source", values=_SOURCES),
    Spec("prompt_tokens_cached_total", "Cached prompt tokens (local + external)."),
    Spec("prompt_tokens_cached_by_source_total", "Prefix-cache hit tokens by tier.", label="source", values=_TIERS),
    Spec("generation_tokens_total", "Generation tokens processed."),
    Spec("request_success_total", "Successfully processed requests.", label="finished_reason", values=_REASONS),
    Spec(
        "admission_rejections_total",
        "Admission attempts rejected by a queue limit.",
        label="reason",
        values=("max_num_queued_reqs", "max_num_queued_tokens"),
        engine=False,
    ),
    Spec("request_prompt_tokens", "Prefill tokens processed.", _TOKENS),
    Spec("request_generation_tokens", "Generation tokens processed.", _TOKENS),
    Spec("iteration_tokens_total", "Tokens per engine step.", _STEP_TOKENS),
    Spec("request_max_num_generation_tokens", "Maximum number of requested generation tokens.", _TOKENS),
    Spec("request_params_n", "The n request parameter.", _CHOICES),
    Spec("request_params_max_tokens", "The max_tokens request parameter.", _TOKENS),
    Spec("time_to_first_token_seconds", "Time to first token in seconds.", _TTFT),
    Spec("inter_token_latency_seconds", "Inter-token latency in seconds.", _TPOT),
    Spec("request_time_per_output_token_seconds", "Time per output token of a request.", _TPOT),
    Spec("e2e_request_latency_seconds", "End-to-end request latency in seconds.", _PHASE),
    Spec("request_queue_time_seconds", "Time a request spent WAITING.", _PHASE),
    Spec("request_inference_time_seconds", "Time a request spent RUNNING.", _PHASE),
    Spec("request_prefill_time_seconds", "Time a request spent in PREFILL.", _PHASE),
    Spec("request_decode_time_seconds", "Time a request spent in DECODE.", _PHASE),
    Spec("request_num_preemptions", "How often a request was preempted.", _PREEMPTIONS),
    Spec("request_prefill_kv_computed_tokens", "New KV tokens computed during prefill.", _TOKENS),
)


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, the last without an upper bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counts:
    """What one process of a node has counted so far."""

    def __init__(self) -> None:
        self.started = time.time()
        self.histograms = {spec.name: Histogram(spec.bounds) for spec in SPECS if spec.bounds}
        self.numbers: dict[tuple[str, str], float] = {
            (spec.name, value): 0.0 for spec in SPECS if not spec.bounds for value in spec.values or ("",)
        }
        self.generated = 0
        self.inter_token = self.histograms["inter_token_latency_seconds"]
        self.step_tokens = self.histograms["iteration_tokens_total"]

    def add(self, name: str, amount: float = 1.0, value: str = "") -> None:
        """Count."""
        self.numbers[name, value] += amount

    def observe(self, name: str, number: float) -> None:
        """One more for a histogram."""
        self.histograms[name].observe(number)

    def look(self, engine: Engine) -> None:
        """Bring up to date what is not counted here as it happens."""
        to_start, coming, arrived = engine.fetching
        self.numbers |= {
            ("num_requests_running", ""): engine.running,
            ("num_requests_waiting", ""): engine.waiting,
            ("num_requests_waiting_by_reason", "capacity"): engine.waiting - coming - arrived,
            ("num_requests_waiting_by_reason", "deferred"): coming + arrived,
            ("num_requests_kv_fetch_by_stage", "waiting_to_start"): to_start,
            ("num_requests_kv_fetch_by_stage", "in_progress"): coming,
            ("num_requests_kv_fetch_by_stage", "completed_waiting"): arrived,
            ("engine_sleep_state", "awake"): 1.0,
            ("kv_cache_usage_perc", ""): engine.kv_usage,
            ("generation_tokens_total", ""): self.generated,
        }
