"""Many turns at once, failing and succeeding in any order while nodes come and go: nothing is ever negative, and
nothing is left when the last turn has ended."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.workload import AGENT, INGEST, Phase, conversations
from router.connectors.protocol import Leg, Purpose
from router.core import MAX_ATTEMPTS, Flight
from router.placement import NoNode
from router.turn import NodeId, Reason
from slos.objective import Outcome
from tests.router.fleet import LEASE_S, SLOS, Fleet, fleet
from tests.router.samples import key, policy
from trimtab.contenders import contenders
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

NAMES = "P0 P1 D0 D1 R0"
CONVERSATIONS = "abc"
CAPACITY = 20_000  # small, so that memory runs out and transfers move to a roomier D
POLICIES = {
    "priced": policy(explore=0.2),
    "half": policy(pin_x=0.5),
    "all through P": policy(pin_x=0.0),
    "no table": policy(tables={}),
}


class Play:
    """Carries out one step after another, with the turns that are on their way."""

    def __init__(self, policy_name: str) -> None:
        self.run = fleet(NAMES, POLICIES[policy_name], capacity=CAPACITY)
        self.flying: list[Flight] = []
        self.ended = 0
        self.refused = 0

    def step(self, action: str, which: int, amount: float) -> None:
        if action == "wait":
            self.run.now_s += amount * 5
        elif action in ("down", "up"):
            node = NodeId(NAMES.split()[which % 5])
            (self.run.core.node_down if action == "down" else self.run.core.node_up)(node)
        elif action == "accept":
            self.accept(CONVERSATIONS[which % 3], 1 + round(amount * 6000), amount)
        elif self.flying:
            getattr(self, action)(self.flying[which % len(self.flying)])

    def accept(self, conversation: str, new_tokens: int, coin: float) -> None:
        try:
            flight = self.run.accept(conversation, new_tokens, coin * 0.999)
        except NoNode:
            self.refused += 1
            return
        self.flying.append(flight)
        self.go(flight, lambda: self.run.core.next_leg(flight, None, self.run.now_s))

    def go(self, flight: Flight, next_leg: Callable[[], Leg]) -> None:
        """What a shell does: send the leg, or end the turn if there is none."""
        try:
            leg = next_leg()
        except NoNode:
            self.end(flight, Outcome.FAILED)
        else:
            assert flight.leg is leg
            assert leg.node not in flight.avoid

    def advance(self, flight: Flight) -> None:
        """The next good thing happens."""
        if waits_for_p(flight):
            self.go(flight, lambda: self.run.reply(flight))
        elif flight.watch.first_s is None:
            self.run.core.first_token(flight, self.run.now_s)
        else:
            self.finish(flight)

    def serve(self, flight: Flight) -> None:
        """All goes well to the end."""
        while flight in self.flying:
            self.advance(flight)

    def fail(self, flight: Flight) -> None:
        """Its leg breaks."""
        if flight.watch.first_s is None:
            self.go(flight, lambda: self.run.fail(flight))
        else:
            self.end(flight, Outcome.FAILED)

    def refuse(self, flight: Flight) -> None:
        """P answers with an error."""
        if waits_for_p(flight):
            self.go(flight, lambda: self.run.reply(flight, status=500))

    def expire(self, flight: Flight) -> None:
        """P's answer was too long on its way."""
        if waits_for_p(flight):
            self.go(flight, lambda: self.run.reply(flight, age_s=LEASE_S + 1))

    def leave(self, flight: Flight) -> None:
        """The client hangs up."""
        self.end(flight, Outcome.CLIENT_GONE)

    def finish(self, flight: Flight) -> None:
        record = self.run.finish(flight, output_tokens=1 + flight.number * 7, cached_tokens=flight.number % 2 * 10_000)
        assert record.attempts <= MAX_ATTEMPTS
        self.left(flight)

    def end(self, flight: Flight, outcome: Outcome) -> None:
        record = self.run.core.end(flight, self.run.now_s, outcome)
        assert record.attempts <= MAX_ATTEMPTS
        self.left(flight)

    def left(self, flight: Flight) -> None:
        self.flying.remove(flight)
        self.ended += 1


def waits_for_p(flight: Flight) -> bool:
    return flight.leg is not None and flight.leg.purpose is Purpose.PREFILL


def check_books(play: Play) -> None:
    """The counters are those of the turns in flight."""
    core = play.run.core
    assert core.flights() == play.flying
    in_flight = {flight.turn.request_id for flight in play.flying}
    assert core.leases._open.keys() <= in_flight
    assert all(flight.turn.request_id not in core.leases._open for flight in play.flying if flight.watch.first_s)
    assert sum(core.leases.held(play.run.now_s).values()) <= sum(core.leases.stranded.values())
    for node, load in core.load.items():
        here = [flight for flight in play.flying if flight.decoding and flight.placement.decode == node]
        assert load.sequences == len(here)
        assert load.kv_tokens == sum(flight.booked_tokens for flight in here)
        assert load.prefill.ms(play.run.now_s) >= 0.0
        assert load.link.ms(play.run.now_s) >= 0.0
        assert len(load.prefill) + len(load.link) <= len(play.flying)
        assert core.residency.live_tokens(node, play.run.now_s) >= 0
        assert all(core.residency.held(node, key(name)) >= 0 for name in CONVERSATIONS)
    for name in CONVERSATIONS:
        flying = sum(flight.turn.key == key(name) for flight in play.flying)
        assert core.conversations.open(key(name), play.run.now_s).in_flight == flying


def check_rest(run: Fleet) -> None:
    """Nobody is on the way, so nothing is booked and nothing is pinned."""
    core = run.core
    assert core.flights() == []
    assert not core.leases.open()
    assert core.waiting(run.now_s) == []
    for node in core.nodes:
        assert run.load(node) == (0, 0, 0, 0)
        assert core.load[node].prefill.ms(run.now_s) == 0.0
        assert core.load[node].link.ms(run.now_s) == 0.0
        core.residency.ledger(node).missed(inf)  # drops whatever is idle, so what stays is pinned
        assert [core.residency.held(node, key(name)) for name in CONVERSATIONS] == [0] * 3


ACTIONS = ["accept"] * 5 + ["advance"] * 4 + ["serve", "fail", "refuse", "expire", "leave", "wait", "down", "up", "up"]
steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 29), st.floats(0, 1)), min_size=40, max_size=120)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(held=st.sampled_from(sorted(POLICIES)), steps=steps)
def test_books_are_right_at_every_step_and_empty_at_the_end(held, steps):
    play = Play(held)
    for step in steps:
        play.step(*step)
        check_books(play)
    while play.flying:
        play.advance(play.flying[-1])
    check_rest(play.run)
    counts = play.run.core.counts.snapshot()
    assert {slo.name for slo in SLOS} == counts.keys()
    assert all(count.valid + count.excluded == play.ended + play.refused for count in counts.values())


@given(steps=steps)
def test_a_turn_that_was_planned_again_says_so_and_no_other_does(steps):
    play = Play("priced")
    for step in steps:
        play.step(*step)
        for flight in play.flying:
            again = flight.decision.reason in (Reason.PREFILL_FAILED, Reason.DECODE_FAILED)
            assert again is (flight.attempts > 1)


@pytest.mark.simulation
@pytest.mark.parametrize("held", ["controller", "x0", "x1"])
def test_on_emulated_engines_that_die_and_return_nothing_is_left_either(held: str):
    contender = contenders(as_tables(shipped()))[held]
    run = Simulation(LLAMA_3_1_8B_H100, "2P_2D", contender.policy, SLOS, seed=3, law=contender.law)
    phases = (
        Phase("all up", 20, ((AGENT, 2.0), (INGEST, 0.5))),
        Phase("a P and a D out", 20, ((AGENT, 2.0),), out=("P1", "D0")),
        Phase("all up again", 20, ((AGENT, 2.0),)),
    )
    run.run(conversations(phases, np.random.default_rng(3)), phases)
    assert len(run.records) > 300
    assert any(record.attempts > 1 for record in run.records)
    run.advance(3600.0)  # the last conversations end
    for load in run.core.load.values():
        assert (len(load.prefill), len(load.link), load.sequences, load.kv_tokens) == (0, 0, 0, 0)
    assert (run.core.flights(), run.fleet.open_leases, run.fleet.poisoned_reads) == ([], 0, 0)
