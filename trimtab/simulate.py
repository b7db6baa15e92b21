"""Fleet, router core and controller together in virtual time: the production code on emulated engines.

Any connector that the emulator speaks can hand over.

This module is what `router.dispatch` is to sockets: it accepts turns, drives handshakes, relays what the
engines say, and calls the guarded tick. People and tools think, then send the next turn; a turn that fails ends its
conversation.

pD nodes have a policy of their own, pinned to `append_x`. A `Client` may have a limit on what it has in flight, as
load generators do, and a patience: a turn that has not ended by then is given up and its conversation with it.

Node failures are known to the router at once (no health-check delay), the engines' KV usage every `USAGE_S`, and with
`kv_events` what they store and evict as they do it. There may be several routers (`router_group.py`), and the
controller may be told of a part of the turns (`told.py`). Left out: network and tokenizer time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

import numpy as np

from controller.guard import Around, Guards, guarded
from controller.laws.protocol import Law
from controller.observe import Shadow
from controller.safety import State
from controller.table_drift import Drifted, TableDrift
from controller.tick import TICK_S, ControlState, ModelOutput
from emulator.engine import Engine
from emulator.events import Events
from emulator.faults import Fault, FaultKind, check
from emulator.fleet import Call, EngineMaker, Fleet, Reply, Request
from emulator.fleet import Role as NodeKind
from emulator.kv_blocks import KvBlocks
from emulator.profiles import EngineProfile
from emulator.workload import ConversationPlan, Phase
from router.blocks import session_of
from router.connectors import CONNECTORS
from router.connectors.protocol import ConnectorOptions, Leg, LegReply, Purpose
from router.core import USAGE_S, Decider, Flight, RouterCore
from router.current import Current
from router.decision import decide
from router.placement import Node, NoNode
from router.policy import Policy, Publication
from router.record import TurnRecord
from router.turn import ConversationKey, NodeId, Role, Turn
from slos.objective import Outcome, Slo

from .router_group import RouterGroup
from .told import Told

ROLES = {NodeKind.PREFILL: Role.PREFILL, NodeKind.DECODE: Role.DECODE, NodeKind.REPLICA: Role.REPLICA}


@dataclass(frozen=True, slots=True)
class Client:
    """What sends the turns. `max_in_flight` None: no limit. `timeout_s` counts from when a turn is ready to be sent,
    its wait for a place included, to the end of its answer."""

    max_in_flight: int | None = None
    timeout_s: float = inf

    def __post_init__(self) -> None:
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ValueError(f"a client needs room for 1 request or more in flight, got {self.max_in_flight}")
        if not self.timeout_s > 0:
            raise ValueError(f"a client's timeout must be positive, got {self.timeout_s} s")


EAGER = Client()
"""Sends at once and waits for ever."""


@dataclass(slots=True, eq=False)
class _Talk:
    """One conversation as its user sees it."""

    plan: ConversationPlan
    core: RouterCore
    next_turn: int = 0
    context_tokens: int = 0
    ready_s: float = 0.0
    """When the turn under way was ready to be sent."""
    keeps_place: bool = False
    """Its next turn follows at once and takes the place of the last in the client."""
    flight: Flight | None = None
    calls: list[Call] = field(default_factory=list)
    """Requests of the turn under way."""

    def hang_up(self) -> None:
        """What is still on its way is of no use any more."""
        for call in self.calls:
            call.abort()
        self.calls = []


@dataclass(frozen=True, slots=True)
class TickView:
    """What one tick saw, for plots and reports."""

    at_s: float
    output: ModelOutput
    later_turns: int
    local_turns: int
    state: State
    """The safety state that the tick was in."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A turn still in flight at the end of a run."""

    turn: int
    accepted_s: float
    ttft_s: float | None


class Simulation:
    """One run. Build it, call `run`, read `records`, `ticks`, `unfinished`."""

    def __init__(
        self,
        profile: EngineProfile,
        topology: str,
        policy: Policy,
        slos: Sequence[Slo],
        *,
        seed: int,
        law: Law | None = None,
        decider: Decider = decide,
        on_record: Callable[[TurnRecord], None] | None = None,
        client: Client = EAGER,
        profiles: Mapping[str, EngineProfile] = MappingProxyType({}),
        append_x: float = 1.0,
        connector: str = "nixl",
        kv_events: bool = False,
        routers: int = 1,
        told_share: float = 1.0,
        shadow: Shadow | None = None,
        make: EngineMaker = Engine,
    ) -> None:
        self.events = Events()
        self.fleet = Fleet(topology, profile, self.events, profiles=profiles, connector=connector, make=make)
        self.records: list[TurnRecord] = []
        self.ticks: list[TickView] = []
        self.refused_s: list[tuple[float, int]] = []
        """(time, turn) of turns for which no node could be found."""
        self.later_answered = 0
        self.open = 0
        """Conversations that are planned or under way."""
        self.gave_up_s: list[tuple[float, int]] = []
        """(time, turn) of turns that the client gave up."""
        self.held_s: dict[str, float] = {}
        """How long turns waited for a place in the client, by request id; those that did."""
        self.on_record = on_record
        self.shadow = shadow
        """Told what the controller is told; nothing comes back from it."""
        publication = Publication(1, {"main": policy})
        if self.fleet.appends:
            arms = {"main": policy, "append": replace(policy, pin_x=append_x)}
            publication = Publication(1, arms, {NodeId(name): "append" for name in sorted(self.fleet.appends)})
        nodes = [
            (NodeId(name), ROLES[role], self.fleet.engines[name].profile) for name, role in self.fleet.roles.items()
        ]
        options = ConnectorOptions(
            lease_s=profile.lease_s, block_tokens=profile.block_tokens, addresses=self._addresses()
        )
        self.routers = RouterGroup(
            lambda: RouterCore(
                Current(publication),
                [
                    Node(name, role, own.kv_capacity_tokens, block_tokens=own.block_tokens, introduced=True)
                    for name, role, own in nodes
                ],
                CONNECTORS[connector](options),
                slos,
                decider=decider,
            ),
            routers,
        )
        self.core = self.routers.cores[0]
        """The first router; there is no other unless `routers` says so."""
        self.state = ControlState(publication, law)
        self.table_drift = TableDrift()
        self.drifts: list[Drifted] = []
        """Alarms that the table no longer describes the fleet."""
        self.told = Told(profile.model, slos, share=told_share, seed=seed, also=self._told)
        self.tallies = self.told.tallies
        self.guards: Guards = {}
        self.profile = profile
        self._model = profile.model
        self._coins = np.random.default_rng([seed, 1])
        self._client = client
        self._in_flight = 0
        self._line: deque[_Talk] = deque()
        self._sent = 0
        for name, engine in self.fleet.engines.items():
            self._introduce(name)
            if kv_events:
                block_tokens = engine.profile.block_tokens
                engine.cache.watcher = KvBlocks(block_tokens, self.routers.follow(name, block_tokens))

    def run(self, plans: Iterable[ConversationPlan], phases: Sequence[Phase], faults: Iterable[Fault] = ()) -> None:
        """Run to the end of the last phase."""
        self.advance(self.start(plans, phases, faults))

    def start(self, plans: Iterable[ConversationPlan], phases: Sequence[Phase], faults: Iterable[Fault] = ()) -> float:
        """Put traffic, faults and ticks on the agenda; returns the end of the last phase. Raises ValueError for
        faults that cannot be."""
        at_s = 0.0
        for phase in phases:
            for node in phase.out:
                self.events.at(at_s, self.kill, node)
                self.events.at(at_s + phase.duration_s, self.revive, node)
            at_s += phase.duration_s
        for fault in check(faults, self.fleet.engines):
            self._plan_fault(fault)
        for plan in plans:
            self.open += 1
            self.events.at(plan.start_s, self._ready, _Talk(plan, self.routers.of(plan.name)))
        self.events.at(TICK_S, self._tick)
        self.events.at(USAGE_S, self._usage)
        return at_s

    def advance(self, until_s: float) -> None:
        """Run everything due up to `until_s`."""
        self.events.run(until_s)

    def drain(self, until_s: float) -> None:
        """Run until every conversation has ended, or to `until_s`."""
        while self.open and self.events.now_s < until_s:
            self.advance(min(self.events.now_s + 1.0, until_s))

    @property
    def unfinished(self) -> list[Unfinished]:
        """Turns in flight now."""
        flights = self.routers.flights()
        return [
            Unfinished(
                f.number,
                f.turn.accepted_s,
                None if f.watch.first_s is None else f.watch.first_s - f.watch.accepted_s,
            )
            for f in flights
        ]

    def kill(self, node: str) -> None:
        """The node dies; the router knows at once."""
        self.routers.node_down(node)
        self.fleet.kill(node)

    def revive(self, node: str) -> None:
        """The node is back, empty."""
        self.fleet.revive(node)
        self._introduce(node)
        self.routers.node_up(node)

    def redeclare(self, slos: Sequence[Slo]) -> None:
        """Other objectives from now on, for routers and controller."""
        self.routers.redeclare(slos)
        self.told.redeclare(slos)

    def _plan_fault(self, fault: Fault) -> None:
        begin, end = self.events.at, self.events.at
        node, value = fault.node, fault.value
        if fault.kind is FaultKind.OUT:
            assert node is not None
            begin(fault.at_s, self.kill, node)
            end(fault.end_s, self.revive, node)
        elif fault.kind is FaultKind.SLOW:
            assert node is not None
            begin(fault.at_s, self.fleet.engines[node].slow, value)
            end(fault.end_s, self.fleet.engines[node].slow, 1.0)
        elif fault.kind is FaultKind.BANDWIDTH:
            begin(fault.at_s, self.fleet.set_bandwidth, value, node)
            for name in self.fleet.engines if node is None else (node,):
                end(fault.end_s, self.fleet.set_bandwidth, self.fleet.links[name].bandwidth_gb_s, name)
        else:
            begin(fault.at_s, self.told.metrics_out)
            end(fault.end_s, self.told.metrics_back)

    def _addresses(self) -> dict[NodeId, str]:
        hand_over = self.fleet.hand_over
        return {} if hand_over is None else {NodeId(name): hand_over.address(name) for name in self.fleet.engines}

    def _introduce(self, node: str) -> None:
        if self.fleet.hand_over is not None:
            self.routers.introduce(node, self.fleet.hand_over.engine_id(node))

    # -- one turn ------------------------------------------------------------------------------------------------------

    def _ready(self, talk: _Talk) -> None:
        """The next turn is to be sent now, or as soon as the client has a place for it."""
        talk.ready_s = self.events.now_s
        if self._client.timeout_s < inf:
            self.events.after(self._client.timeout_s, self._give_up, talk, talk.next_turn)
        limit = self._client.max_in_flight
        if talk.keeps_place:
            talk.keeps_place = False
            self._in_flight -= 1
            self._send(talk)
        elif limit is not None and self._in_flight >= limit:
            self._line.append(talk)
        else:
            self._send(talk)

    def _give_up(self, talk: _Talk, number: int) -> None:
        if talk.next_turn != number or (talk.flight is None and talk not in self._line):
            return
        self.gave_up_s.append((self.events.now_s, number + 1))
        if talk.flight is None:
            self._line.remove(talk)
            self._ended(talk)
            return
        flight = talk.flight
        flight.leg = None
        self._close(talk, talk.core.end(flight, self.events.now_s, Outcome.TIMED_OUT))
        self._ended(talk)

    def _close(self, talk: _Talk, record: TurnRecord | None) -> None:
        """The turn is over: somebody else may have its place, unless the conversation's own next turn keeps it."""
        talk.flight = None
        talk.hang_up()
        if not talk.keeps_place:
            self._in_flight -= 1
            if self._line:
                self.events.after(0.0, self._let_in)
        if record is not None:
            self._record(record)

    def _let_in(self) -> None:
        limit = self._client.max_in_flight or 0
        while self._line and self._in_flight < limit:
            self._send(self._line.popleft())

    def _ended(self, talk: _Talk) -> None:
        """The conversation is over."""
        talk.next_turn = len(talk.plan.turns)
        self.open -= 1

    def _send(self, talk: _Talk) -> None:
        plan = talk.plan.turns[talk.next_turn]
        self._sent += 1
        self._in_flight += 1
        now = self.events.now_s
        if now > talk.ready_s:
            self.held_s[f"r{self._sent}"] = now - talk.ready_s
        turn = Turn(
            f"r{self._sent}",
            ConversationKey("", self._model, talk.plan.name),
            plan.new_tokens,
            None,
            True,
            now,
        )
        try:
            flight = talk.core.accept(turn, now, float(self._coins.random()))
        except NoNode:  # refused by the router: the conversation ends
            self.refused_s.append((now, talk.next_turn + 1))
            self._close(talk, None)
            self._ended(talk)
            return
        talk.flight = flight
        self._go(talk, flight, lambda: talk.core.next_leg(flight, None, now))

    def _go(self, talk: _Talk, flight: Flight, next_leg: Callable[[], Leg]) -> None:
        """Send the next leg and what goes beside it, or end the turn if there is none to send."""
        before = flight.leg
        try:
            leg = next_leg()
        except NoNode:
            self._fail(talk, flight)
            return
        if leg is before:  # the prefill beside it is done
            return
        talk.hang_up()
        talk.calls = [self._call(talk, flight, leg, part) for part in (leg, leg.beside) if part is not None]

    def _call(self, talk: _Talk, flight: Flight, leg: Leg, part: Leg) -> Call:
        plan = talk.plan.turns[talk.next_turn]
        prompt = ((talk.plan.name, talk.context_tokens + plan.new_tokens),)
        name, session = part.request_id or flight.turn.request_id, session_of(flight.turn.key)
        request = Request(name, prompt, plan.output_tokens, part.kv_transfer_params, session)
        if part.purpose is Purpose.PREFILL:
            return self.fleet.call(
                part.node,
                request,
                None,
                lambda at_s, reply: self._prefilled(talk, flight, leg, reply),
                lambda at_s, status: self._leg_failed(talk, flight, leg, part),
            )
        return self.fleet.call(
            part.node,
            request,
            lambda at_s: self.events.at(at_s, self._first_seen, talk, flight, leg),
            lambda at_s, reply: self._answered(talk, flight, at_s, reply),
            lambda at_s, status: self._leg_failed(talk, flight, leg, part),
        )

    def _prefilled(self, talk: _Talk, flight: Flight, leg: Leg, reply: Reply) -> None:
        if flight.leg is not leg or not talk.core.is_in_flight(flight):
            return
        now = self.events.now_s
        answer = LegReply(200, reply.prompt_tokens, reply.cached_tokens, reply.kv_transfer_params, now, "length")
        self._go(talk, flight, lambda: talk.core.next_leg(flight, answer, now))

    def _leg_failed(self, talk: _Talk, flight: Flight, leg: Leg, part: Leg) -> None:
        if flight.leg is not leg or not talk.core.is_in_flight(flight):
            return
        now = self.events.now_s
        if flight.watch.first_s is None:
            self._go(talk, flight, lambda: talk.core.leg_failed(flight, now, part))
        elif part is leg:
            self._fail(talk, flight)

    def _fail(self, talk: _Talk, flight: Flight) -> None:
        self._close(talk, talk.core.end(flight, self.events.now_s, Outcome.FAILED))
        self._ended(talk)

    def _first_seen(self, talk: _Talk, flight: Flight, leg: Leg) -> None:
        if flight.leg is leg:  # else D died with this token on its way, and the turn was planned again
            talk.core.first_token(flight, self.events.now_s)

    def _answered(self, talk: _Talk, flight: Flight, at_s: float, reply: Reply) -> None:
        self.events.at(at_s, self._answer_seen, talk, flight, reply)

    def _answer_seen(self, talk: _Talk, flight: Flight, reply: Reply) -> None:
        if talk.flight is not flight:  # given up with its last token on its way
            return
        now = self.events.now_s
        flight.watch.token(now)
        record = talk.core.complete(flight, now, reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
        talk.context_tokens = reply.prompt_tokens + reply.completion_tokens
        talk.next_turn += 1
        if talk.next_turn < len(talk.plan.turns):
            think_s = talk.plan.turns[talk.next_turn].think_s
            talk.keeps_place = think_s == 0
            self.events.after(think_s, self._ready, talk)
        else:
            self._ended(talk)
        self._close(talk, record)

    def _record(self, record: TurnRecord) -> None:
        self.records.append(record)
        self.later_answered += record.turn > 1
        self.told.record(record)
        if self.on_record is not None:
            self.on_record(record)

    def _told(self, record: TurnRecord) -> None:
        """What else takes the records that the controller is told of."""
        self.table_drift.take((record,), self.state.publication.arms["main"])
        if self.shadow is not None:
            self.shadow.take((record,), self.events.now_s)

    def _usage(self) -> None:
        for name, engine in self.fleet.engines.items():
            if engine.alive:
                self.routers.node_usage(name, engine.kv_usage)
        self.events.after(USAGE_S, self._usage)

    # -- control -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.events.now_s
        around = Around(
            pinned=self.core.current.pin_x is not None, busy=frozenset({self._model} if self.routers.flights() else ())
        )
        waiting = self.told.waiting(self.routers.waiting(now))
        ticked = guarded(self.state, self.guards, self.tallies, waiting, now, around)
        self.state, self.guards, outputs = ticked.control, ticked.guards, ticked.outputs
        if outputs.publication is not None:
            self.routers.swap(outputs.publication)
        self.drifts += self.table_drift.tick(now)
        if self.shadow is not None:
            self.shadow.tick(now)
        tally, state = self.tallies[self._model], self.guards[self._model].safety.state
        self.ticks.append(TickView(now, outputs.models[self._model], tally.later_turns, tally.local_turns, state))
        self.events.after(TICK_S, self._tick)
