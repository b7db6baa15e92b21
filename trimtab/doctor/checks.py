"""The checks by name, in the order in which they are told. To add one: a function in `node_checks` or `fleet_checks`
and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from . import fleet_checks as fleet
from . import node_checks as node
from .facts import Assumed, Facts, Node
from .findings import Finding, joined

Check = Callable[[Facts], Iterable[Finding]]


def each(check: Callable[[Node, Assumed], Finding | None]) -> Check:
    """A check of one node, of all that answer."""

    def of_all(facts: Facts) -> Iterable[Finding]:
        for one in facts.up:
            finding = check(one, facts.assumed)
            if finding is not None:
                yield replace(finding, nodes=(one.name,))

    return of_all


CHECKS: dict[str, Check] = {
    "reachable": node.reachable,
    "topology": fleet.topology,
    "api-key": each(node.open_door),
    "version": each(node.version),
    "same-version": fleet.same_version,
    "role": each(node.role),
    "model": fleet.same_model,
    "max-model-len": fleet.same_length,
    "prefix-caching": each(node.prefix_caching),
    "kv-memory": each(node.kv_memory),
    "block-size": fleet.same_block,
    "kv-dtype": fleet.same_dtype,
    "data-parallel": each(node.data_parallel),
    "usage-in-streams": each(node.stream_usage),
    "usage-details": each(node.usage_details),
    "request-id": each(node.request_ids),
    "metrics": each(node.metrics),
    "keep-alive": each(node.keep_alive),
    "clock": each(node.clock),
    "kv-events": each(node.kv_events),
    "development-mode": each(node.development_mode),
    "hand-over": fleet.hand_over,
    "kv-load-failure": each(node.load_failure),
    "lease": fleet.lease,
}


def diagnose(facts: Facts) -> list[Finding]:
    """Every check's findings, those of several nodes joined."""
    return [replace(finding, check=name) for name, check in CHECKS.items() for finding in joined(check(facts))]
