"""The KV guard on a fleet with little KV memory: no local work takes D's booked tokens above 95 %, and an overload does
not last."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from controller.laws import DEFAULT_LAW, LAWS
from controller.laws.aimd import Aimd
from controller.laws.protocol import Law
from emulator.fleet import Call, OnDone, OnFailed, OnFirst, Request
from emulator.profiles import LLAMA_3_1_70B_H100_TP4
from emulator.workload import AGENT, Phase, conversations
from router.core import Decider
from router.decision import Decision, decide
from router.features import TurnFeatures
from router.kv_guard import OVERRUN
from router.policy import Policy
from router.turn import Reason, Route
from slos.objective import Outcome
from trimtab.contenders import contenders
from trimtab.scenarios import H1, promises
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


SHORT_OF_KV = replace(H1, phases=(*H1.phases[:2], replace(H1.phases[2], duration_s=120.0)))
"""H1 with half the KV memory on D; the fleet is whole again from 480 s on."""
BACK_S, MINUTE_S = 480.0, 60.0


def unguarded(policy: Policy, features: TurnFeatures, coin: float) -> Decision:
    decision = decide(policy, features, coin)
    return replace(decision, route=Route.APPEND_LOCAL) if decision.reason is Reason.KV_SHORT else decision


def short_of_kv(decider: Decider, law: Law | None = None) -> Simulation:
    """Under AIMD, which goes to the end of the range in an overload, unless told otherwise."""
    contender = contenders(as_tables(shipped()))["controller"]
    half = replace(LLAMA_3_1_70B_H100_TP4, kv_capacity_tokens=LLAMA_3_1_70B_H100_TP4.kv_capacity_tokens // 2)
    simulation = Simulation(
        LLAMA_3_1_70B_H100_TP4,
        SHORT_OF_KV.topology,
        contender.policy,
        SHORT_OF_KV.slos,
        seed=100,
        law=law or Aimd(),
        decider=decider,
        profiles={"D": half},
    )
    simulation.run(SHORT_OF_KV.conversations(100), SHORT_OF_KV.phases)
    return simulation


def in_time_after_a_minute(simulation: Simulation) -> float:
    """Share of later turns within the TTFT objective, of those sent when the fleet had been whole for a minute."""
    begin_s = BACK_S + MINUTE_S
    ttft = [r.ttft_s or inf for r in simulation.records if r.turn > 1 and r.accepted_s >= begin_s]
    ttft += [u.ttft_s or inf for u in simulation.unfinished if u.turn > 1 and begin_s <= u.accepted_s < begin_s + 50.0]
    return sum(each <= 2.0 for each in ttft) / len(ttft)


def test_with_too_little_kv_the_fleet_recovers_within_a_minute_and_without_the_price_floor_it_stays_down():
    now_s = SHORT_OF_KV.duration_s
    down, up = short_of_kv(unguarded), short_of_kv(decide)
    assert in_time_after_a_minute(down) < 0.6 and in_time_after_a_minute(up) > 0.95, (
        f"{in_time_after_a_minute(down):.3f} {in_time_after_a_minute(up):.3f}"
    )
    assert all(churn.recomputed(now_s) > OVERRUN for churn in down.core.churn.values())
    assert all(churn.recomputed(now_s) < OVERRUN for churn in up.core.churn.values())


def test_under_the_default_law_too_the_price_floor_is_what_brings_it_back():
    law = LAWS[DEFAULT_LAW]()
    down, up = (in_time_after_a_minute(short_of_kv(decider, law)) for decider in (unguarded, decide))
    assert down < 0.85 and up > 0.95, f"{down:.3f} {up:.3f}"
