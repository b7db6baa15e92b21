"""The KV guard: on a fleet with little KV memory no local work takes D's booked tokens above 95 %."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from emulator.fleet import Call, OnDone, OnFailed, OnFirst, Request
from emulator.profiles import LLAMA_3_1_70B_H100_TP4
from emulator.workload import AGENT, Phase, conversations
from router.turn import Reason
from slos.objective import Outcome
from trimtab.contenders import contenders
from trimtab.scenarios import promises
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

pytestmark = pytest.mark.simulation

SEED = 0
PHASES = (Phase("agents", 120.0, ((AGENT, 0.9),)),)


def watched(policy: str, kv_capacity_tokens: int) -> tuple[Simulation, float]:
    """A finished run, and the largest share of D's KV that was booked at the moment when local work was sent."""
    contender = contenders(as_tables(shipped()))[policy]
    profile = replace(LLAMA_3_1_70B_H100_TP4, kv_capacity_tokens=kv_capacity_tokens)
    simulation = Simulation(profile, "2P_2D", contender.policy, promises(2.0, 0.038), seed=SEED, law=contender.law)
    fleet, most = simulation.fleet, 0.0
    send = fleet.call

    def noting(node: str, request: Request, on_first: OnFirst | None, on_done: OnDone, on_failed: OnFailed) -> Call:
        nonlocal most
        if request.kv_transfer_params is None:
            flights = simulation.core.flights()
            booked = sum(f.booked_tokens for f in flights if f.decoding and f.placement.decode == node)
            most = max(most, booked / kv_capacity_tokens)
        return send(node, request, on_first, on_done, on_failed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "call", noting)
        simulation.run(conversations(PHASES, np.random.default_rng([SEED, 0])), PHASES)
        simulation.advance(3600.0)
    return simulation, most


@pytest.mark.parametrize("policy", ["controller", "controller_start_0.03"])
@pytest.mark.parametrize("kv_capacity_tokens", [50_000, 100_000])
def test_no_local_work_takes_booked_kv_above_95_percent(policy, kv_capacity_tokens):
    simulation, most = watched(policy, kv_capacity_tokens)
    assert 0.9 < most <= 0.95, f"seed {SEED}"
    reasons = Counter(record.decision.reason for record in simulation.records)
    assert reasons[Reason.KV_GUARD] > 50 and reasons[Reason.SCORE] > 50
    guarded = [record for record in simulation.records if record.decision.reason is Reason.KV_GUARD]
    assert not any(record.went_local for record in guarded)


def test_guarded_turns_are_answered_like_any_other():
    simulation, _ = watched("controller", 50_000)
    assert {record.outcome for record in simulation.records} == {Outcome.COMPLETED}
    assert not simulation.unfinished and simulation.core.residency_misses <= 10


def test_what_the_guard_prevents_does_happen_without_it():
    _, most = watched("x1", 50_000)
    assert most > 1.0, "an operator's pin is not guarded"


def test_with_room_enough_the_guard_is_silent():
    simulation, most = watched("controller", LLAMA_3_1_70B_H100_TP4.kv_capacity_tokens)
    assert most < 0.6
    assert Reason.KV_GUARD not in {record.decision.reason for record in simulation.records}
