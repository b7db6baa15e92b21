"""The catalogue and the split: every scenario is there once, can run, and draws the same traffic for a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.faults import check
from emulator.fleet import parse_topology
from slos.objective import Signal
from trimtab.runs import Job, run_one
from trimtab.scenarios import SCENARIOS
from trimtab.suite.catalogue import CATALOGUE, Sided, entries_named
from trimtab.suite.split import SplitError, parse_split, shipped_split

EACH = pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE)


def test_the_split_names_every_scenario_once():
    split = shipped_split()
    assert sorted([*split.tuning, *split.held_out]) == sorted(CATALOGUE)


def test_the_split_is_the_one_that_was_decided_before_any_tuning():
    split = shipped_split()
    assert set(split.tuning) == {
        "chat_paste_chat",
        "slo_switch",
        "load_step",
        "mmpp",
        "d_kv_shortage",
        "wrong_table",
        "infeasible",
    }
    assert set(split.held_out) == {
        *("h1", "h3", "h4", "rush", "diurnal", "p_failure", "d_failure", "bandwidth", "infeasible_3x", "sampling"),
        *("flash_crowd", "cold_start", "metric_outage", "rolling_restart", "heterogeneous_d", "agents_50k"),
        *("several_routers", "h4_misfit", "day"),
    }
    assert split.tuning_seeds == tuple(range(100, 105)) and split.held_out_seeds == tuple(range(200, 220))


def test_the_issue_asks_for_six_two_sided_and_five_one_sided_scenarios():
    sided = [entry.sided for entry in CATALOGUE.values()]
    assert (sided.count(Sided.TWO), sided.count(Sided.ONE)) == (6, 5)


def test_the_headline_scenarios_are_the_demos_own():
    for name in ("H1", "H3", "H4"):
        mine, theirs = CATALOGUE[name.lower()].scenario, SCENARIOS[name]
        assert (mine.phases, mine.slos, mine.settle_s) == (theirs.phases, theirs.slos, theirs.settle_s)


@EACH
def test_a_scenario_lasts_ten_to_seventeen_minutes_and_judges_a_part_of_each_phase(entry):
    if not entry.feasible:
        assert 600 <= entry.scenario.duration_s <= 1020
    assert all(entry.scenario.settle_of(at) < phase.duration_s for at, phase in enumerate(entry.scenario.phases))


def test_feasible_traffic_lasts_a_day_over_twenty_seeds():
    feasible = [entry for entry in CATALOGUE.values() if entry.feasible]
    assert sum(20 * entry.scenario.duration_s for entry in feasible) == 24 * 3600


@EACH
def test_its_traffic_is_a_function_of_the_seed(entry):
    short = entry.scenario.lasting(90)
    assert short.conversations(100) == short.conversations(100) != short.conversations(101)


@EACH
def test_its_faults_and_failures_are_of_nodes_that_it_has(entry):
    scenario = entry.scenario
    nodes = [f"{role}{at}" for role, count in parse_topology(scenario.topology).items() for at in range(count)]
    assert len(check(scenario.faults, nodes)) == len(scenario.faults)
    assert all(fault.at_s < scenario.duration_s for fault in scenario.faults)
    assert all(node in nodes for phase in scenario.phases for node in phase.out)


@EACH
def test_every_phase_promises_one_ttft_and_one_tpot(entry):
    for at in range(len(entry.scenario.phases)):
        assert sorted(slo.signal.value for slo in entry.scenario.slos_of(at)) == [Signal.TPOT.value, Signal.TTFT.value]


@EACH
def test_its_first_seconds_run(entry):
    run = run_one(Job(entry.scenario.lasting(9), "controller", 100, True))
    assert len(run.score.phases) == len(entry.scenario.phases) and run.ticks


def test_what_is_impossible_is_a_phase_and_has_a_time_to_be_said_in():
    for entry in CATALOGUE.values():
        assert (entry.impossible is None) == (entry.flagged_within_s is None)
        assert entry.impossible is None or entry.impossible < len(entry.scenario.phases)


def test_an_unknown_name_is_told_what_is_near():
    with pytest.raises(ValueError, match=r"unknown scenario 'load_stop'; did you mean load_step\?"):
        entries_named(["load_stop"])


GOOD = """
version: 1
tuning: {scenarios: [a], seeds: [1]}
held_out: {scenarios: [b], seeds: [2]}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "version is missing"),
        (GOOD.replace("version: 1", "version: 2"), "version is missing or not known"),
        (GOOD.replace("seeds: [1]", "seeds: [one]"), "tuning.seeds must be a list of int"),
        (GOOD.replace("scenarios: [b], ", ""), "held_out.scenarios must be a list of str"),
        (GOOD.replace("[b]", "[b, b]"), "held_out.scenarios lists something twice"),
        (GOOD.replace("[b]", "[a]"), "a: listed for tuning and as held out"),
        (GOOD.replace("seeds: [2]", "seeds: [1]"), "seeds 1: for tuning and held out"),
        (GOOD + "frozen: {best: {policy: dynamo}}", "frozen.best must say policy, and by what command"),
        (GOOD + "frozen: {best: {policy: luck, found: x}}", "frozen.best.policy: unknown policy 'luck'"),
    ],
)
def test_a_bad_split_is_refused_with_the_key(text, words):
    with pytest.raises(SplitError, match=words):
        parse_split(text)


def test_what_tuning_froze_is_read_with_how_it_was_found():
    split = parse_split(GOOD + "frozen: {tuned_threshold: {policy: threshold_1536, found: trimtab scenarios tune}}")
    assert split.frozen["tuned_threshold"].policy == "threshold_1536"
    assert split.use_of("a") == "tuning" and split.use_of("b") == "held_out"


def test_the_reference_has_a_row_for_every_scenario():
    text = (Path(__file__).parents[3] / "docs" / "reference" / "suite.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in CATALOGUE)
