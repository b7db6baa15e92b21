"""/metrics of one node: the names, labels, buckets and help of vLLM 0.32, filled from the emulated engine.

Times are what a client's clock would show: engine seconds / speed. Counters begin again when the node is revived,
and `process_start_time_seconds` moves. Not emulated and always 0: preemptions, multi-modal cache, MFU estimates,
admission limits. As in vLLM, a client that leaves is counted nowhere, and `external_prefix_cache_hits` counts what
was to be loaded, also where the load failed.

The text is written here and not by prometheus_client: a page of 600 lines must not hold up the token streams
(0.5 ms instead of 5). Its number format is used, and its collectors for the process itself.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.utils import floatToGoString

from ..engine import Engine
from ..fleet import Role
from ..profiles import EngineProfile
from .lag import BOUNDS_S, Lag

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_STEP_TOKENS = (1, *(2**n for n in range(3, 15)))
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_TTFT = (*_TTFT, 2560)
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
        self.inter_token = self.histograms["inter_token_latency_seconds"]
        self.step_tokens = self.histograms["iteration_tokens_total"]

    def add(self, name: str, amount: float = 1.0, value: str = "") -> None:
        """Count."""
        self.numbers[name, value] += amount

    def observe(self, name: str, number: float) -> None:
        """One more for a histogram."""
        self.histograms[name].observe(number)

    def look(self, engine: Engine) -> None:
        """Read the gauges off the engine."""
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
        }


def page(counts: Counts, role: Role, model: str, profile: EngineProfile, max_model_len: int) -> str:
    """vLLM's part of the page and the process's."""
    lines: list[str] = []
    labels = {"engine": "0", "model_name": model}
    for spec in SPECS:
        if role in spec.roles:
            own = labels if spec.engine else {"model_name": model}
            _write(lines, f"vllm:{spec.name}", spec, counts, own)
    _write_config(lines, profile, max_model_len)
    return "\n".join(lines) + "\n" + _process_page(counts.started)


def lag_page(lag: Lag, speed: float, extra: dict[str, float]) -> str:
    """The emulator's own metrics, under its own prefix."""
    lines = ["# HELP emulator_lag_seconds Wall seconds between when a chunk was due and when it was written."]
    lines.append("# TYPE emulator_lag_seconds histogram")
    _write_buckets(lines, "emulator_lag_seconds", BOUNDS_S, lag.counts, lag.sum_s, {})
    numbers = {
        "emulator_lag_p99_seconds": lag.p99_s,
        "emulator_lag_bound_seconds": lag.bound_s,
        "emulator_behind": float(lag.behind),
        "emulator_speed": speed,
        **extra,
    }
    for name, number in numbers.items():
        lines += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", f"{name} {_go(number)}"]
    return "\n".join(lines) + "\n"


def _write(lines: list[str], name: str, spec: Spec, counts: Counts, labels: dict[str, str]) -> None:
    lines += [f"# HELP {name} {spec.help}", f"# TYPE {name} {spec.kind}"]
    series = [{**labels, spec.label: value} if value else labels for value in spec.values or ("",)]
    if spec.bounds:
        histogram = counts.histograms[spec.name]
        _write_buckets(lines, name, histogram.bounds, histogram.counts, histogram.total, labels)
    else:
        lines += [
            f"{name}{_labels(own)} {_go(counts.numbers[spec.name, value])}"
            for own, value in zip(series, spec.values or ("",), strict=True)
        ]
    if not spec.gauge:
        created = f"{name if spec.bounds else name.removesuffix('_total')}_created"
        lines += [f"# HELP {created} {spec.help}", f"# TYPE {created} gauge"]
        lines += [f"{created}{_labels(own)} {_go(counts.started)}" for own in series]


def _write_buckets(
    lines: list[str], name: str, bounds: tuple[float, ...], counts: list[int], total: float, labels: dict[str, str]
) -> None:
    so_far = 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        so_far += count
        lines.append(f"{name}_bucket{_labels({**labels, 'le': _go(bound)})} {_go(so_far)}")
    lines += [f"{name}_count{_labels(labels)} {_go(so_far)}", f"{name}_sum{_labels(labels)} {_go(total)}"]


# The fields of vLLM's cache_config that say nothing about an emulated engine, as a default start has them.
_CACHE_CONFIG = dict(
    pair.split("=")
    for pair in (
        "_block_size_resolved=True cache_dtype=auto cache_hit_alignment_tokens=None enable_mamba_shared_prefix_checkpoint="
        "False enable_prefix_caching=True gpu_memory_utilization=0.92 hash_block_size=None is_attention_free=False "
        "kv_cache_dtype_skip_layers=[] kv_cache_layout=None kv_cache_memory_bytes=None kv_offloading_backend=native "
        "kv_offloading_size=None kv_sharing_fast_prefill=False mamba_block_size=None mamba_cache_dtype=auto "
        "mamba_cache_mode=none mamba_page_size_padded=None mamba_ssm_cache_dtype=float32 num_cpu_blocks=None "
        "num_gpu_blocks_override=None prefix_cache_retention_interval=0 prefix_caching_hash_algo=sha256 "
        "prefix_match_unit=None replayssm_buffer_len=16 skip_page_size_padded=None sliding_window=None "
        "swa_bounded_replay=True use_kda_recoverssm=False use_replayssm=False user_specified_block_size=True"
    ).split(" ")
)


def _write_config(lines: list[str], profile: EngineProfile, max_model_len: int) -> None:
    blocks = profile.kv_capacity_tokens // profile.block_tokens
    labels = _CACHE_CONFIG | {
        "block_size": str(profile.block_tokens),
        "effective_attention_block_size": str(profile.block_tokens),
        "engine": "0",
        "kv_cache_max_concurrency": f"{blocks * profile.block_tokens / max_model_len:.2f}",
        "kv_cache_size_tokens": str(blocks * profile.block_tokens),
        "num_gpu_blocks": str(blocks),
    }
    name = "vllm:cache_config_info"
    lines += [f"# HELP {name} Information of the LLMEngine CacheConfig", f"# TYPE {name} gauge"]
    lines.append(f"{name}{_labels(labels)} 1.0")


_REGISTRY = CollectorRegistry()
for _collector in (GCCollector, PlatformCollector, ProcessCollector):
    _collector(registry=_REGISTRY)


def _process_page(started: float) -> str:
    page = generate_latest(_REGISTRY).decode()
    kept = [line for line in page.splitlines() if not line.startswith("process_start_time_seconds ")]
    return "\n".join([*kept, f"process_start_time_seconds {_go(started)}"]) + "\n"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(labels[name])}"' for name in sorted(labels)) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _go(number: float) -> str:
    return str(floatToGoString(number))
