"""The drift alarm on whole runs in virtual time: a link that becomes slow, and what must not raise it."""

from __future__ import annotations

import numpy as np
import pytest

from controller.tick import TICK_S
from emulator.faults import Fault, FaultKind
from emulator.profiles import PROFILES
from emulator.workload import AGENT, RAG, Phase, conversations
from estimators.drift import Drift
from router.turn import Route
from trimtab.contenders import contenders
from trimtab.scenarios import promises
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

SEEDS = range(100, 105)
BEFORE_S, AFTER_S = 750.0, 500.0
WITHIN_TICKS = 80


def run(profile: str, phases: tuple[Phase, ...], seed: int, *, slow_link: Fault | None = None) -> Simulation:
    contender = contenders(as_tables(shipped()))["controller"]
    own = PROFILES[profile] if slow_link is None else PROFILES[profile].with_bandwidth(150.0)
    simulation = Simulation(own, "2P_2D", contender.policy, promises(2.5, 0.038), seed=seed, law=contender.law)
    plans = conversations(phases, np.random.default_rng([seed, 0]))
    simulation.run(plans, phases, () if slow_link is None else (slow_link,))
    return simulation


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_that_falls_from_150_to_10_gb_s_is_seen_as_slower_transfers(seed):
    fault = Fault(FaultKind.BANDWIDTH, BEFORE_S, AFTER_S, None, 10.0)
    simulation = run("llama-3.1-8b-h100", (Phase("rag", BEFORE_S + AFTER_S, ((RAG, 0.7),)),), seed, slow_link=fault)
    (raised,) = simulation.drifts
    assert (raised.route, raised.drift) == (Route.PREFILL_TRANSFER, Drift.SLOWER)
    assert BEFORE_S < raised.at_s <= BEFORE_S + WITHIN_TICKS * TICK_S


def test_forty_minutes_of_steady_agents_raise_nothing():
    simulation = run("llama-3.1-70b-h100-tp4", (Phase("agents", 2400.0, ((AGENT, 0.5),)),), 100)
    assert simulation.drifts == []
    assert all(fit.reference is not None for fit in simulation.table_drift.fits()), "both routes were looked at"


def test_more_traffic_on_the_same_fleet_is_no_drift_and_no_overload_is():
    phases = (Phase("few", 600.0, ((AGENT, 0.4),)), Phase("too many", 600.0, ((AGENT, 1.2),)))
    simulation = run("llama-3.1-70b-h100-tp4", phases, 101)
    assert simulation.drifts == []
