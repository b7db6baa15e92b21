"""The router without its sockets: what happens to a turn, step by step, as calls with the time as an
argument.

A shell (HTTP, or the simulator in virtual time) accepts a turn, drives the handshake of its flight, reports
what it saw, and gets the record back at the end:

    flight = core.accept(turn, now_s, coin)        # conversation, candidates, features, decision, placement
    leg    = core.next_leg(flight, reply, now_s)   # until it is the decode leg
    core.first_token(flight, now_s); record = core.complete(flight, ...)   |   core.end(flight, outcome, ...)

A decode leg may have a prefill leg `beside` it: the shell sends both, and gives P's reply to `next_leg`, which returns
the same decode leg if all is well. A leg that fails before anything was sent to the client is planned again on other
nodes, at most `MAX_ATTEMPTS` times and within the retry budget; the last plan is local, if a node can do it and may
(`p_down.py`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from estimators.length import LengthEstimator
from estimators.rate import EventRate
from slos.counts import SloCounts
from slos.objective import Measured, Outcome, Signal, Slo, judge
from slos.objective import Verdict as Grade
from slos.revisions import revisions
from slos.terms import NO_TERMS, Terms

from .breaker import Breaker, BreakerState
from .connectors.protocol import Connector, Handshake, HandshakeError, Leg, LegReply, Purpose
from .conversations import Conversation, Conversations
from .current import Current
from .decision import Decision, decide
from .features import TurnFeatures
from .kv_guard import Churn
from .leases import Leases
from .load import NodeLoad
from .p_down import PrefillDown, PrefillDownPolicy
from .pace import DWELL_S, Pace
from .placement import (
    Candidates,
    Node,
    NoNode,
    Placement,
    choose_decode,
    choose_prefill,
    eligible,
    pick,
)
from .policy import Policy
from .record import Refused, TurnRecord
from .residency import Belief, Residency
from .retries import RetryBudget
from .reuse import Verdict
from .stopwatch import Stopwatch
from .turn import ConversationKey, NodeId, Reason, Role, Turn

MAX_ATTEMPTS = 4
MAX_MODELS = 100
"""Models whose chat template is remembered; clients choose the names."""
USAGE_S = 5.0
"""How often a shell reports the KV usage of nodes that decode."""
UNKNOWN_WORK_MS = 1000.0
"""Without a model a prompt counts as this and 1 ms a token: enough to spread prompts over P nodes and to tell
busy from idle."""
OTHERS_MIN_SHARE = 0.02
"""Less memory than this that is not the router's own is rounding, and answers longer than expected."""

_ORDINARY = frozenset({Reason.SCORE, Reason.LOCAL_SLOWER, Reason.NO_TABLE, Reason.NO_DATA})
"""Reasons of a route that give way to why the conversation moved."""

Decider = Callable[[Policy, TurnFeatures, float], Decision]


@dataclass(slots=True, eq=False)
class Flight:
    """A turn on its way. Owned by the core; the shell reads `leg`."""

    turn: Turn
    number: int
    conversation: Conversation
    features: TurnFeatures
    decision: Decision
    placement: Placement
    handshake: Handshake
    watch: Stopwatch
    coin: float
    leg: Leg | None = None
    attempts: int = 1
    avoid: set[NodeId] = field(default_factory=set)
    booked_tokens: int = 0
    decoding: bool = False
    belief: Belief | None = None
    """What D was believed to hold of the conversation when its leg was sent."""
    prefill_told: Belief | None = None
    """What P's events had told of it when this plan was made, if they tell of it."""
    moved: Reason | None = None
    """Why this plan decodes elsewhere than the conversation's KV is."""
    sampled_s: float = 0.0
    sampled_tokens: int = 0
    """Of its stream, what the pace of its node already counts."""
    failed: dict[NodeId, str] = field(default_factory=dict)
    """Nodes that failed it, with the kind of failure, for as long as it may be its own fault."""

    @property
    def sent(self) -> Leg:
        """The leg that is on its way."""
        assert self.leg is not None
        return self.leg


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn without a first token yet."""

    model: str
    turn: int
    streaming: bool
    age_s: float
    terms: Terms = NO_TERMS


class RouterCore:
    """Conversations, residency, load and the policy of one router process."""

    def __init__(
        self,
        current: Current,
        nodes: Iterable[Node],
        connector: Connector,
        slos: Sequence[Slo],
        *,
        start_s: float = 0.0,
        decider: Decider = decide,
        conversations: Conversations | None = None,
        lease_s: float = 30.0,
        p_down: PrefillDownPolicy | None = None,
        retries: RetryBudget | None = None,
    ) -> None:
        self.current = current
        self.nodes: dict[NodeId, Node] = {}
        self.load: dict[NodeId, NodeLoad] = {}
        self.churn: dict[NodeId, Churn] = {}
        """What memory costs, by decode node or replica."""
        self.residency = Residency()
        self.conversations = conversations if conversations is not None else Conversations()
        self.leases = Leases(lease_s)
        self.retries = retries if retries is not None else RetryBudget()
        self._p_down = p_down if p_down is not None else PrefillDownPolicy()
        self._slos = tuple(slos)
        self.slo_classes = _classes(slos)
        """Classes that an SLO is about; a request's other classes are none."""
        self.counts = SloCounts(revisions(slos))
        self._connector = connector
        self._decide = decider
        self._rate = EventRate(start_s)
        self._length = LengthEstimator()
        self._flights: dict[str, Flight] = {}
        self._answers_repeat: OrderedDict[str, bool] = OrderedDict()
        self._topology = ""
        self.pace = Pace()
        self._streamed: dict[NodeId, tuple[float, int]] = {}
        self._breakers: dict[NodeId, Breaker] = {}
        self.openings: Counter[tuple[NodeId, str]] = Counter()
        """Breakers that opened, by node and the kind of the last failure."""
        self.on_open: Callable[[NodeId, str], None] = lambda node, why: None
        """Told of each of them."""
        self.moves: Counter[Reason] = Counter()
        """Conversations that went on from one decode node to another, by why."""
        for node in nodes:
            self.add_node(node)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @property
    def topology(self) -> str:
        """The nodes in use, in the notation of the tables: `2P_2D`."""
        return self._topology

    @property
    def residency_misses(self) -> int:
        """Local turns for which the engine had cached less than believed."""
        decoders = [node.id for node in self.nodes.values() if node.role is not Role.PREFILL]
        return sum(
            count
            for (node, _, verdict), count in self.residency.checks.items()
            if verdict is not Verdict.HIT and node in decoders
        )

    def add_node(self, node: Node) -> None:
        """A node joins."""
        self.nodes[node.id] = node
        self.load[node.id] = NodeLoad()
        if node.role is not Role.PREFILL:
            self.churn[node.id] = Churn()
        self.residency.reset(node.id, node.kv_capacity_tokens)
        self._rename()

    def remove_node(self, node: NodeId) -> None:
        """A node of which nothing is in flight (`is_idle`) leaves."""
        self._anew(node)
        self.conversations.forget_node(node)
        del self.nodes[node], self.load[node]
        self.churn.pop(node, None)
        self.residency.forget(node)
        self._rename()

    def drain_node(self, node: NodeId, draining: bool) -> None:
        """The node gets no new turns, or again some. Its conversations move with their next turn."""
        self.nodes[node].draining = draining
        self._rename()

    def is_idle(self, node: NodeId) -> bool:
        """Nothing of the node is in flight."""
        return not any(node in (f.placement.prefill, f.placement.decode) for f in self._flights.values())

    def node_failed(self, node: NodeId, why: str, now_s: float) -> bool:
        """A leg failed by the node's own fault. True if that opened its breaker; the last of its role stays closed."""
        at = self.nodes.get(node)
        if at is None:
            return False
        others = any(
            other.role is at.role and other.usable and self._admits(other.id, now_s)
            for other in self.nodes.values()
            if other is not at
        )
        opened = self._breakers.setdefault(node, Breaker()).failed(why, now_s, may_open=others)
        if opened:
            self.openings[node, why] += 1
            self.on_open(node, why)
        return opened

    def suspect(self, flight: Flight, node: NodeId, why: str) -> None:
        """The node failed the turn, whose client has got nothing yet. It counts once another node has answered the
        turn: one that nobody can answer may be to blame itself, and must open no breaker."""
        flight.failed[node] = why

    def _blame(self, flight: Flight, now_s: float) -> None:
        """The turn is being answered: those that failed it are to blame, except P nodes where several did and none
        has prefilled it."""
        failed, flight.failed = flight.failed, {}
        at = {node: self.nodes[node] for node in failed if node in self.nodes}
        prefills = {node for node in at if at[node].role is Role.PREFILL}
        spared = prefills if len(prefills) > 1 and flight.placement.prefill is None else frozenset[NodeId]()
        for node in at.keys() - spared:
            self.node_failed(node, failed[node], now_s)

    def node_answered(self, node: NodeId, now_s: float) -> None:
        """The node answered a leg, if only to say what is wrong with the client's request."""
        breaker = self._breakers.get(node)
        if breaker is not None:
            breaker.answered(now_s)

    def breaker(self, node: NodeId, now_s: float) -> tuple[BreakerState, str]:
        """The state of a node's breaker, and what failed last ("" while it is closed)."""
        breaker = self._breakers.get(node)
        state = BreakerState.CLOSED if breaker is None else breaker.state(now_s)
        return state, "" if breaker is None or state is BreakerState.CLOSED else breaker.why

    def sample_pace(self, now_s: float) -> None:
        """Called once a second by a shell that wants conversations to leave slow nodes."""
        streams = [(node, stream_s, tokens) for node, (stream_s, tokens) in self._streamed.items()]
        self._streamed.clear()
        for flight in self._flights.values():
            if flight.decoding and flight.watch.first_s is not None:
                streams.append((flight.placement.decode, *self._piece(flight, now_s)))
        self.pace.sample(streams, now_s)

    def _piece(self, flight: Flight, now_s: float) -> tuple[float, int]:
        """The part of a stream since the last sample: seconds and tokens."""
        assert flight.watch.first_s is not None
        since_s = max(flight.sampled_s, flight.watch.first_s)
        tokens = flight.watch.tokens - max(1, flight.sampled_tokens)  # the first token took no streaming
        flight.sampled_s, flight.sampled_tokens = now_s, flight.watch.tokens
        return max(0.0, now_s - since_s), tokens

    def _admits(self, node: NodeId, now_s: float) -> bool:
        breaker = self._breakers.get(node)
        return breaker is None or breaker.admits(now_s)

    def _shut(self, now_s: float) -> frozenset[NodeId]:
        """Nodes that their breakers keep out; none of a role of which there would be no other."""
        shut = {node for node in self._breakers if not self._admits(node, now_s)}
        for role in {self.nodes[node].role for node in shut}:
            usable = {node.id for node in self.nodes.values() if node.role is role and node.usable}
            if usable <= shut:
                shut -= usable
        return frozenset(shut)

    def _anew(self, node: NodeId) -> None:
        """The node's process is another one, or none: what turns found out about the earlier one is void."""
        self._breakers.pop(node, None)
        self._streamed.pop(node, None)
        self.pace.forget(node)

    def node_down(self, node: NodeId) -> None:
        """The node is gone: nothing of what it cached or had outstanding remains. Its flights are reported by
        the shell."""
        self.nodes[node].healthy = False
        self._anew(node)
        self.residency.reset(node, self.nodes[node].kv_capacity_tokens)
        self.load[node].prefill.clear()
        self.load[node].link.clear()
        self.leases.node_gone(node)
        if self.nodes[node].role is not Role.PREFILL:
            self.conversations.forget_node(node)
        self._rename()

    def node_restarted(self, node: NodeId) -> None:
        """The node's process is another one: what the earlier one cached is gone."""
        self.leases.node_gone(node)
        self._anew(node)
        self.residency.reset(node, self.nodes[node].kv_capacity_tokens)
        if self.nodes[node].role is not Role.PREFILL:
            self.conversations.forget_node(node)

    def node_usage(self, node: NodeId, share: float) -> None:
        """The engine says which share of its KV memory running requests hold: what is not the router's own is others'.

        On P nodes that says nothing: a prompt under its lease counts as held and as running.
        """
        at = self.nodes[node]
        if at.role is not Role.PREFILL and at.introduced:
            load = self.load[node]
            others = max(0, round(share * at.kv_capacity_tokens) - load.kv_tokens)
            load.others_kv_tokens = others if others > OTHERS_MIN_SHARE * at.kv_capacity_tokens else 0
            self.residency.ledger(node).share(load.others_kv_tokens)

    def node_up(self, node: NodeId, now_s: float | None = None) -> None:
        """The node is back, with an empty cache; with a time, it takes its share of new conversations by and by."""
        self.nodes[node].healthy = True
        self.nodes[node].up_s = now_s
        self.residency.reset(node, self.nodes[node].kv_capacity_tokens)
        self._rename()

    def _rename(self) -> None:
        usable = [node.role for node in self.nodes.values() if node.usable]
        counts = (
            (letter, usable.count(role))
            for letter, role in (("P", Role.PREFILL), ("D", Role.DECODE), ("R", Role.REPLICA))
        )
        self._topology = "_".join(f"{count}{letter}" for letter, count in counts if count)

    # -- objectives ----------------------------------------------------------------------------------------------------

    def redeclare(self, slos: Sequence[Slo]) -> None:
        """Turns that end from now on are judged by these; what still means the same goes on counting."""
        self._slos = tuple(slos)
        self.slo_classes = _classes(slos)
        self.counts.redeclare(revisions(slos))

    @property
    def slos(self) -> tuple[Slo, ...]:
        """What turns are judged by."""
        return self._slos

    # -- a turn --------------------------------------------------------------------------------------------------------

    def accept(self, turn: Turn, now_s: float, coin: float) -> Flight:
        """Plan a turn. Raises NoNode if nothing can decode it."""
        self.retries.request()
        conversation = self.conversations.open(turn.key, now_s)
        self._rate.update(1, now_s)
        number = turn.number if turn.number is not None else conversation.turns + 1
        try:
            features, candidates, decision, moved = self._plan(turn, number, conversation, frozenset(), now_s, coin)
        except NoNode:
            self._judge(Refused(turn.model, number, turn.streaming, terms=turn.terms))
            raise
        placement = pick(decision, features, candidates, self.load)
        flight = Flight(
            turn,
            number,
            conversation,
            features,
            decision,
            placement,
            self._connector.handshake(turn, placement),
            Stopwatch(turn.accepted_s),
            coin,
            moved=moved,
        )
        conversation.in_flight += 1
        self._flights[turn.request_id] = flight
        self._book(flight, now_s)
        if number > 1:
            self.churn[placement.decode].add(features, placement.prefill is None, now_s)
        return flight

    def refuse_unread(self) -> None:
        """The shell turned a request away at its door. What it asked for is not known, and to its client that is an
        error like any other: it is bad for every SLO that promises success."""
        for slo in self._slos:
            if any(each.signal is Signal.SUCCESS for each in slo.needed):
                self.counts.add(slo.name, Grade.BAD)

    def next_leg(self, flight: Flight, reply: LegReply | None, now_s: float) -> Leg:
        """The leg to send now: the first one (reply None), or the one after a prefill reply; the leg in flight itself
        if the reply was that of the prefill beside it.

        A reply that must not reach D, or one that comes too late for its lease, means a new plan. Raises
        NoNode when there is no other node to try or the attempts are used up.
        """
        try:
            if reply is None:
                leg = next(flight.handshake)
            else:
                self._prefilled(flight, reply, now_s)
                if flight.decoding and flight.watch.first_s is not None:
                    return flight.sent  # D had no need to wait for P, whose reply changes nothing any more
                leg = flight.handshake.send(reply)
        except StopIteration as stop:
            leg = stop.value
            if reply is not None and flight.placement.prefill is not None:
                self.node_answered(flight.placement.prefill, now_s)
            if leg is flight.leg:
                return leg
            if leg.not_after_s is not None and now_s > leg.not_after_s:
                return self._replan(flight, now_s, Reason.PREFILL_FAILED)
        except HandshakeError as error:
            self.suspect(flight, error.leg.node, "handover")
            flight.avoid.add(error.leg.node)
            return self._replan(flight, now_s, Reason.PREFILL_FAILED)
        if leg.purpose is Purpose.DECODE:
            self._launched(flight, now_s)
        flight.leg = leg
        return leg

    def leg_failed(self, flight: Flight, now_s: float, *failed: Leg) -> Leg:
        """The leg failed, or these halves of it, before the client got anything: plan again without their nodes.
        Raises NoNode when that is no use."""
        legs = failed or (flight.sent,)
        flight.avoid.update(leg.node for leg in legs)
        prefill = legs[0].purpose is Purpose.PREFILL
        return self._replan(flight, now_s, Reason.PREFILL_FAILED if prefill else Reason.DECODE_FAILED)

    def _replan(self, flight: Flight, now_s: float, reason: Reason) -> Leg:
        if flight.decoding:  # where P failed, D, which waited beside it, has what it had
            kept = flight.belief.tokens if flight.belief is not None and reason is Reason.PREFILL_FAILED else 0
            self.residency.store(flight.placement.decode, flight.conversation.key, kept, now_s)
        self._unbook(flight, now_s)
        self.leases.strand(flight.turn.request_id)
        if flight.attempts >= MAX_ATTEMPTS:
            raise NoNode(f"gave up after {MAX_ATTEMPTS} attempts")
        if not self.retries.take(now_s):
            raise NoNode("too many turns fail for another attempt")
        avoid = frozenset(flight.avoid)
        if flight.attempts == MAX_ATTEMPTS - 1 and self._p_down.rule is PrefillDown.LOCAL:  # the last one needs no P
            avoid |= {node.id for node in self.nodes.values() if node.role is Role.PREFILL}
        features, candidates, decision, moved = self._plan(
            flight.turn, flight.number, flight.conversation, avoid, now_s, flight.coin
        )
        flight.attempts += 1
        flight.moved = moved
        flight.features, flight.decision = features, replace(decision, reason=reason)
        flight.placement = pick(decision, features, candidates, self.load)
        flight.handshake.close()
        flight.handshake = self._connector.handshake(flight.turn, flight.placement, flight.attempts)
        self._book(flight, now_s)
        return self.next_leg(flight, None, now_s)

    def first_token(self, flight: Flight, now_s: float) -> None:
        """The first content went out to the client."""
        flight.watch.token(now_s)
        if flight.failed:
            self._blame(flight, now_s)
        self.leases.read(flight.turn.request_id)
        decode = self.load[flight.placement.decode]
        decode.prefill.remove(flight.turn.request_id, now_s)
        if flight.placement.prefill is not None:
            self.load[flight.placement.prefill].link.remove(flight.turn.request_id, now_s)

    def complete(
        self,
        flight: Flight,
        now_s: float,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int | None,
    ) -> TurnRecord:
        """The turn was answered; the counts are the engine's own (usage)."""
        conversation, placement = flight.conversation, flight.placement
        key = conversation.key
        if flight.failed:
            self._blame(flight, now_s)
        self.leases.read(flight.turn.request_id)
        self.residency.advance(now_s)
        conversation.turns = max(conversation.turns, flight.number)
        conversation.context_tokens = prompt_tokens + output_tokens
        self._bind(flight, now_s)
        conversation.length = self._length.update(flight.turn.model, conversation.length, output_tokens)
        if flight.number == 1:  # as the model's other conversations have it
            conversation.reuse.answers = self._answers_repeat.get(flight.turn.model, True)
        if placement.prefill is None and cached_tokens is not None and flight.belief is not None:
            self._check(flight, placement.decode, flight.belief, prompt_tokens, cached_tokens)
        conversation.reuse.prompt_tokens = prompt_tokens
        kept = prompt_tokens + output_tokens - 1  # the last token has no KV yet
        self.residency.store(placement.decode, key, kept, now_s)
        return self._end(flight, now_s, Outcome.COMPLETED, prompt_tokens, output_tokens, cached_tokens)

    def end(self, flight: Flight, now_s: float, outcome: Outcome, output_tokens: int = 0) -> TurnRecord:
        """The turn ended otherwise: failed, timed out, or its client left. It counts as no turn of the
        conversation."""
        if flight.decoding:
            self.residency.drop(flight.placement.decode, flight.conversation.key)
            if outcome is Outcome.CLIENT_ERROR:  # D has refused it, and tells P
                self.leases.read(flight.turn.request_id)
        self.leases.strand(flight.turn.request_id)
        return self._end(flight, now_s, outcome, 0, output_tokens, None)

    def waiting(self, now_s: float) -> list[Waiting]:
        """Turns without a first token, with their age: lower bounds of their TTFT."""
        return [
            Waiting(f.turn.model, f.number, f.turn.streaming, now_s - f.turn.accepted_s, f.turn.terms)
            for f in self._flights.values()
            if f.watch.first_s is None
        ]

    def context_of(self, key: ConversationKey) -> int:
        """Prompt and answer of the conversation's last answered turn, in tokens; 0 for an unknown one."""
        known = self.conversations.peek(key)
        return 0 if known is None else known.context_tokens

    def is_in_flight(self, flight: Flight) -> bool:
        """Whether the turn has not ended."""
        return self._flights.get(flight.turn.request_id) is flight

    def flights(self) -> list[Flight]:
        """Turns accepted and not ended, oldest first."""
        return list(self._flights.values())

    def _bind(self, flight: Flight, now_s: float) -> None:
        """The conversation's KV is where the turn was decoded."""
        conversation, node = flight.conversation, flight.placement.decode
        before = conversation.decode_node or conversation.lost_node
        if before is not None and before != node:
            failed = Reason.DECODE_FAILED if flight.attempts > 1 else Reason.KV_GUARD
            self.moves[flight.moved or failed] += 1
            if flight.moved is Reason.NODE_SLOW:
                conversation.moved_s = now_s
        conversation.decode_node, conversation.lost_node = node, None
        self.node_answered(node, now_s)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _plan(
        self,
        turn: Turn,
        number: int,
        conversation: Conversation,
        avoid: frozenset[NodeId],
        now_s: float,
        coin: float,
    ) -> tuple[TurnFeatures, Candidates, Decision, Reason | None]:
        self.residency.advance(now_s)
        shut = self._shut(now_s) if self._breakers else frozenset()
        try:
            candidates = eligible(conversation, self.nodes.values(), avoid | shut)
        except NoNode:
            candidates = eligible(conversation, self.nodes.values(), avoid)
        slow = frozenset(node.id for node in candidates.decode if self.pace.slow(node.id))
        if slow and candidates.home is not None and candidates.home.id in slow and len(slow) < len(candidates.decode):
            settled = now_s - conversation.moved_s >= DWELL_S
            candidates = replace(candidates, home=None) if settled else candidates
        name = f"{turn.key.model}\0{turn.key.id}" if turn.named else ""
        decode = choose_decode(candidates, self.residency, now_s, name=name, shun=slow)
        moved = self._why_moved(conversation, decode.id, shut, slow)
        policy = self.current.publication.policy_for(decode.id)
        in_step = number == conversation.turns + 1 and conversation.context_tokens > 0
        context = conversation.context_tokens if in_step else turn.history_tokens
        prompt = context + turn.new_tokens
        latency = policy.latency(turn.model, self._topology)
        prefill = choose_prefill(candidates, conversation, prompt, self.load, self.residency, latency, now_s)
        load = self.load[decode.id]
        uncached_d = decode.uncached_tokens(self._usable(decode.id, conversation), prompt)
        evicted_d = 0
        if in_step and conversation.decode_node == decode.id:  # what it lacks and would have, had it kept all
            kept = conversation.reuse.usable(context - 1)
            evicted_d = max(0, uncached_d - decode.uncached_tokens(kept, prompt))
        qps = self.current.publication.fleet_qps
        features = TurnFeatures(
            model=turn.model,
            turn=number,
            n_ctx=context,
            n_in=turn.new_tokens,
            n_out=round(self._length.expected_tokens(turn.model, conversation.length, turn.max_tokens)),
            uncached_d=uncached_d,
            uncached_p=prompt if prefill is None else prefill[1],
            p_backlog_ms=0.0 if prefill is None else self.load[prefill[0].id].prefill.ms(now_s),
            link_backlog_ms=0.0 if prefill is None else self.load[prefill[0].id].link.ms(now_s),
            d_backlog_ms=load.prefill.ms(now_s),
            d_batch=load.sequences,
            d_kv_tokens=load.kv_in_use_tokens,
            d_kv_capacity_tokens=decode.kv_capacity_tokens,
            qps=self._rate.rate_hz(now_s) if qps is None else qps,
            topology=self._topology,
            prefill=None if prefill is None else prefill[0].id,
            decode=decode.id,
            resident=candidates.home is not None,
            replica=decode.role is Role.REPLICA,
            local_only=turn.local_only,
            evicted_d=evicted_d,
            d_evicted_share=self.churn[decode.id].evicted(now_s),
        )
        decision = self._decide(policy, features, coin)
        if decision.reason is Reason.P_UNAVAILABLE and self._has_prefill():
            self._p_down.admit(len(load.prefill))
        if moved is not None and decision.reason in _ORDINARY:
            decision = replace(decision, reason=moved)
        return features, candidates, decision, moved

    def _has_prefill(self) -> bool:
        return any(node.role is Role.PREFILL for node in self.nodes.values())

    def _why_moved(
        self, conversation: Conversation, decode: NodeId, shut: frozenset[NodeId], slow: frozenset[NodeId]
    ) -> Reason | None:
        """Why the conversation does not go on where its KV is; None where it does, or where this turn failed there."""
        before = conversation.decode_node or conversation.lost_node
        if before is None or before == decode:
            return None
        at = self.nodes.get(before)
        if at is None or not at.healthy or conversation.decode_node is None:
            return Reason.NODE_GONE
        if at.draining:
            return Reason.NODE_DRAINED
        if before in shut:
            return Reason.BREAKER_OPEN
        return Reason.NODE_SLOW if before in slow else None

    def _book(self, flight: Flight, now_s: float) -> None:
        """Count the work of this plan on its nodes."""
        features, placement = flight.features, flight.placement
        policy = self.current.publication.policy_for(placement.decode)
        latency = policy.latency(features.model, self._topology)
        prompt, request_id = features.prompt_tokens, flight.turn.request_id
        key = flight.conversation.key
        flight.conversation.heading = placement.decode
        self.residency.touch(placement.decode, key, prompt + features.n_out, now_s)
        self.residency.expect(placement.decode, key)
        local = placement.prefill is None
        if placement.prefill is not None:
            flight.prefill_told = self.residency.told(placement.prefill, key)
            self.residency.expect(placement.prefill, key)
        server = self.load[placement.prefill or placement.decode].prefill
        uncached = features.uncached_d if local else features.uncached_p
        work_ms = UNKNOWN_WORK_MS + uncached if latency is None else latency.prefill_ms(uncached, prompt)
        server.add(request_id, work_ms, now_s)
        for node in (placement.prefill, placement.decode) if self._breakers else ():
            if node in self._breakers:
                self._breakers[node].claim(request_id, now_s)

    def _prefilled(self, flight: Flight, reply: LegReply, now_s: float) -> None:
        node = flight.placement.prefill
        assert node is not None
        self.load[node].prefill.remove(flight.turn.request_id, now_s)
        if reply.status != 200:
            return
        key = flight.conversation.key
        if reply.cached_tokens is not None:
            # P's events tell this prompt's own blocks by now; its books have followed the prompts that were before it.
            belief = flight.prefill_told or self.residency.booked(node, key, now_s)
            self._check(flight, node, belief, reply.prompt_tokens, reply.cached_tokens)
        self.residency.store(node, key, reply.prompt_tokens, now_s)
        if flight.watch.first_s is None and (reply.kv_transfer_params is not None or flight.decoding):
            self.leases.opened(flight.turn.request_id, node, reply.at_s)
        latency = self.current.publication.policy_for(flight.placement.decode).latency(
            flight.turn.model, self._topology
        )
        if latency is not None and flight.watch.first_s is None:
            decode = self.nodes[flight.placement.decode]  # not the features' D where that had no room
            missing = decode.uncached_tokens(
                self._usable(decode.id, flight.conversation), flight.features.prompt_tokens
            )
            self.load[node].link.add(flight.turn.request_id, latency.transfer_ms(missing), now_s)

    def _usable(self, node: NodeId, conversation: Conversation) -> int:
        """What the conversation's next prompt is believed to find on the node."""
        return conversation.reuse.usable(self.residency.held(node, conversation.key))

    def _check(self, flight: Flight, node: NodeId, belief: Belief, prompt_tokens: int, cached_tokens: int) -> None:
        """An engine told what of a prompt it had cached: compare with what was believed."""
        at, reuse, model = self.nodes[node], flight.conversation.reuse, flight.turn.model
        believed = prompt_tokens - at.uncached_tokens(reuse.usable(belief.tokens), prompt_tokens)
        if believed <= 0:
            return
        decoded = at.role is not Role.PREFILL
        verdict = reuse.judge(believed, cached_tokens, at.block_tokens, decoded)
        self.residency.check(node, belief, verdict)
        if decoded and verdict is not Verdict.EVICTED:
            self._answers_repeat[model] = reuse.answers
            self._answers_repeat.move_to_end(model)
            if len(self._answers_repeat) > MAX_MODELS:
                self._answers_repeat.popitem(last=False)

    def _launched(self, flight: Flight, now_s: float) -> None:
        node, key = flight.placement.decode, flight.conversation.key
        decode = self.load[node]
        flight.decoding = True
        flight.booked_tokens = flight.features.prompt_tokens + flight.features.n_out
        decode.sequences += 1
        decode.kv_tokens += flight.booked_tokens
        flight.belief = self.residency.belief(node, key, now_s)
        self.residency.run(node, key, flight.booked_tokens)

    def _unbook(self, flight: Flight, now_s: float) -> None:
        request_id, placement = flight.turn.request_id, flight.placement
        decode = self.load[placement.decode]
        decode.prefill.remove(request_id, now_s)
        if flight.decoding:
            if flight.watch.first_s is not None:
                stream_s, tokens = self._streamed.get(placement.decode, (0.0, 0))
                more_s, more = self._piece(flight, now_s)
                self._streamed[placement.decode] = stream_s + more_s, tokens + more
            flight.decoding = False
            decode.sequences -= 1
            decode.kv_tokens -= flight.booked_tokens
        if placement.prefill is not None:
            if flight.leg is not None and request_id in self.load[placement.prefill].prefill:
                self.leases.unanswer(placement.prefill)
            self.load[placement.prefill].prefill.remove(request_id, now_s)
            self.load[placement.prefill].link.remove(request_id, now_s)
        for node in (placement.prefill, placement.decode) if self._breakers else ():
            if node in self._breakers:
                self._breakers[node].release(request_id)

    def _end(
        self,
        flight: Flight,
        now_s: float,
        outcome: Outcome,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int | None,
    ) -> TurnRecord:
        self._unbook(flight, now_s)
        flight.handshake.close()
        flight.conversation.in_flight -= 1
        del self._flights[flight.turn.request_id]
        timing = flight.watch.read(now_s, output_tokens)
        record = TurnRecord(
            request_id=flight.turn.request_id,
            model=flight.turn.model,
            turn=flight.number,
            streaming=flight.turn.streaming,
            accepted_s=flight.turn.accepted_s,
            ended_s=now_s,
            features=flight.features,
            decision=flight.decision,
            placement=flight.placement,
            attempts=flight.attempts,
            ttft_s=timing.ttft_s,
            tpot_s=timing.tpot_s,
            e2e_s=timing.e2e_s,
            output_tokens=output_tokens,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            outcome=outcome,
            terms=flight.turn.terms,
        )
        self._judge(record)
        return record

    def _judge(self, measured: Measured) -> None:
        for slo in self._slos:
            self.counts.add(slo.name, judge(slo, measured))


def _classes(slos: Iterable[Slo]) -> frozenset[str]:
    return frozenset(name for slo in slos for name in slo.match.classes)
