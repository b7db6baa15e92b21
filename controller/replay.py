"""What turns would have seen under another policy: one model's turns again, in the order in which they came, on virtual
queues.

Beside the books of the fleet as it is run, those of the fleet that might have been: per P and D a FIFO queue of
predicted work, what each P would hold of a conversation, and the stalls that local prompts would have caused on each D.
A turn that could go either way is decided by `router.decision.decide` on its own features, with the backlogs and the
tokens that P lacks of that other fleet, and goes to the P with the least predicted wait there. Then, with the latency
model of the table,

    TTFT' = TTFT · predicted' / predicted        both with their backlogs; the ratio TTFT / predicted within ERROR_RANGE
    TPOT' = TPOT + (stalls' while it would have decoded - stalls while it did, on its D) / (tokens - 1)

The ratio carries over what the model gets wrong about a node's speed and about long queues; a difference would keep the
queue that the other policy would not have had. A virtual backlog is the router's own count less what both virtual
queues differ by, so that errors common to them cancel. Records come when turns end and are needed in the order in which
they began: a turn is decided `HOLD_S` after it was accepted, and given out once all that began before its end are.

Records name no conversation: turns are told to belong together by turn number and exact context length. Left out: turns
that would have come sooner because answers did (conversations wait for their answers), decode batches that would be
larger or smaller, room in D's KV memory, transfers that meet on a link. Source: docs/decisions/0041.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import inf

from router.decision import Decision, decide
from router.features import TurnFeatures
from router.latency import LatencyModel
from router.policy import Policy
from router.record import TurnRecord
from router.turn import NodeId, Route

from .prediction import ttft_ms

HOLD_S = 20.0
"""Longer than most turns take: one that takes longer is replayed out of its order."""
ERROR_RANGE = (0.2, 5.0)
"""Beyond this a measured TTFT is no error of the prediction, and does not go along with it."""
MAX_CONVERSATIONS = 20_000
MAX_WAITING = 50_000
"""Turns that are held back at most; the oldest are replayed early."""
STALLS_S = 600.0
"""Longer ago than this no turn began that ends now."""
MAX_STALLS = 20_000
"""Per D."""
NODE_S = 120.0
"""A P that no turn was meant for in that time is not counted on."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One ended turn as it was and as it would have been. `ttft_s` and `tpot_s` are the estimates, None where the turn
    has none."""

    record: TurnRecord
    route: Route
    decision: Decision | None
    """Of the other policy; None for a turn that was not its to decide."""
    ttft_s: float | None
    tpot_s: float | None
    predicted: float | None
    """Measured over predicted TTFT of the route taken."""
    has_table: bool = True
    """Else nothing can be told of it, and it is taken as it was."""

    @property
    def differs(self) -> bool:
        """It would have taken the other route."""
        return self.route is not self.record.placement.realised

    def as_record(self) -> TurnRecord:
        """The record that the other fleet would have left, as far as laws read it."""
        return replace(self.record, ttft_s=self.ttft_s, tpot_s=self.tpot_s)


@dataclass(slots=True)
class _Queue:
    """Predicted work of one server, first come first served."""

    work_ms: float = 0.0
    at_s: float = -inf

    def ms(self, now_s: float) -> float:
        return max(0.0, self.work_ms - max(0.0, now_s - self.at_s) * 1e3)

    def add(self, ms: float, now_s: float) -> None:
        self.work_ms, self.at_s = self.ms(now_s) + ms, max(self.at_s, now_s)


@dataclass(slots=True)
class _Books:
    """One of the two fleets: the real one as the model sees it, or the other."""

    prefill: defaultdict[NodeId, _Queue] = field(default_factory=lambda: defaultdict(_Queue))
    decode: defaultdict[NodeId, _Queue] = field(default_factory=lambda: defaultdict(_Queue))
    stalls: defaultdict[NodeId, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By D, when a local prompt stalled those beside it, and for how many ms."""
    held: OrderedDict[tuple[int, int], Mapping[NodeId, int]] = field(default_factory=OrderedDict)
    """Tokens that each P holds of a conversation, by its last turn and the context that it left."""

    def stall(self, node: NodeId, at_s: float, ms: float) -> None:
        """A local prompt was computed at that time."""
        stalls = self.stalls[node]
        insort(stalls, (at_s, ms))
        if len(stalls) > MAX_STALLS or (len(stalls) % 256 == 0 and stalls[0][0] < at_s - STALLS_S):
            del stalls[: max(len(stalls) - MAX_STALLS, bisect_right(stalls, (at_s - STALLS_S, inf)))]

    def stalled_ms(self, node: NodeId, from_s: float, to_s: float) -> float:
        """What met a turn that decoded there from then to then."""
        stalls = self.stalls.get(node, [])
        return sum(ms for _, ms in stalls[bisect_right(stalls, (from_s, inf)) : bisect_right(stalls, (to_s, inf))])

    def known(self, features: TurnFeatures) -> Mapping[NodeId, int] | None:
        """What was remembered of the conversation, which is forgotten by that."""
        return self.held.pop((features.turn - 1, features.n_ctx), None)

    def remember(
        self, record: TurnRecord, features: TurnFeatures, local: bool, known: Mapping[NodeId, int] | None
    ) -> None:
        """What P holds of the conversation after this turn."""
        if not record.prompt_tokens or features.prefill is None:
            return
        before = {features.prefill: features.prompt_tokens - features.uncached_p} if known is None else known
        now = before if local else {**before, features.prefill: record.prompt_tokens}
        self.held[features.turn, record.prompt_tokens + record.output_tokens] = now
        if len(self.held) > MAX_CONVERSATIONS:
            self.held.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Routed:
    """A turn that is decided and has not ended long enough ago."""

    compared: Compared
    decode_from_s: float
    decode_to_s: float


class Replay:
    """One model's turns under another policy. `take` records as they come, then `settled` gives those that are done."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._held_back: list[tuple[float, int, TurnRecord]] = []
        self._routed: list[tuple[float, int, _Routed]] = []
        self._order = count()
        self._was, self._would = _Books(), _Books()
        self._prefill_seen: dict[NodeId, float] = {}
        self._ahead_s = -inf

    def __len__(self) -> int:
        """Turns held back."""
        return len(self._held_back) + len(self._routed)

    def take(self, record: TurnRecord, now_s: float) -> None:
        """One ended turn; `now_s` is the reader's clock, the record's times are the router's."""
        self._ahead_s = max(self._ahead_s, record.ended_s - now_s)
        heappush(self._held_back, (record.accepted_s, next(self._order), record))

    def settled(self, policy: Policy, now_s: float) -> Iterator[Compared]:
        """Turns that are done, in the order of their ends, decided by `policy`."""
        until_s = now_s + self._ahead_s - self._hold_s
        while self._held_back and (self._held_back[0][0] <= until_s or len(self._held_back) > MAX_WAITING):
            routed = self._route(policy, heappop(self._held_back)[2])
            heappush(self._routed, (routed.decode_to_s, next(self._order), routed))
        while self._routed and (self._routed[0][0] <= until_s or len(self._routed) > MAX_WAITING):
            yield self._with_tpot(heappop(self._routed)[2])

    # -- inside --------------------------------------------------------------------------------------------------------

    def _route(self, policy: Policy, record: TurnRecord) -> _Routed:
        features, now_s = record.features, record.accepted_s
        was_local = record.went_local
        model = policy.latency(features.model, features.topology)
        if model is None or features.replica:
            return self._as_it_was(record, has_table=model is not None)
        prompt = features.prompt_tokens
        known, really = self._would.known(features), self._was.known(features)
        other = self._other(model, record, known, really)
        decision = None
        local = was_local
        if may_go_either_way(record):
            decision = decide(policy, other, 1.0)
            local = decision.route is Route.APPEND_LOCAL
        was_ms, would_ms = ttft_ms(model, features, was_local), ttft_ms(model, other, local)
        self._book(self._was, model, features, was_local, now_s)
        self._book(self._would, model, other, local, now_s)
        self._was.remember(record, features, was_local, really)
        self._would.remember(record, other, local, known)
        half_ms = model.prefill_ms(features.uncached_d, prompt) / 2
        stall_ms = model.stall_ms(features.uncached_d, prompt, features.d_batch)
        for books, there, at_d in ((self._was, features, was_local), (self._would, other, local)):
            if at_d:
                books.stall(features.decode, now_s + (there.d_backlog_ms + half_ms) / 1e3, stall_ms)
        if record.ttft_s is None or was_ms <= 0:
            return self._as_it_was(record, _route_of(local), decision)
        ratio = record.ttft_s * 1e3 / was_ms
        ttft_s = would_ms / 1e3 * min(ERROR_RANGE[1], max(ERROR_RANGE[0], ratio))
        if record.attempts > 1 or (was_ms == would_ms and local is was_local):
            ttft_s = record.ttft_s  # a plan that failed is not the policy's; and what is as it was is as measured
        compared = Compared(record, _route_of(local), decision, ttft_s, record.tpot_s, ratio)
        return _Routed(compared, now_s + ttft_s, record.ended_s + ttft_s - record.ttft_s)

    def _as_it_was(
        self,
        record: TurnRecord,
        route: Route | None = None,
        decision: Decision | None = None,
        *,
        has_table: bool = True,
    ) -> _Routed:
        route = record.placement.realised if route is None else route
        compared = Compared(record, route, decision, record.ttft_s, record.tpot_s, None, has_table)
        return _Routed(compared, record.ended_s, record.ended_s)

    def _other(
        self,
        model: LatencyModel,
        record: TurnRecord,
        known: Mapping[NodeId, int] | None,
        really: Mapping[NodeId, int] | None,
    ) -> TurnFeatures:
        """The turn's features in the other fleet. What the real P lacks beyond what its own turns explain (evicted, or
        a prompt that was changed), the other one lacks too."""
        features, now_s = record.features, record.accepted_s
        d_ms = features.d_backlog_ms + self._more_ms(self._would.decode, self._was.decode, features.decode, now_s)
        if features.prefill is None:
            return replace(features, d_backlog_ms=max(0.0, d_ms))
        prompt, chosen = features.prompt_tokens, features.prefill
        self._prefill_seen[chosen] = now_s
        lost = 0
        if really is not None:
            lost = max(0, really.get(chosen, 0) - (prompt - features.uncached_p))
        best: tuple[float, NodeId, float, int] | None = None
        for node, seen_s in list(self._prefill_seen.items()):
            if now_s - seen_s > NODE_S:
                del self._prefill_seen[node]
                continue
            if node == chosen:
                more_ms = self._more_ms(self._would.prefill, self._was.prefill, node, now_s)
                backlog_ms = max(0.0, features.p_backlog_ms + more_ms)
            else:
                backlog_ms = self._would.prefill[node].ms(now_s)
            if known is not None:
                lacks = prompt - max(0, min(prompt - 1, known.get(node, 0)) - lost)
            else:
                lacks = features.uncached_p if node == chosen else prompt
            entry = (backlog_ms + model.prefill_ms(lacks, prompt), node, backlog_ms, lacks)
            if best is None or entry < best:
                best = entry
        assert best is not None  # the chosen node is among them
        _, node, backlog_ms, lacks = best
        return replace(features, prefill=node, p_backlog_ms=backlog_ms, uncached_p=lacks, d_backlog_ms=max(0.0, d_ms))

    @staticmethod
    def _more_ms(would: Mapping[NodeId, _Queue], was: Mapping[NodeId, _Queue], node: NodeId, now_s: float) -> float:
        return would[node].ms(now_s) - was[node].ms(now_s)

    @staticmethod
    def _book(books: _Books, model: LatencyModel, features: TurnFeatures, local: bool, now_s: float) -> None:
        if local or features.prefill is None:
            work_ms = model.prefill_ms(features.uncached_d, features.prompt_tokens)
            books.decode[features.decode].add(work_ms, now_s)
        else:
            books.prefill[features.prefill].add(model.prefill_ms(features.uncached_p, features.prompt_tokens), now_s)

    def _with_tpot(self, routed: _Routed) -> Compared:
        compared = routed.compared
        record = compared.record
        if record.tpot_s is None or record.output_tokens < 2 or compared.predicted is None:
            return compared
        node = record.placement.decode
        more_ms = self._would.stalled_ms(node, routed.decode_from_s, routed.decode_to_s)
        more_ms -= self._was.stalled_ms(node, record.accepted_s + (record.ttft_s or 0.0), record.ended_s)
        tpot_s = max(0.0, record.tpot_s + more_ms / 1e3 / (record.output_tokens - 1))
        return replace(compared, tpot_s=tpot_s)


def may_go_either_way(record: TurnRecord) -> bool:
    """A policy decides such a turn; on others it has no say."""
    features = record.features
    return features.turn > 1 and features.prefill is not None and not features.local_only and record.attempts == 1


def _route_of(local: bool) -> Route:
    return Route.APPEND_LOCAL if local else Route.PREFILL_TRANSFER
