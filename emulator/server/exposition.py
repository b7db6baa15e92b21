"""/metrics as text.

Written here and not by prometheus_client: a page of 600 lines must not hold up the token streams (0.5 ms instead of
5). Its number format is used, and its collectors for the process; `process_start_time_seconds` is the node's.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.utils import floatToGoString

from ..fleet import Role
from ..profiles import EngineProfile
from .lag import BOUNDS_S, Lag
from .metrics import SPECS, Counts, Spec

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


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


_OLD_NAMES = {
    "vllm:request_time_per_output_token_seconds": "vllm:time_per_output_token_seconds",
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
}


def under_old_names(text: str) -> str:
    """The page as releases before 0.10 named what has another name today."""
    for today, older in _OLD_NAMES.items():
        text = text.replace(today, older)
    return text


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
_UNSET = (
    "cache_hit_alignment_tokens hash_block_size kv_cache_layout kv_cache_memory_bytes kv_offloading_size "
    "mamba_block_size mamba_page_size_padded num_cpu_blocks num_gpu_blocks_override prefix_match_unit sliding_window"
)
_OFF = (
    "enable_mamba_shared_prefix_checkpoint is_attention_free kv_sharing_fast_prefill use_kda_recoverssm use_replayssm"
)
_CACHE_CONFIG = {
    **dict.fromkeys((*_UNSET.split(), "skip_page_size_padded"), "None"),
    **dict.fromkeys(_OFF.split(), "False"),
    **dict.fromkeys(("_block_size_resolved", "enable_prefix_caching", "swa_bounded_replay"), "True"),
    "cache_dtype": "auto",
    "gpu_memory_utilization": "0.92",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_offloading_backend": "native",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_ssm_cache_dtype": "float32",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "replayssm_buffer_len": "16",
    "user_specified_block_size": "True",
}


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
    return str(floatToGoString(number))  # type: ignore[no-untyped-call]
