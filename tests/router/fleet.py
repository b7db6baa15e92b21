"""A router core on a fleet of no engines: tests play the engines' part, leg by leg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from router.connectors.protocol import Handshake, HandshakeError, Leg, LegReply, Purpose
from router.core import Decider, Flight, RouterCore
from router.current import Current
from router.decision import decide
from router.placement import Node, Placement
from router.policy import Policy, Publication
from router.record import TurnRecord
from router.turn import NodeId, Role, Turn
from slos.objective import Match, Signal, Slo
from tests.router.samples import policy, turn

CAPACITY = 100_000
LEASE_S = 10.0
SLOS = (
    Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2)),
    Slo("tpot", Signal.TPOT, 0.99, 0.1),
    Slo("success", Signal.SUCCESS, 0.99, None),
)
_ROLES = {"P": Role.PREFILL, "D": Role.DECODE, "R": Role.REPLICA}


class TwoLegs:
    """The least that a connector can be: P, then D within the lease; anything but a 200 from P must not reach D."""

    def handshake(self, turn: Turn, placement: Placement, attempt: int = 1) -> Handshake:
        if placement.prefill is None:
            return Leg(placement.decode, Purpose.DECODE)
        leg = Leg(placement.prefill, Purpose.PREFILL)
        reply = yield leg
        if reply.status != 200:
            raise HandshakeError(leg, f"answered {reply.status}")
        return Leg(placement.decode, Purpose.DECODE, reply.kv_transfer_params, reply.at_s + LEASE_S)


@dataclass
class Fleet:
    """The core, the clock, and one method for each thing that an engine or a client does."""

    core: RouterCore
    now_s: float = 0.0
    sent: int = 0
    records: list[TurnRecord] = field(default_factory=list)

    def accept(self, conversation: str = "c1", new_tokens: int = 100, coin: float = 0.5, **changes: Any) -> Flight:
        self.sent += 1
        asked = turn(f"r{self.sent}", conversation, new_tokens, self.now_s)
        return self.core.accept(replace(asked, **changes), self.now_s, coin)

    def start(self, *args: Any, **changes: Any) -> Flight:
        """Accept and send the first leg."""
        flight = self.accept(*args, **changes)
        self.core.next_leg(flight, None, self.now_s)
        return flight

    def reply(self, flight: Flight, status: int = 200, age_s: float = 0.0) -> Leg:
        """P answers; `age_s`: its answer lay around for so long."""
        prompt = flight.features.prompt_tokens
        params = {"from": flight.placement.prefill}
        cached = prompt - flight.features.uncached_p
        return self.core.next_leg(flight, LegReply(status, prompt, cached, params, self.now_s - age_s), self.now_s)

    def to_decode(self, flight: Flight) -> Leg:
        """Whatever it takes to have the decode leg on its way."""
        assert flight.leg is not None
        return flight.leg if flight.leg.purpose is Purpose.DECODE else self.reply(flight)

    def fail(self, flight: Flight) -> Leg:
        return self.core.leg_failed(flight, self.now_s)

    def finish(self, flight: Flight, output_tokens: int = 50, cached_tokens: int | None = None) -> TurnRecord:
        """First token, half a second more, the end."""
        self.to_decode(flight)
        if flight.watch.first_s is None:
            self.core.first_token(flight, self.now_s)
        self.now_s += 0.5
        flight.watch.token(self.now_s)
        prompt = flight.features.prompt_tokens
        record = self.core.complete(flight, self.now_s, prompt, output_tokens, cached_tokens)
        self.records.append(record)
        return record

    def talk(self, conversation: str = "c1", new_tokens: int = 100, **changes: Any) -> TurnRecord:
        """One whole turn without trouble."""
        return self.finish(self.start(conversation, new_tokens, **changes))

    def load(self, node: NodeId) -> tuple[int, int, int, int]:
        """(prompts waiting, transfers waiting, sequences, KV tokens)."""
        load = self.core.load[node]
        return len(load.prefill), len(load.link), load.sequences, load.kv_tokens


def fleet(
    names: str = "P0 P1 D0 D1",
    held: Policy | None = None,
    *,
    slos: Sequence[Slo] = SLOS,
    capacity: int = CAPACITY,
    decider: Decider = decide,
    **publication: Any,
) -> Fleet:
    """A fleet of those nodes under that policy."""
    arms = {"main": held if held is not None else policy()}
    nodes = [Node(NodeId(name), _ROLES[name[0]], capacity) for name in names.split()]
    current = Current(Publication(1, **{"arms": arms, **publication}))
    return Fleet(RouterCore(current, nodes, TwoLegs(), slos, decider=decider))
