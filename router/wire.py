"""What travels between router and control processes, as JSON-ready values: reports up, publications down.

The router is always the client. A *report* goes up every second or every 500 records: boot id and sequence
number make it idempotent, counters are cumulative for the boot. A *publication* comes down with its policies
in full and its tables by digest; a table's document travels only when the router does not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf

import msgspec

from slos.counts import Count
from slos.terms import NO_TERMS, Terms

from .policy import FORMAT, Policy, Publication, TableKey, Tables, Weights
from .record import TurnRecord
from .turn import NodeId

MAX_RECORDS = 500
"""A report with as many records is sent at once."""
MAX_VERSION = 2**53
"""Versions stay exact in every JSON reader, and in SQLite."""


class WireError(ValueError):
    """A message that cannot be used; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """A turn without a first token when the report was made."""

    model: str
    turn: int
    streaming: bool
    age_s: float
    terms: Terms = NO_TERMS


@dataclass(frozen=True, slots=True)
class NodeView:
    """One engine as the router sees it."""

    id: str
    url: str
    role: str
    healthy: bool
    draining: bool
    sequences: int
    backlog_ms: float
    kv_tokens: int
    kv_capacity_tokens: int
    state: str = ""
    """down, draining, open, half_open, slow or serving: the first that applies."""
    why: str = ""
    """Of a node that drains or whose breaker is not closed."""
    ramp: float = 1.0
    """How much of its share of new conversations it takes: below 1 a short while after it came up."""
    weight: float = 1.0
    """Its share against that of others, by whoever told of it."""
    evicted: float = 0.0
    """Of the history of its later turns, the share that it had evicted."""
    recomputed: float = 0.0
    """Of what was computed for its later turns, the share that was not new."""


@dataclass(frozen=True, slots=True)
class SourceView:
    """One source of nodes as the router sees it; `age_s` of its last good set, None without one."""

    name: str
    nodes: int
    age_s: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class Report:
    """One report of one router process."""

    router: str
    boot: str
    seq: int
    policy_version: int
    pin_x: float | None
    records: tuple[TurnRecord, ...]
    waiting: tuple[WaitingTurn, ...]
    counts: Mapping[str, Count]
    nodes: tuple[NodeView, ...]
    dropped_records: int = 0
    """Records that this boot had to drop because the control process did not take them; cumulative."""
    metrics: str = ""
    """The process's metrics as OpenMetrics; Prometheus' older text format is read too."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """The prices that it acts on, by model, "" for all others. A control process that has lost its store goes on from
    them."""
    revisions: Mapping[str, str] = field(default_factory=dict)
    """What `counts` count, by SLO: its revision (`slos.revisions`). Empty from a router that knows of none."""
    sources: tuple[SourceView, ...] = ()
    """Where it learns of nodes."""


def report_to_wire(report: Report) -> dict[str, object]:
    """A report as plain values."""
    return asdict(report)


def report_from_wire(value: object) -> Report:
    """A report from plain values. Raises WireError."""
    try:
        return _checked(msgspec.convert(value, Report))
    except (msgspec.ValidationError, ValueError) as error:
        raise WireError(f"report: {error}") from None


def report_to_json(report: Report) -> bytes:
    """A report as JSON: the same values as `report_to_wire`, in a tenth of the time."""
    return msgspec.json.encode(report)


def report_from_json(body: bytes) -> Report:
    """A report from JSON, every field checked for its type. Raises WireError."""
    try:
        return _checked(_REPORT.decode(body))
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: bytes that are not UTF-8
        raise WireError(f"report: {error}") from None


_REPORT = msgspec.json.Decoder(Report)


def _checked(report: Report) -> Report:
    """The report, if its numbers make sense: what is folded must not be able to stop a tick."""
    if not report.router or not report.boot:
        raise ValueError("router and boot must not be empty")
    for name, number in (("seq", report.seq), ("policy_version", report.policy_version)):
        if not 0 <= number <= MAX_VERSION:
            raise ValueError(f"{name} must be within 0..2^53, got {number}")
    if report.pin_x is not None and not 0 <= report.pin_x <= 1:
        raise ValueError(f"pin_x is a share of turns, 0..1, got {report.pin_x}")
    for at, record in enumerate(report.records):
        for name, seconds in (("ttft_s", record.ttft_s), ("tpot_s", record.tpot_s), ("e2e_s", record.e2e_s)):
            if seconds is not None and not 0 <= seconds < inf:
                raise ValueError(f"records[{at}]: {name} must be a time >= 0, got {seconds}")
        if record.turn < 1:
            raise ValueError(f"records[{at}]: turns are counted from 1, got {record.turn}")
    for at, turn in enumerate(report.waiting):
        if not 0 <= turn.age_s < inf or turn.turn < 1:
            raise ValueError(f"waiting[{at}]: needs an age >= 0 and a turn >= 1")
    for at, terms in enumerate((*(r.terms for r in report.records), *(w.terms for w in report.waiting))):
        if any(own_s is not None and not 0 < own_s < inf for own_s in (terms.ttft_s, terms.tpot_s)):
            raise ValueError(f"terms[{at}]: a deadline must be a time > 0")
    for slo, count in report.counts.items():
        if min(count.valid, count.bad, count.excluded) < 0 or count.bad > count.valid:
            raise ValueError(f"counts of {slo!r}: needs 0 <= bad <= valid and excluded >= 0")
    if any(not 0 <= price < inf for price in report.prices.values()):
        raise ValueError("prices must be finite and >= 0")
    return report


def acting_prices(publication: Publication) -> dict[str, float]:
    """What a router reports as its `prices`: those of the main arm's models, where they are finite."""
    weights = publication.arms["main"].model_weights
    return {model: pair.price for model, pair in weights.items() if pair.price < inf}


def publication_to_wire(
    publication: Publication, documents: Mapping[str, str], have: Sequence[str] = ()
) -> dict[str, object]:
    """A publication as plain values. `documents` are artefact texts by digest; those in `have` are left out."""
    needed = {tables.digest for policy in publication.arms.values() for tables in policy.tables.values()}
    return {
        "format": FORMAT,
        "version": publication.version,
        "arms": {name: _policy_to_wire(policy) for name, policy in publication.arms.items()},
        "node_arm": dict(publication.node_arm),
        "node_dither": dict(publication.node_dither),
        "salt": publication.salt,
        "fleet_qps": publication.fleet_qps,
        "tables": {digest: documents[digest] for digest in sorted(needed) if digest not in have},
    }


def _policy_to_wire(policy: Policy) -> dict[str, object]:
    return {
        "version": policy.version,
        "sha256": policy.sha256,
        "tables": [
            {"model": key.model, "topology": key.topology, "digest": tables.digest}
            for key, tables in policy.tables.items()
        ],
        "weights": asdict(policy.weights),
        "model_weights": {name: asdict(weights) for name, weights in policy.model_weights.items()},
        "mode": policy.mode,
        "pin_x": policy.pin_x,
        "explore": policy.explore,
        "kv_guard": policy.kv_guard,
        "without_table_tokens": policy.without_table_tokens,
        "provenance": policy.provenance,
    }


def publication_from_wire(value: object, tables: Callable[[str, str | None], Tables]) -> Publication:
    """A publication from plain values. `tables(digest, document or None)` gives the parsed tables, from the
    document or from what the caller has. Raises WireError, also where a policy's sha256 does not match its
    content.
    """
    try:
        if not isinstance(value, dict):
            raise WireError("a publication is an object")
        if value["format"] != FORMAT:
            raise WireError(
                f"publication format {value['format']!r} is not {FORMAT}: router and control differ in version"
            )
        documents = value["tables"]
        return Publication(
            version=int(value["version"]),
            arms={
                str(name): _policy_from_wire(item, lambda digest: tables(digest, documents.get(digest)))
                for name, item in value["arms"].items()
            },
            node_arm={NodeId(node): str(arm) for node, arm in value["node_arm"].items()},
            node_dither={NodeId(node): float(dither) for node, dither in value["node_dither"].items()},
            salt=str(value["salt"]),
            fleet_qps=None if value["fleet_qps"] is None else float(value["fleet_qps"]),
        )
    except WireError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"publication: {type(error).__name__}: {error}") from None


def _policy_from_wire(item: Mapping[str, object], tables: Callable[[str], Tables]) -> Policy:
    listed, weights, by_model = item["tables"], item["weights"], item["model_weights"]
    if not (isinstance(listed, list) and isinstance(weights, dict) and isinstance(by_model, dict)):
        raise WireError("policy: tables, weights or model_weights have the wrong shape")
    names = ("version", "mode", "pin_x", "explore", "kv_guard", "without_table_tokens", "provenance")
    rest = {name: item[name] for name in names}
    policy = Policy(
        tables={TableKey(entry["model"], entry["topology"]): tables(entry["digest"]) for entry in listed},
        weights=Weights(**weights),
        model_weights={name: Weights(**pair) for name, pair in by_model.items()},
        **rest,  # type: ignore[arg-type]
    )
    if policy.sha256 != item["sha256"]:
        raise WireError(f"policy {policy.version}: sha256 does not match its content")
    return policy
