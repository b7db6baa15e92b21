"""H1 to H4 are fixed: their loads and their promises, word for word. Never tune them to a result."""

from dataclasses import replace

import pytest

from emulator.arrivals import Arrivals
from emulator.fleet import parse_topology
from emulator.profiles import PROFILES
from emulator.workload import Phase
from slos.objective import Match, Signal, Slo
from trimtab.scenarios import SCENARIOS, promises


def loads(name: str) -> list[tuple[float, dict[str, float | Arrivals], tuple[str, ...]]]:
    return [
        (phase.duration_s, {mix.name: rate_hz for mix, rate_hz in phase.traffic}, phase.out)
        for phase in SCENARIOS[name].phases
    ]


def test_the_scenarios_are_h1_to_h4():
    assert list(SCENARIOS) == ["H1", "H2", "H3", "H4"]
    assert all(name == scenario.name for name, scenario in SCENARIOS.items())


def test_h1_is_agents_with_one_prefill_node_out_and_back():
    agents = {"agent": 0.9}
    assert loads("H1") == [(240, agents, ()), (240, {"agent": 0.6}, ("P1",)), (240, agents, ())]
    assert SCENARIOS["H1"].slos == promises(2.0, 0.038)


def test_h2_is_the_short_form_of_h1():
    agents = {"agent": 0.9}
    assert loads("H2") == [(140, agents, ()), (100, {"agent": 0.58}, ("P1",)), (100, agents, ())]
    assert SCENARIOS["H2"].slos == promises(2.0, 0.040)


def test_h3_is_retrieval_chat_with_an_ingest_tenant_in_the_middle():
    alone = {"rag": 0.55}
    assert loads("H3") == [(240, alone, ()), (240, {"rag": 0.32, "ingest": 1.28}, ()), (240, alone, ())]
    assert SCENARIOS["H3"].slos == promises(2.5, 0.040)


def test_h4_is_a_day_in_five_phases():
    assert loads("H4") == [
        (200, {"chat": 3.8}, ()),
        (200, {"agent": 0.9}, ()),
        (200, {"agent": 0.6}, ("P1",)),
        (200, {"paste": 1.05}, ()),
        (200, {"agent": 0.9}, ()),
    ]
    assert SCENARIOS["H4"].slos == promises(2.5, 0.038)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_all_run_the_70b_model_on_two_prefill_and_two_decode_nodes(scenario):
    assert PROFILES[scenario.profile].model == "llama-3.1-70b" and scenario.topology == "2P_2D"
    assert scenario.duration_s == {"H1": 720, "H2": 340, "H3": 720, "H4": 1000}[scenario.name]
    nodes = {f"{role}{at}" for role, count in parse_topology(scenario.topology).items() for at in range(count)}
    assert all(node in nodes for phase in scenario.phases for node in phase.out)


def test_a_minute_after_each_change_is_not_judged_and_half_of_it_in_the_short_form():
    settles = {
        name: [scenario.settle_of(phase) for phase in range(len(scenario.phases))]
        for name, scenario in SCENARIOS.items()
    }
    assert settles == {"H1": [60.0] * 3, "H2": [40.0, 30.0, 30.0], "H3": [60.0] * 3, "H4": [60.0] * 5}


def test_the_same_phases_fit_into_another_time_settling_included():
    half = SCENARIOS["H2"].lasting(170.0)
    assert [phase.duration_s for phase in half.phases] == [70.0, 50.0, 50.0]
    assert [half.settle_of(phase) for phase in range(3)] == [20.0, 15.0, 15.0]
    assert [phase.traffic for phase in half.phases] == [phase.traffic for phase in SCENARIOS["H2"].phases]
    assert half.slos == SCENARIOS["H2"].slos


def test_the_traffic_is_a_function_of_the_seed():
    h1 = SCENARIOS["H1"]
    assert h1.conversations(0) == h1.conversations(0) != h1.conversations(1)
    recorded = h1.conversations(3)[:5]
    replayed = replace(h1, phases=(Phase("recorded", 720, recorded=tuple(recorded)),))
    assert replayed.conversations(9) == recorded


def test_the_promises_are_p99_ttft_of_later_turns_and_p99_tpot_of_all_turns():
    assert promises(2.0, 0.038) == (
        Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2)),
        Slo("tpot", Signal.TPOT, 0.99, 0.038),
    )
