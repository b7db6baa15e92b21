"""The controller loses sight of its turns for a while, in virtual time: it holds, goes home, and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import log

import numpy as np
import pytest

from controller.cells import WINDOW_TICKS
from controller.laws.protocol import Action, Adjustment, Sides
from controller.safety import HOME_TICKS, MUTE_TICKS, STALE_TICKS, State
from controller.tick import TICK_S
from emulator.faults import Fault, FaultKind
from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.workload import CHAT, Phase, conversations
from router.policy import Policy, Weights
from tests.controller.records import TPOT, TTFT
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

pytestmark = pytest.mark.simulation

OUT_S = 60.0
HOME = 0.4


class Creep:
    """Raises the price a little every tick, whatever it reads, so that a tick without a move shows."""

    def step(self, sigma: float, sides: Sides) -> tuple[Creep, Adjustment]:
        return self, Adjustment(max(0.0, sigma - 0.01), Action.PROTECT_TPOT)

    @property
    def memory(self) -> Mapping[str, float]:
        return {}

    def remembering(self, memory: Mapping[str, float]) -> Creep:
        return self


def run(out_for_s: float) -> tuple[list[State], list[float]]:
    """States and prices by tick; the metrics are away from `OUT_S` on."""
    policy = Policy(1, as_tables(shipped()), Weights.from_price(HOME))
    simulation = Simulation(LLAMA_3_1_8B_H100, "2P_2D", policy, (TTFT, TPOT), seed=0, law=Creep())
    phases = (Phase("chat", OUT_S + out_for_s + 60.0, ((CHAT, 1.0),)),)
    plans = conversations(phases, np.random.default_rng(0))
    simulation.run(plans, phases, (Fault(FaultKind.METRICS, OUT_S + 0.001, out_for_s),))
    last = simulation.state.publication.arms["main"].weights_for(simulation.profile.model).price
    return [view.state for view in simulation.ticks], [*(view.output.price for view in simulation.ticks), last]


BEFORE = int(OUT_S / TICK_S)
"""Ticks that see turns before the outage."""


def test_a_short_outage_holds_the_price_and_the_law_goes_on_once_its_window_is_fresh():
    states, prices = run(6 * TICK_S)
    blind, back = states[BEFORE : BEFORE + 6], states[BEFORE + 6 :]
    assert set(states[:BEFORE]) == {State.ACTIVE}
    assert blind == [State.ACTIVE] * (MUTE_TICKS - 1) + [State.HOLD] * (6 - MUTE_TICKS + 1)
    assert back[:WINDOW_TICKS] == [State.HOLD] * WINDOW_TICKS and set(back[WINDOW_TICKS:]) == {State.ACTIVE}
    held = prices[BEFORE + MUTE_TICKS - 1 : BEFORE + 6 + WINDOW_TICKS]
    assert len(set(held)) == 1, "not moved by a bit"
    assert prices[-1] > held[-1] > HOME


def test_a_long_one_takes_the_price_home_in_steps_and_the_law_starts_from_there():
    states, prices = run(25 * TICK_S)
    home = states.index(State.FALLBACK_HOME)
    assert home == BEFORE + STALE_TICKS
    way = prices[home : home + HOME_TICKS + 1]
    assert [log(b / a) for a, b in pairwise(way)] == pytest.approx([log(HOME / way[0]) / HOME_TICKS] * HOME_TICKS)
    assert set(states[home : BEFORE + 25]) == {State.FALLBACK_HOME} and prices[BEFORE + 25] == pytest.approx(HOME)
    back = states[BEFORE + 25 :]
    assert back[:WINDOW_TICKS] == [State.HOLD] * WINDOW_TICKS and set(back[WINDOW_TICKS:]) == {State.ACTIVE}
    assert prices[-1] > HOME


def test_an_outage_leaves_no_trace_in_the_state_when_nothing_was_out():
    states, _ = run(0.0)
    assert set(states) == {State.ACTIVE}
