"""Half of D's traffic goes past the router: what the router believes of D's KV, and what that costs.

    python -m tests.simulation.bypass [SEEDS]

70B profile, 2P_2D, controller, one phase of 480 s. As many conversations of the same mix again go straight to a
D, which computes and keeps them whole. KV memory is small enough that idle conversations are evicted. Four routers:

    books     the ledger alone: nothing is learned from what engines found, no KV usage is read
    learned   the ledger with the foreign inflow
    usage     the same with the engines' KV usage, as a router runs
    events    D's and P's KV events

Source: emulated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean
from unittest.mock import patch

import numpy as np

from controller.laws.aimd import Aimd
from emulator.fleet import Reply, Request
from emulator.profiles import LLAMA_3_1_70B_H100_TP4
from emulator.workload import AGENT, CHAT, RAG, ConversationPlan, Mix, Phase, conversations
from router.ledger import Ledger
from router.reuse import Verdict
from trimtab.contenders import contenders
from trimtab.scenarios import Scenario, promises
from trimtab.score import score
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

ARMS = ("books", "learned", "usage", "events")
DURATION_S = 480.0


@dataclass(frozen=True)
class Case:
    """A mix, its conversations per second through the router (and as many past it), each node's KV memory."""

    mix: Mix
    rate_hz: float
    kv_capacity_tokens: int


CASES = {
    "agents": Case(AGENT, 0.25, 220_000),
    "chat": Case(CHAT, 1.2, 130_000),
    "rag": Case(RAG, 0.2, 200_000),
}


class Bypass:
    """Conversations of which the router knows nothing, each on one D."""

    def __init__(self, simulation: Simulation, plans: Iterable[ConversationPlan]) -> None:
        self._fleet, self._events = simulation.fleet, simulation.events
        self._sent = 0
        for at, plan in enumerate(plans):
            self._events.at(plan.start_s, self._send, plan, f"D{at % 2}", 0, 0)

    def _send(self, plan: ConversationPlan, node: str, turn: int, context: int) -> None:
        planned = plan.turns[turn]
        self._sent += 1
        prompt = ((f"past-{plan.name}", context + planned.new_tokens),)
        self._fleet.call(
            node,
            Request(f"past{self._sent}", prompt, planned.output_tokens),
            None,
            lambda at_s, reply: self._events.at(at_s, self._answered, plan, node, turn, reply),
            lambda at_s, status: None,
        )

    def _answered(self, plan: ConversationPlan, node: str, turn: int, reply: Reply) -> None:
        if turn + 1 < len(plan.turns):
            context = reply.prompt_tokens + reply.completion_tokens
            self._events.after(plan.turns[turn + 1].think_s, self._send, plan, node, turn + 1, context)


@dataclass(frozen=True)
class Result:
    """One run: attainment 0..1, local turns, and how many of them found less on D than was believed."""

    attainment: float
    local: int
    misses: int


def run(case: Case, arm: str, seed: int) -> Result:
    """One arm on one seed."""
    profile = replace(LLAMA_3_1_70B_H100_TP4, kv_capacity_tokens=case.kv_capacity_tokens)
    phase = Phase(case.mix.name, DURATION_S, ((case.mix, case.rate_hz),))
    scenario = Scenario("bypass", "half past the router", profile.name, "2P_2D", (phase,), promises(2.0, 0.038))
    contender = contenders(as_tables(shipped()))["controller"]
    simulation = Simulation(
        profile,
        scenario.topology,
        contender.policy,
        scenario.slos,
        seed=seed,
        law=Aimd(),
        kv_events=arm == "events",
    )
    Bypass(simulation, conversations((phase,), np.random.default_rng([seed, 7])))
    with (
        patch.object(Ledger, "learn", _nothing if arm == "books" else Ledger.learn),
        patch.object(
            simulation.core, "node_usage", _nothing if arm in ("books", "learned") else simulation.core.node_usage
        ),
    ):
        simulation.run(scenario.conversations(seed), scenario.phases)
    found = score(scenario, simulation.records, simulation.unfinished, simulation.refused_s)
    misses = sum(
        count
        for (node, _, verdict), count in simulation.core.residency.checks.items()
        if node.startswith("D") and verdict is not Verdict.HIT
    )
    later = [record for record in simulation.records if record.turn > 1]
    return Result(found.attainment, sum(record.went_local for record in later), misses)


def _nothing(*_: object, **__: object) -> None:
    """What an arm does not do."""


def main(seeds: int) -> None:
    """Print a table."""
    print(f"seeds 0..{seeds - 1}, source: emulated")
    print("| case | arm | J % | worst | local turns | misses |\n|---|---|--:|--:|--:|--:|")
    for name, case in CASES.items():
        for arm in ARMS:
            results = [run(case, arm, seed) for seed in range(seeds)]
            shares = [100 * result.attainment for result in results]
            local, misses = sum(r.local for r in results), sum(r.misses for r in results)
            print(f"| {name} | {arm} | {fmean(shares):.1f} | {min(shares):.1f} | {local} | {misses} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
