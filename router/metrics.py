"""The router's metrics: a table of specs that code, dashboards and docs read; the registry is passed in.

What SLOs count is not among them: the control process exports that, once for all routers, so that no sum over
processes counts a turn twice. Histograms have every SLO threshold of the start as a bucket bound; bounds cannot be
added later, so `redeclare` says which thresholds of a reloaded file are none until a restart. Their exemplars are
request ids as clients know them, and nothing else of a request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.exposition import generate_latest

from slos.objective import Outcome, Signal, Slo
from slos.policy import Declaration

from .admission import Admission
from .breaker import BreakerState
from .core import RouterCore
from .errors import Code
from .membership.roster import Roster
from .record import TurnRecord
from .turn import Reason, Role, Route

log = logging.getLogger("trimtab.metrics")

LATENCY_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TPOT_BUCKETS_S = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5)
E2E_BUCKETS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

_EXEMPLAR = "request_id"
_MAX_EXEMPLAR_ID = 128 - len(_EXEMPLAR)
"""OpenMetrics allows an exemplar 128 characters, names and values together."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]*")
"""Clients choose ids; one that needs quoting is not worth the risk to a page that all metrics are on."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric: name, labels, help."""

    name: str
    labels: tuple[str, ...]
    help: str


TURNS = Spec("trimtab_turns", ("route", "reason", "outcome"), "Ended turns by realised route, reason and outcome.")
TTFT = Spec("trimtab_ttft_seconds", ("later",), "Time to first token of streamed turns; later=1 for turn 2 and on.")
TPOT = Spec("trimtab_tpot_seconds", (), "Time per output token of streamed turns with at least 8 tokens.")
E2E = Spec("trimtab_e2e_seconds", (), "Whole time of completed turns, from accepted to the last byte.")
UNBOUND = Spec(
    "trimtab_slo_threshold_unbound",
    ("slo",),
    "1 if the SLO's threshold becomes a bucket bound of its histogram with the next restart only.",
)
REFUSED = Spec("trimtab_refused", ("code",), "Requests that ended before they became turns.")
PASSED = Spec(
    "trimtab_passed_through", ("node", "outcome"), "Requests on other routes, passed on: answered, failed, client_gone."
)
LEG_FAILURES = Spec(
    "trimtab_leg_failures",
    ("node", "kind"),
    "Upstream requests that failed: refused, timeout, error, handover (cannot be used), or own_limit (the host's).",
)
IN_FLIGHT = Spec("trimtab_turns_in_flight", (), "Turns accepted and not ended.")
ATTEMPTS = Spec("trimtab_replanned_turns", (), "Turns that needed more than one plan.")
MISSES = Spec("trimtab_residency_misses", (), "Local turns for which the engine had cached less than believed.")
CHECKS = Spec(
    "trimtab_residency_checks",
    ("node", "source", "result"),
    "Turns whose engine told what it had cached, against the belief: hit, evicted, or changed (another prompt).",
)
BELIEVED = Spec(
    "trimtab_believed_tokens", ("node",), "KV tokens of conversations in the ledger, running turns included."
)
FOREIGN = Spec("trimtab_foreign_tokens_per_second", ("node",), "KV that others put into the node, learned from misses.")
OTHERS = Spec(
    "trimtab_others_kv_tokens", ("node",), "KV in use by requests that are not this router's, as the engine says."
)
DEMAND = Spec(
    "trimtab_kv_demand_ratio",
    ("node",),
    "Tokens of conversations used within 30 s over the decode node's KV memory; above 1 it evicts.",
)
EVICTED = Spec("trimtab_kv_evicted_tokens", ("node",), "History of later turns that their decode node had evicted.")
EVICTED_SHARE = Spec(
    "trimtab_kv_evicted_ratio", ("node",), "Share of the history of later turns that their decode node had evicted."
)
RECOMPUTED = Spec(
    "trimtab_kv_recomputed_ratio",
    ("node",),
    "Share of the prompt tokens computed for the node's later turns that were not new; above 0.6 memory is overrun.",
)
EVENTS_LIVE = Spec(
    "trimtab_kv_events_live", ("node",), "1 while the node's KV events say what it holds; absent without."
)
EVENTS = Spec("trimtab_kv_events", ("node",), "KV events taken.")
EVENT_GAPS = Spec("trimtab_kv_event_gaps", ("node",), "Times at which KV events were lost or could not be read.")
EVENT_LAG = Spec(
    "trimtab_kv_event_lag_seconds", ("node",), "Age of the last KV events on arrival, by both hosts' clocks."
)
BLOCKS = Spec("trimtab_kv_blocks", ("node",), "KV blocks that the node said it holds.")
CONVERSATIONS = Spec("trimtab_conversations", (), "Conversations remembered.")
CONVERSATION_BYTES = Spec("trimtab_conversation_bytes", (), "Memory that they are reckoned to take.")
FORGOTTEN = Spec(
    "trimtab_conversations_forgotten", ("why",), "Conversations forgotten: evicted for want of room, or idle too long."
)
REQUESTS = Spec("trimtab_requests_in_flight", (), "Requests let in, those not yet turns included.")
BODY_BYTES = Spec("trimtab_body_bytes", (), "Bytes of the bodies of requests in flight.")
ANSWER_BYTES = Spec("trimtab_answer_bytes", (), "Bytes of the unstreamed answers in flight.")
CONNECTIONS = Spec("trimtab_client_connections", (), "Connections of clients.")
TURNED_AWAY = Spec(
    "trimtab_connections_refused", ("why",), "Connections closed by the router: too many, or a head too large or slow."
)
DESCRIPTORS = Spec("trimtab_file_descriptors", ("kind",), "File descriptors of the process: open, and the limit.")
RETRIES = Spec("trimtab_retries", ("result",), "Turns to be planned again: allowed, or denied by the retry budget.")
LEASES = Spec(
    "trimtab_kv_leases",
    ("node", "state"),
    "KV that P keeps for D: open (of turns in flight), or stranded (nobody will read it) and not yet expired.",
)
STRANDED = Spec(
    "trimtab_kv_leases_stranded",
    ("node", "why"),
    "KV leases of P that nobody has read; unanswered: its leg was given up before the reply, so there may be one.",
)
STATE_PROBLEM = Spec(
    "trimtab_state_problem", ("what",), "1 while that part of the state directory cannot be used; the router serves on."
)
NODE_UP = Spec("trimtab_node_up", ("node", "role"), "1 if the node may be used: it answers, and does not drain.")
DRAINING = Spec("trimtab_node_draining", ("node",), "1 while the node gets no new turns because it left or is drained.")
RAMP = Spec("trimtab_node_ramp", ("node",), "Share of its share of new conversations that a node takes, 1 in the end.")
SLOW = Spec("trimtab_node_slow", ("node",), "1 while the node streams so slowly that conversations leave it.")
BREAKER = Spec("trimtab_breaker_open", ("node",), "Circuit breaker: 1 open, 0.5 half-open, 0 closed.")
OPENINGS = Spec("trimtab_breaker_openings", ("node", "kind"), "Times it opened, by the kind of the last failure.")
MOVES = Spec("trimtab_moves", ("reason",), "Conversations that went on from one decode node to another, by why.")
SOURCE_UP = Spec("trimtab_source_up", ("source",), "1 if what the source of nodes told last was good.")
SOURCE_NODES = Spec("trimtab_source_nodes", ("source",), "Nodes of the source's last good set.")
PRICE_POLICY = Spec("trimtab_policy_version", (), "Version of the publication in use.")
PINNED = Spec("trimtab_pinned", (), "1 while a pin overrides the policy.")
REPORTS = Spec("trimtab_reports", ("result",), "Reports to the control process by result.")
DROPPED = Spec("trimtab_records_dropped", (), "Records that the control process did not take in time.")
SPECS = (
    TURNS,
    TTFT,
    TPOT,
    E2E,
    UNBOUND,
    REFUSED,
    PASSED,
    LEG_FAILURES,
    IN_FLIGHT,
    ATTEMPTS,
    MISSES,
    CHECKS,
    BELIEVED,
    FOREIGN,
    OTHERS,
    DEMAND,
    EVICTED,
    EVICTED_SHARE,
    RECOMPUTED,
    EVENTS_LIVE,
    EVENTS,
    EVENT_GAPS,
    EVENT_LAG,
    BLOCKS,
    CONVERSATIONS,
    CONVERSATION_BYTES,
    FORGOTTEN,
    REQUESTS,
    BODY_BYTES,
    ANSWER_BYTES,
    CONNECTIONS,
    TURNED_AWAY,
    DESCRIPTORS,
    RETRIES,
    LEASES,
    STRANDED,
    STATE_PROBLEM,
    NODE_UP,
    DRAINING,
    RAMP,
    SLOW,
    BREAKER,
    OPENINGS,
    MOVES,
    SOURCE_UP,
    SOURCE_NODES,
    PRICE_POLICY,
    PINNED,
    REPORTS,
    DROPPED,
)


class RouterMetrics:
    """All of them, on one registry. Histograms have every SLO threshold of the start as a bucket bound."""

    def __init__(self, registry: CollectorRegistry, slos: tuple[Slo, ...]) -> None:
        self.registry = registry
        ttft = bounds(LATENCY_BUCKETS_S, slos, Signal.TTFT)
        tpot = bounds(TPOT_BUCKETS_S, slos, Signal.TPOT, Signal.ITL)
        e2e = bounds(E2E_BUCKETS_S, slos, Signal.E2E)
        self._bounds = {Signal.TTFT: ttft, Signal.TPOT: tpot, Signal.ITL: tpot, Signal.E2E: e2e}
        self._turns = _counter(TURNS, registry)
        self._ttft = _histogram(TTFT, registry, ttft)
        self._tpot = _histogram(TPOT, registry, tpot)
        self._e2e = _histogram(E2E, registry, e2e)
        self._unbound = _gauge(UNBOUND, registry)
        self._refused = _counter(REFUSED, registry)
        self._passed = _counter(PASSED, registry)
        self._leg_failures = _counter(LEG_FAILURES, registry)
        self._attempts = _counter(ATTEMPTS, registry)
        self.in_flight = _gauge(IN_FLIGHT, registry)
        self.misses = _gauge(MISSES, registry)
        self.checks = _gauge(CHECKS, registry)
        self.believed = _gauge(BELIEVED, registry)
        self.foreign = _gauge(FOREIGN, registry)
        self.others = _gauge(OTHERS, registry)
        self.demand = _gauge(DEMAND, registry)
        self._evicted = _Total(EVICTED, registry)
        self.evicted_share = _gauge(EVICTED_SHARE, registry)
        self.recomputed = _gauge(RECOMPUTED, registry)
        self.events_live = _gauge(EVENTS_LIVE, registry)
        self.events = _gauge(EVENTS, registry)
        self.event_gaps = _gauge(EVENT_GAPS, registry)
        self.event_lag = _gauge(EVENT_LAG, registry)
        self.blocks = _gauge(BLOCKS, registry)
        self.conversations = _gauge(CONVERSATIONS, registry)
        self.conversation_bytes = _gauge(CONVERSATION_BYTES, registry)
        self._forgotten = _Total(FORGOTTEN, registry)
        self.requests = _gauge(REQUESTS, registry)
        self.body_bytes = _gauge(BODY_BYTES, registry)
        self.answer_bytes = _gauge(ANSWER_BYTES, registry)
        self.connections = _gauge(CONNECTIONS, registry)
        self._turned_away = _Total(TURNED_AWAY, registry)
        self.descriptors = _gauge(DESCRIPTORS, registry)
        self._retries = _Total(RETRIES, registry)
        self.leases = _gauge(LEASES, registry)
        self._stranded = _Total(STRANDED, registry)
        self.state_problem = _gauge(STATE_PROBLEM, registry)
        self.node_up = _gauge(NODE_UP, registry)
        self.draining = _gauge(DRAINING, registry)
        self.ramp = _gauge(RAMP, registry)
        self.slow = _gauge(SLOW, registry)
        self.breaker = _gauge(BREAKER, registry)
        self._openings = _Total(OPENINGS, registry)
        self._moves = _Total(MOVES, registry)
        self.source_up = _gauge(SOURCE_UP, registry)
        self.source_nodes = _gauge(SOURCE_NODES, registry)
        self.policy_version = _gauge(PRICE_POLICY, registry)
        self.pinned = _gauge(PINNED, registry)
        self.reports = _counter(REPORTS, registry)
        self.dropped = _gauge(DROPPED, registry)
        for route in Route:  # a series that begins at its first event loses that event to rate()
            self._turns.labels(route.value, Reason.SCORE.value, Outcome.COMPLETED.value)
        for code in Code:
            self._refused.labels(code.value)
        for later in ("0", "1"):
            self._ttft.labels(later)
        self._show_unbound(slos)

    def redeclare(self, declaration: Declaration) -> tuple[Slo, ...]:
        """Other SLOs are in force. Returns those whose threshold is no bucket bound until this process is restarted:
        they are judged exactly at once, for judging needs no bucket, and only a histogram cannot show them exactly."""
        unbound = self._show_unbound(declaration.slos)
        for slo in unbound:
            log.warning(
                "%s is judged exactly from now on, and its threshold becomes a bucket bound of the histograms with the "
                "next restart of the router",
                slo.name,
            )
        return unbound

    def _show_unbound(self, slos: Iterable[Slo]) -> tuple[Slo, ...]:
        self._unbound.clear()
        unbound = []
        for slo in slos:
            limits = [each for each in slo.needed if each.threshold_s is not None]
            if limits:
                bound = all(canonical(each.threshold_s or 0.0) in self._bounds[each.signal] for each in limits)
                self._unbound.labels(slo.name).set(not bound)
                unbound += [] if bound else [slo]
        return tuple(unbound)

    def ended(self, record: TurnRecord, request_id: str = "") -> None:
        """A turn ended; `request_id` is the one that its client knows."""
        self._turns.labels(record.placement.realised.value, record.decision.reason.value, record.outcome.value).inc()
        if record.attempts > 1:
            self._attempts.inc()
        exemplar = exemplar_of(request_id)
        if record.outcome is Outcome.COMPLETED:
            self._e2e.observe(record.e2e_s, exemplar)
        if record.streaming and record.ttft_s is not None:
            self._ttft.labels("1" if record.turn > 1 else "0").observe(record.ttft_s, exemplar)
            if record.tpot_s is not None and record.output_tokens >= 8:
                self._tpot.observe(record.tpot_s, exemplar)

    def late(self, node: str, age_s: float) -> None:
        """KV events arrived that were made so long ago."""
        self.event_lag.labels(str(node)).set(age_s)

    def believe(self, core: RouterCore) -> None:
        """What the core believes of its nodes' KV, as gauges."""
        residency = core.residency
        for gauge in (self.believed, self.foreign, self.others):  # nodes leave
            gauge.clear()
        for (node, source, verdict), count in residency.checks.items():
            self.checks.labels(str(node), source.value, verdict.value).set(count)
        for name, at in core.nodes.items():
            ledger = residency.ledger(name)
            self.believed.labels(str(name)).set(ledger.own_tokens)
            self.foreign.labels(str(name)).set(ledger.foreign_hz)
            if at.role is not Role.PREFILL:
                self.others.labels(str(name)).set(core.load[name].others_kv_tokens)
        for name, blocks in residency.blocks.items():
            self.events_live.labels(str(name)).set(blocks.live and not blocks.problem)
            self.events.labels(str(name)).set(blocks.events)
            self.event_gaps.labels(str(name)).set(blocks.gaps)
            self.blocks.labels(str(name)).set(len(blocks))

    def churn(self, core: RouterCore, now_s: float) -> None:
        """What the memory of decode nodes costs."""
        for gauge in (self.demand, self.evicted_share, self.recomputed):  # nodes leave
            gauge.clear()
        for node, churn in core.churn.items():
            name, room = str(node), core.nodes[node].kv_capacity_tokens
            self.demand.labels(name).set(core.residency.live_tokens(node, now_s) / room)
            self._evicted.follow(churn.evicted_total, name)
            self.evicted_share.labels(name).set(churn.evicted(now_s))
            self.recomputed.labels(name).set(churn.recomputed(now_s))

    def bound(self, core: RouterCore, now_s: float) -> None:
        """What is bounded in the core, and what was let go of."""
        conversations, retries, leases = core.conversations, core.retries, core.leases
        self.conversations.set(len(conversations))
        self.conversation_bytes.set(conversations.size_bytes)
        self._forgotten.follow(conversations.evicted, "evicted")
        self._forgotten.follow(conversations.expired, "idle")
        self._retries.follow(retries.allowed, "allowed")
        self._retries.follow(retries.denied, "denied")
        opened, held = leases.open(), leases.held(now_s)
        for node in (name for name, at in core.nodes.items() if at.role is Role.PREFILL):
            self.leases.labels(str(node), "open").set(opened[node])
            self.leases.labels(str(node), "stranded").set(held[node])
            self._stranded.follow(leases.stranded[node], str(node), "unread")
            self._stranded.follow(leases.unanswered[node], str(node), "unanswered")

    def let_in(self, admission: Admission) -> None:
        """Requests, their bodies and their answers."""
        self.requests.set(admission.active)
        self.body_bytes.set(admission.body_bytes)
        self.answer_bytes.set(admission.answer_bytes)

    def connected(self, connections: int, too_many: int, bad_heads: int, descriptors: int, limit: int) -> None:
        """The listening side."""
        self.connections.set(connections)
        self._turned_away.follow(too_many, "too_many")
        self._turned_away.follow(bad_heads, "head")
        self.descriptors.labels("open").set(descriptors)
        self.descriptors.labels("limit").set(limit)

    def members(self, core: RouterCore, roster: Roster | None, now_s: float) -> None:
        """Nodes, their breakers and sources, and conversations that moved."""
        for gauge in (self.node_up, self.draining, self.ramp, self.slow, self.breaker):  # nodes leave
            gauge.clear()
        for node in core.nodes.values():
            name, breaker = str(node.id), core.breaker(node.id, now_s)[0]
            self.node_up.labels(name, node.role.value).set(node.usable)
            self.draining.labels(name).set(node.draining)
            self.ramp.labels(name).set(node.ramp(now_s))
            self.slow.labels(name).set(core.pace.slow(node.id))
            self.breaker.labels(name).set({BreakerState.CLOSED: 0.0, BreakerState.OPEN: 1.0}.get(breaker, 0.5))
        for (opened, kind), count in core.openings.items():
            self._openings.follow(count, str(opened), kind)
        for reason, count in core.moves.items():
            self._moves.follow(count, reason.value)
        for source, state in () if roster is None else roster.states.items():
            self.source_up.labels(source).set(not state.problem)
            self.source_nodes.labels(source).set(len(state.members))

    def refused(self, code: str) -> None:
        """A request ended before it became a turn."""
        self._refused.labels(str(code)).inc()

    def passed(self, node: str, outcome: str) -> None:
        """A request on another route was passed on."""
        self._passed.labels(node, outcome).inc()

    def leg_failed(self, node: str, kind: str) -> None:
        """An upstream request failed."""
        self._leg_failures.labels(node, kind).inc()


def bounds(base: Iterable[float], slos: Iterable[Slo], *signals: Signal) -> tuple[float, ...]:
    """The bucket bounds of a histogram: those that it always has, and every threshold of its signals."""
    needed = (each for slo in slos for each in slo.needed if each.signal in signals)
    thresholds = {canonical(each.threshold_s) for each in needed if each.threshold_s is not None}
    return tuple(sorted({*base, *thresholds}))


def canonical(seconds: float) -> float:
    """Without the noise of binary arithmetic, so that 0.07m is 4.2 and not 4.200000000000001 in a label."""
    return float(f"{seconds:.12g}")


def exemplar_of(request_id: str) -> dict[str, str] | None:
    """What leads from a bucket to a request; None for an id that is empty or not plain. Long ones are cut."""
    return {_EXEMPLAR: request_id[:_MAX_EXEMPLAR_ID]} if _PLAIN_ID.fullmatch(request_id) else None


def page(registry: CollectorRegistry) -> str:
    """What the router sends of its metrics: OpenMetrics, for the older text format has no exemplars."""
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()


class _Total:
    """A counter that follows a number counted elsewhere."""

    def __init__(self, spec: Spec, registry: CollectorRegistry) -> None:
        self._counter = _counter(spec, registry)
        self._seen: dict[tuple[str, ...], int] = {}

    def follow(self, total: int, *labels: str) -> None:
        """It is so many now."""
        self._counter.labels(*labels).inc(total - self._seen.get(labels, 0))
        self._seen[labels] = total


def _counter(spec: Spec, registry: CollectorRegistry) -> Counter:
    return Counter(spec.name, spec.help, spec.labels, registry=registry)


def _gauge(spec: Spec, registry: CollectorRegistry) -> Gauge:
    return Gauge(spec.name, spec.help, spec.labels, registry=registry)


def _histogram(spec: Spec, registry: CollectorRegistry, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(spec.name, spec.help, spec.labels, buckets=buckets, registry=registry)
