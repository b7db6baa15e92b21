"""Observe mode against the truth: a fleet pinned to x=0 tells what the score at price .4 would have done, and another
run of the same seed does it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from controller.observe import Observed, Shadow
from emulator.profiles import PROFILES
from emulator.workload import AGENT, Phase, conversations
from estimators.quantile import nearest_rank
from router.policy import Policy
from router.record import TurnRecord
from trimtab.contenders import contender
from trimtab.scenarios import H1, promises
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

pytestmark = pytest.mark.simulation

SEED = 1
PHASES = (Phase("agents 0.9/s", 420.0, ((AGENT, 0.9),)),)
SLOS = promises(2.0, 0.038)
TABLES = as_tables(shipped())
MODEL = PROFILES[H1.profile].model


def run(policy: str, shadow: Shadow | None = None) -> Simulation:
    simulation = Simulation(
        PROFILES[H1.profile], H1.topology, contender(policy, TABLES).policy, SLOS, seed=SEED, shadow=shadow
    )
    simulation.run(conversations(PHASES, np.random.default_rng([SEED, 0])), PHASES)
    return simulation


def priced() -> Policy:
    return contender("price_0.4", TABLES).policy


@pytest.fixture(scope="module")
def watched() -> tuple[Simulation, Observed]:
    shadow = Shadow(priced(), None, SLOS)
    simulation = run("x0", shadow)
    return simulation, shadow.observed(MODEL, simulation.events.now_s)


@pytest.fixture(scope="module")
def truth() -> list[TurnRecord]:
    return run("price_0.4").records


def p99(values: list[float]) -> float:
    return nearest_rank(sorted(values), 0.99)


def ttfts(records: list[TurnRecord]) -> list[float]:
    return [r.ttft_s for r in records if r.turn > 1 and r.ttft_s is not None]


def tpots(records: list[TurnRecord]) -> list[float]:
    return [r.tpot_s for r in records if r.tpot_s is not None and r.output_tokens >= 8]


def test_turns_are_served_to_the_byte_as_if_nobody_watched(watched: tuple[Simulation, Observed]) -> None:
    """With a law that moves at that: what it comes to must not matter."""
    law = contender("controller", TABLES).law
    shadow = Shadow(replace(priced(), explore=0.3), law, promises(0.05, 0.001))
    moving = run("x0", shadow)
    assert shadow.policy.weights_for(MODEL).price != pytest.approx(0.4)
    alone = run("x0")
    assert moving.records == alone.records == watched[0].records
    assert moving.core.current.publication == alone.core.current.publication


def test_it_tells_which_way_both_sides_would_have_moved_and_how_far(
    watched: tuple[Simulation, Observed], truth: list[TurnRecord]
) -> None:
    simulation, seen = watched
    acted, real = p99(ttfts(simulation.records)), p99(ttfts(truth))
    assert real < 0.8 * acted, f"seed {SEED}: this seed must show a difference, {acted} {real}"
    assert seen.ttft.shadow.value is not None and seen.tpot.shadow.value is not None
    assert seen.ttft.shadow.value == pytest.approx(real, rel=0.35), f"acted {acted}"
    assert seen.ttft.shadow.value < 0.8 * acted
    was, would = p99(tpots(simulation.records)), p99(tpots(truth))
    assert would > was
    assert seen.tpot.shadow.value == pytest.approx(would, rel=0.25), f"acted {was}"
    assert seen.tpot.shadow.value > was


def test_it_tells_how_many_turns_would_have_gone_local(
    watched: tuple[Simulation, Observed], truth: list[TurnRecord]
) -> None:
    later = [r for r in truth if r.turn > 1]
    real = sum(r.went_local for r in later) / len(later)
    assert watched[1].differing_share == pytest.approx(real, abs=0.06)


def test_the_table_of_the_emulated_fleet_predicts_what_it_measures(watched: tuple[Simulation, Observed]) -> None:
    assert watched[1].off == pytest.approx(1.0, abs=0.15)
