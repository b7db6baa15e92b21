"""Fleet, router core and controller together in virtual time: the production code on emulated engines.

This module is what `router.dispatch` is to sockets: it accepts turns, drives handshakes, relays what the
engines say, and calls the tick. People and tools think, then send the next turn; a turn that fails ends its
conversation.

Node failures are known to the router at once (no health-check delay). Left out: client time-outs, network and
tokenizer time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from controller.cells import Tallies
from controller.laws.protocol import Law
from controller.tick import TICK_S, ControlState, ModelOutput, tick
from emulator.events import Events
from emulator.fleet import Call, Fleet, Reply, Request
from emulator.fleet import Role as NodeKind
from emulator.profiles import EngineProfile
from emulator.workload import ConversationPlan, Phase
from router.connectors import CONNECTORS
from router.connectors.protocol import ConnectorOptions, Leg, LegReply, Purpose
from router.core import Decider, Flight, RouterCore
from router.current import Current
from router.decision import decide
from router.placement import Node, NoNode
from router.policy import Policy, Publication
from router.record import TurnRecord
from router.turn import ConversationKey, NodeId, Role, Turn
from slos.objective import Outcome, Slo

ROLES = {NodeKind.PREFILL: Role.PREFILL, NodeKind.DECODE: Role.DECODE, NodeKind.REPLICA: Role.REPLICA}


@dataclass(slots=True)
class _Talk:
    """One conversation as its user sees it."""

    plan: ConversationPlan
    next_turn: int = 0
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TickView:
    """What one tick saw, for plots and reports."""

    at_s: float
    output: ModelOutput
    later_turns: int
    local_turns: int


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
    ) -> None:
        self.events = Events()
        self.fleet = Fleet(topology, profile, self.events)
        self.records: list[TurnRecord] = []
        self.ticks: list[TickView] = []
        self.refused_s: list[tuple[float, int]] = []
        """(time, turn) of turns for which no node could be found."""
        self.later_answered = 0
        self.on_record = on_record
        publication = Publication(1, {"main": policy})
        self.core = RouterCore(
            Current(publication),
            [
                Node(NodeId(name), ROLES[role], profile.kv_capacity_tokens, block_tokens=profile.block_tokens)
                for name, role in self.fleet.roles.items()
            ],
            CONNECTORS["nixl"](ConnectorOptions(lease_s=profile.lease_s, block_tokens=profile.block_tokens)),
            slos,
            decider=decider,
        )
        self.state = ControlState(publication, law)
        self.tallies = {profile.model: Tallies(profile.model, slos)}
        self.profile = profile
        self._model = profile.model
        self._coins = np.random.default_rng([seed, 1])
        self._calls: dict[str, Call] = {}
        self._sent = 0

    def run(self, plans: Iterable[ConversationPlan], phases: Sequence[Phase]) -> None:
        """Run to the end of the last phase."""
        self.advance(self.start(plans, phases))

    def start(self, plans: Iterable[ConversationPlan], phases: Sequence[Phase]) -> float:
        """Put traffic, faults and ticks on the agenda; returns the end of the last phase."""
        at_s = 0.0
        for phase in phases:
            for node in phase.out:
                self.events.at(at_s, self.kill, node)
                self.events.at(at_s + phase.duration_s, self.revive, node)
            at_s += phase.duration_s
        for plan in plans:
            self.events.at(plan.start_s, self._send, _Talk(plan))
        self.events.at(TICK_S, self._tick)
        return at_s

    def advance(self, until_s: float) -> None:
        """Run everything due up to `until_s`."""
        self.events.run(until_s)

    @property
    def unfinished(self) -> list[Unfinished]:
        """Turns in flight now."""
        flights = self.core.flights()
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
        self.core.node_down(NodeId(node))
        self.fleet.kill(node)

    def revive(self, node: str) -> None:
        """The node is back, empty."""
        self.fleet.revive(node)
        self.core.node_up(NodeId(node))

    # -- one turn ------------------------------------------------------------------------------------------------------

    def _send(self, talk: _Talk) -> None:
        plan = talk.plan.turns[talk.next_turn]
        self._sent += 1
        now = self.events.now_s
        turn = Turn(
            f"r{self._sent}",
            ConversationKey("", self._model, talk.plan.name),
            plan.new_tokens,
            None,
            True,
            now,
        )
        try:
            flight = self.core.accept(turn, now, float(self._coins.random()))
        except NoNode:  # refused by the router: the conversation ends
            self.refused_s.append((now, talk.next_turn + 1))
            return
        self._go(talk, flight, lambda: self.core.next_leg(flight, None, now))

    def _go(self, talk: _Talk, flight: Flight, next_leg: Callable[[], Leg]) -> None:
        """Send the next leg, or end the turn if there is none to send."""
        try:
            leg = next_leg()
        except NoNode:
            self._record(self.core.end(flight, self.events.now_s, Outcome.FAILED))
            return
        plan = talk.plan.turns[talk.next_turn]
        prompt = ((talk.plan.name, talk.context_tokens + plan.new_tokens),)
        request = Request(flight.turn.request_id, prompt, plan.output_tokens, leg.kv_transfer_params)
        if leg.purpose is Purpose.PREFILL:
            self.fleet.call(
                leg.node,
                request,
                None,
                lambda at_s, reply: self._prefilled(talk, flight, leg, reply),
                lambda at_s, status: self._leg_failed(talk, flight, leg),
            )
        else:
            self.fleet.call(
                leg.node,
                request,
                lambda at_s: self.events.at(at_s, self._first_seen, flight, leg),
                lambda at_s, reply: self._answered(talk, flight, at_s, reply),
                lambda at_s, status: self._leg_failed(talk, flight, leg),
            )

    def _prefilled(self, talk: _Talk, flight: Flight, leg: Leg, reply: Reply) -> None:
        if flight.leg is not leg:
            return
        now = self.events.now_s
        answer = LegReply(200, reply.prompt_tokens, reply.cached_tokens, reply.kv_transfer_params, now)
        self._go(talk, flight, lambda: self.core.next_leg(flight, answer, now))

    def _leg_failed(self, talk: _Talk, flight: Flight, leg: Leg) -> None:
        if flight.leg is not leg:
            return
        now = self.events.now_s
        if flight.watch.first_s is not None:
            self._record(self.core.end(flight, now, Outcome.FAILED))
            return
        self._go(talk, flight, lambda: self.core.leg_failed(flight, now))

    def _first_seen(self, flight: Flight, leg: Leg) -> None:
        if flight.leg is leg:  # else D died with this token on its way, and the turn was planned again
            self.core.first_token(flight, self.events.now_s)

    def _answered(self, talk: _Talk, flight: Flight, at_s: float, reply: Reply) -> None:
        self.events.at(at_s, self._answer_seen, talk, flight, reply)

    def _answer_seen(self, talk: _Talk, flight: Flight, reply: Reply) -> None:
        now = self.events.now_s
        flight.watch.token(now)
        record = self.core.complete(flight, now, reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
        self._record(record)
        talk.context_tokens = reply.prompt_tokens + reply.completion_tokens
        talk.next_turn += 1
        if talk.next_turn < len(talk.plan.turns):
            self.events.after(talk.plan.turns[talk.next_turn].think_s, self._send, talk)

    def _record(self, record: TurnRecord) -> None:
        self.records.append(record)
        self.later_answered += record.turn > 1
        self.tallies[record.model].fold(record)
        if self.on_record is not None:
            self.on_record(record)

    # -- control -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.events.now_s
        self.state, outputs = tick(self.state, self.tallies, self.core.waiting(now), now)
        if outputs.publication is not None:
            self.core.current.swap(outputs.publication)
        tally = self.tallies[self._model]
        self.ticks.append(TickView(now, outputs.models[self._model], tally.later_turns, tally.local_turns))
        self.events.after(TICK_S, self._tick)
