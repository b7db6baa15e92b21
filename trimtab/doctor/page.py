"""An engine's /metrics page as the doctor reads it: what the controller's reader makes of it, and what else tells how
the engine was started. Shell only by its import: the parser of prometheus_client."""

from __future__ import annotations

import math
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from controller.engine_page import read_page
from controller.engines import EngineNode
from router.turn import Role

from .facts import Page

_INFO = "vllm:cache_config_info"
_SOURCES = "vllm:prompt_tokens_by_source_total"
_FAILED = "vllm:nixl_num_failed_transfers_total"
_EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
_CONNECTOR = "vllm:nixl_"
_CONSUMER = "vllm:num_requests_kv_fetch_by_stage"
_READ = (_INFO, _SOURCES, _FAILED, _EXPIRED)
PULLED = "external_kv_transfer"
COMPUTED = "local_compute"


def read(name: str, url: str, role: Role | None, model: str, text: str, openmetrics: bool = False) -> Page:
    """The page of one engine. Raises ValueError or LookupError if it is none."""
    scrape = read_page(EngineNode(name, role or Role.REPLICA, url, model), text, openmetrics)
    lines = text.split("\n")
    samples: dict[str, list[Sample]] = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(line for line in lines if line.startswith(_READ)) + "\n"):
        for sample in family.samples:
            if math.isfinite(sample.value):
                samples[sample.name].append(sample)
    infos = samples[_INFO]
    sources: dict[str, float] = defaultdict(float)
    for sample in samples[_SOURCES]:
        sources[sample.labels.get("source", "")] += sample.value
    return Page(
        scrape,
        dict(infos[0].labels) if infos else None,
        max(1, len({sample.labels.get("engine") for sample in infos})),
        connector=any(line.startswith(_CONNECTOR) for line in lines),
        consumer=any(line.startswith(_CONSUMER) for line in lines),
        prompt_tokens=dict(sources),
        failed_transfers=_total(samples[_FAILED]),
        expired_leases=_total(samples[_EXPIRED]),
    )


def _total(rows: list[Sample]) -> float | None:
    return sum(sample.value for sample in rows) if rows else None
