"""Scenario files: what they say is read exactly, and all that is wrong with them is said at once."""

from dataclasses import replace
from math import inf
from pathlib import Path
from textwrap import dedent

import pytest

from emulator.arrivals import Diurnal, FlashCrowd, Mmpp
from emulator.faults import Fault, FaultKind
from emulator.profiles import LINKS, PROFILES
from emulator.workload import LogNormal, Mix, Sample, TurnPlan, fixed
from slos.problem import SpecError
from trimtab.runs import Job, engine_of, run_one
from trimtab.scenario_file import (
    CLIENT_KEYS,
    DEFAULT_POLICIES,
    FAULT_KEYS,
    FILE_KEYS,
    LINK_KEYS,
    PHASE_KEYS,
    Experiment,
    with_choice,
)
from trimtab.scenario_traffic import CUT_KEYS, LATER_KEYS, MIX_KEYS, PROCESS_KEYS, TRAFFIC_KEYS
from trimtab.scenario_values import LENGTH_KEYS, TURNS_KEYS
from trimtab.scenarios import SCENARIOS
from trimtab.simulate import Client
from trimtab.sweep import load_points

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples" / "scenarios"
HEAD = """\
version: 1
profile: llama-3.1-70b-h100-tp4
topology: 2P_2D
slos:
  - {name: later-ttft, objective: p99(ttft) <= 2s, match: {turn: ">=2"}}
  - {name: tpot, objective: p99(tpot) <= 38ms}
"""
PHASES = """\
settle: 10s
phases:
  - {duration: 30s, traffic: [{mix: agent, rate: 0.9/s}]}
"""
FIRST = HEAD.count("\n") + 1
"""Line of the text after HEAD."""


def load(folder: Path, text: str) -> Experiment:
    path = folder / "s.yaml"
    path.write_text(text)
    (point,) = load_points(path)
    return point.experiment


def problems(folder: Path, text: str) -> list[str]:
    """LINE:COLUMN CODE message; fix, of a file that is refused."""
    path = folder / "s.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as refused:
        load_points(path)
    return [str(problem).removeprefix(f"{path}:") for problem in refused.value.problems]


def phase(text: str, head: str = HEAD) -> str:
    return f"{head}settle: 10s\nphases:\n  - duration: 30s\n    traffic:\n      - {text}\n"


# -- what a file says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["H1", "H3", "H4"])
def test_the_headline_scenarios_as_files_are_the_built_in_ones(name):
    (point,) = load_points(EXAMPLES / f"{name.lower()}.yaml")
    assert point.experiment.scenario == SCENARIOS[name]
    assert point.experiment.scenario.conversations(3) == SCENARIOS[name].conversations(3)


def test_a_short_form_of_h1_as_a_file_gives_the_very_results_of_the_built_in_one(tmp_path):
    text = (EXAMPLES / "h1.yaml").read_text()
    short = load(tmp_path, text.replace("duration: 240s", "duration: 30s").replace("settle: 60s", "settle: 7.5s"))
    built_in = SCENARIOS["H1"].lasting(90.0)
    for policy in ("controller", "x1"):
        assert run_one(Job(short.scenario, policy, 0, True)) == run_one(Job(built_in, policy, 0, True))


def test_every_example_can_be_read():
    for path in sorted(EXAMPLES.glob("*.yaml")):
        assert load_points(path), path.name


def test_what_a_file_leaves_out_has_a_default(tmp_path):
    found = load(tmp_path, HEAD + PHASES)
    assert (found.policies, found.seeds) == (DEFAULT_POLICIES, (0, 1, 2))
    assert found.scenario.name == found.scenario.title == "scenario" and found.scenario.tables == ()
    assert [p.label for p in found.scenario.phases] == ["phase 1"]
    assert load(tmp_path, HEAD + PHASES.replace("30s", "90s").replace("settle: 10s\n", "")).scenario.settle_s == 60.0


def test_rates_have_units_and_load_scales_them(tmp_path):
    traffic = "[{mix: chat, rate: 54/m}, {mix: rag, rate: 1800/h}]"
    text = PHASES.replace("[{mix: agent, rate: 0.9/s}]", traffic)
    (only,) = load(tmp_path, HEAD + text).scenario.phases
    assert [rate for _, rate in only.traffic] == [pytest.approx(0.9), 0.5]
    (only,) = load(tmp_path, HEAD + "load: 0.5\n" + text).scenario.phases
    assert [rate for _, rate in only.traffic] == [pytest.approx(0.45), 0.25]


@pytest.mark.parametrize(
    ("written", "process"),
    [
        ("{process: mmpp, rates: [1/s, 6/s], stays: [60s, 10s]}", Mmpp((1.0, 6.0), (60.0, 10.0))),
        ("{process: diurnal, mean: 2/s, swing: 0.8}", Diurnal(2.0, 0.8)),
        ("{process: diurnal, mean: 2/s, swing: 0.8, period: 10m, peak: 0s}", Diurnal(2.0, 0.8, 600.0)),
        ("{process: flash_crowd, base: 1/s}", FlashCrowd(1.0, 5.0, 60.0, 60.0)),
        (
            "{process: flash_crowd, base: 1/s, factor: 3, start: 5s, lasting: 20s}",
            FlashCrowd(1.0, 3.0, 5.0, 20.0),
        ),
        ("{process: poisson, rate: 2/s}", 2.0),
    ],
)
def test_arrivals_are_a_process_with_its_own_keys(tmp_path, written, process):
    (only,) = load(tmp_path, phase(f"{{mix: chat, arrivals: {written}}}")).scenario.phases
    ((source, found),) = only.traffic
    assert source.name == "chat"
    assert found == process or getattr(found, "rate_hz", None) == process


def test_a_file_may_have_mixes_of_its_own(tmp_path):
    mixes = dedent("""\
        mixes:
          support:
            first: {median: 3000, sigma: 0.4, min: 500, max: 9000}
            later:
              - {share: 0.9, median: 40, sigma: 1, min: 3, max: 600}
              - {share: 0.1, median: 900, sigma: 0, min: 1, max: 999}
            output: 200
            think: {median: 9s, sigma: 0.8, min: 0s, max: 60s}
            turns: {mean: 4.2, min: 2, max: 16}
            context: 9000
          one: {first: 10, output: 5, turns: 1}
        """)
    found = load(tmp_path, phase("{mix: support, rate: 1/s}", HEAD + mixes)).scenario.phases[0]
    assert found.traffic[0][0] == Mix(
        "support",
        LogNormal(3000, 0.4, 500, 9000),
        ((0.9, LogNormal(40, 1, 3, 600)), (0.1, LogNormal(900, 0, 1, 999))),
        fixed(200),
        LogNormal(9, 0.8, 0, 60),
        4.2,
        2,
        16,
        None,
        9000,
    )


def test_a_trace_starts_as_recorded_or_is_drawn_from_at_a_rate(tmp_path):
    (tmp_path / "data").mkdir()
    rows = '{"task_id": 1, "turns": [[1000, 100, "user"], [50, 60, "tool"]]}\n'
    (tmp_path / "data" / "t.jsonl").write_text(rows * 3)
    recorded = load(tmp_path, phase("{trace: data/t.jsonl, limit: 2, spacing: 4s}")).scenario.phases[0]
    assert [plan.start_s for plan in recorded.recorded] == [0.0, 4.0]
    drawn = load(tmp_path, phase("{trace: data/t.jsonl, rate: 0.5/s, scale: 0.5, output_max: 40}")).scenario.phases[0]
    ((source, rate),) = drawn.traffic
    assert rate == 0.5 and isinstance(source, Sample) and len(source.recorded) == 3
    assert source.recorded[0] == (TurnPlan(500, 40, 0.0), TurnPlan(25, 30, 1.0))
    path = tmp_path / "elsewhere.yaml"
    path.write_text(phase("{trace: t.jsonl}"))
    (point,) = load_points(path, data=tmp_path / "data")
    assert len(point.experiment.scenario.phases[0].recorded) == 3


def test_promises_may_be_in_a_file_of_their_own(tmp_path):
    head, slos = HEAD.split("slos:\n")
    (tmp_path / "slo.yaml").write_text("version: 1\nslos:\n" + slos)
    inline = load(tmp_path, HEAD + PHASES).scenario
    assert load(tmp_path, head + "slo_file: slo.yaml\n" + PHASES).scenario.slos == inline.slos


def test_policies_seeds_and_link_are_read_and_can_be_chosen_anew(tmp_path):
    more = "policies: [x1, price_0.7, controller_start_2, threshold_300]\nseeds: [4, 7]\nlink: {bandwidth: 80Gb/s}\n"
    found = load(tmp_path, HEAD + PHASES + more)
    assert found.policies == ("x1", "price_0.7", "controller_start_2", "threshold_300")
    assert found.seeds == (4, 7) and found.scenario.bandwidth_gb_s == 10.0
    assert with_choice(found, (), 2).seeds == (0, 1) and with_choice(found, ("x0",), None).policies == ("x0",)
    with pytest.raises(ValueError, match="unknown policy 'nobody'"):
        with_choice(found, ("nobody",), None)


def test_faults_client_link_and_profiles_are_read(tmp_path):
    more = dedent("""\
        link: {kind: p2p-nccl, bandwidth: 25GB/s}
        append_x: 0.83
        client: {max_in_flight: 50, timeout: 30s}
        faults:
          - {kind: slow, node: D0, factor: 2, at: 20s}
          - {kind: out, node: P1, at: 5s, for: 0s}
          - {kind: bandwidth, bandwidth: 10GB/s, at: 0s, for: 10s}
          - {kind: metrics, at: 1s, for: 2s}
        """)
    found = load(tmp_path, HEAD + PHASES + more).scenario
    assert (found.link, found.bandwidth_gb_s, found.append_x, found.client) == (
        "p2p-nccl",
        25.0,
        0.83,
        Client(50, 30.0),
    )
    assert found.faults == (
        Fault(FaultKind.BANDWIDTH, 0.0, 10.0, None, 10.0),
        Fault(FaultKind.METRICS, 1.0, 2.0),
        Fault(FaultKind.OUT, 5.0, 0.0, "P1"),
        Fault(FaultKind.SLOW, 20.0, inf, "D0", 2.0),
    )
    engine = engine_of(found)
    assert engine.link == replace(LINKS["p2p-nccl"], bandwidth_gb_s=25.0)
    head = HEAD.replace("llama-3.1-70b-h100-tp4", "llama-3.1-8b-h100").replace("2P_2D", "1P_2D_1pD")
    found = load(tmp_path, head + PHASES + "profiles: {pD: llama-3.1-8b-h100-as-measured}\n").scenario
    assert found.profiles == (("pD", "llama-3.1-8b-h100-as-measured"),)


def test_a_fault_of_a_file_happens_in_the_run(tmp_path):
    whole = run_one(Job(load(tmp_path, HEAD + PHASES).scenario, "x0", 0)).score
    fault = "faults: [{kind: slow, node: P0, factor: 5, at: 0s}, {kind: slow, node: P1, factor: 5, at: 0s}]\n"
    slow = run_one(Job(load(tmp_path, HEAD + PHASES + fault).scenario, "x0", 0)).score
    assert slow.attainment < whole.attainment


def test_turns_that_the_client_gives_up_are_failures_sent_or_not(tmp_path):
    text = HEAD + PHASES + "client: {max_in_flight: 1, timeout: 5s}\n"
    found = run_one(Job(load(tmp_path, text).scenario, "x0", 0)).score
    assert found.failures > 0 and found.attainment < 0.9


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seeds: 3\n" + PHASES + "polices: [x1]\n", 'E101 "polices": unknown key; did you mean policies?'),
        ("settle: 10\n" + PHASES.replace("settle: 10s\n", ""), 'E203 settle: "10" has no unit; write 10ms or 0.01s'),
        ("load: much\n" + PHASES, 'E302 load: "much" is not a number from 0 to 1000; write 0.85'),
        ("seeds: 0\n" + PHASES, 'E302 seeds: "0" is not a whole number from 1 to 1000; write 3'),
        ("seeds: [1, 1]\n" + PHASES, "E106 seeds: a seed is listed twice; keep one of them"),
        ("policies: [x1, contoller]\n" + PHASES, "did you mean controller?"),
        ("policies: [x1, x1]\n" + PHASES, 'E106 policies[1]: "x1" is listed twice; keep one of them'),
        ("policies: [price_0]\n" + PHASES, "a price is positive"),
        ("link: {bandwidth: 50}\n" + PHASES, 'E304 link.bandwidth: "50" is not a bandwidth; write a positive number'),
        ("tables: [no.json]\n" + PHASES, "E301 tables[0]: "),
        ("slo_file: x.yaml\n" + PHASES, "E210 slo_file: stands beside slos; keep one of them"),
        ("settle: 30s\n" + PHASES.replace("settle: 10s\n", ""), "E307 phases: nothing of phase"),
        ("faults: [{kind: fire, at: 1s}]\n" + PHASES, 'E301 faults[0].kind: "fire" is not known'),
        ("faults: [{kind: slow, at: 1s, node: P0}]\n" + PHASES, "E103 faults[0]: factor is missing"),
        ("faults: [{kind: out, at: 1s}]\n" + PHASES, "E302 faults[0]: fault out at 1 s: name the node"),
        ("faults: [{kind: out, at: 1s, node: P7}]\n" + PHASES, "E302 faults: fault out: no node 'P7'"),
        ("client: {timeout: 30}\n" + PHASES, "E203 client.timeout"),
        ("client: {max_in_flight: 0}\n" + PHASES, "E302 client.max_in_flight"),
        ("link: {kind: tcp}\n" + PHASES, 'E301 link.kind: "tcp" is not known'),
        ("profiles: {P9: x}\n" + PHASES, "unknown key"),
        ("append_x: 2\n" + PHASES, "E302 append_x"),
        ("mixes: [a]\n" + PHASES, "E104 mixes: must map names to mixes, not a list"),
        ("mixes: {a: {first: 1, output: 2, turns: 3}}\n" + PHASES, "E103 mixes.a: later is missing"),
        ("mixes: {a: {first: 1, output: 2}}\n" + PHASES, "E103 mixes.a: turns is missing"),
        (
            "mixes: {a: {first: {median: 3, sigma: 9, min: 1, max: 2}, output: 2, turns: 1}}\n" + PHASES,
            "E302 mixes.a.first.sigma:",
        ),
        (
            "mixes: {a: {first: {median: 3, sigma: 1, min: 4, max: 2}, output: 2, turns: 1}}\n" + PHASES,
            "E302 mixes.a.first.max: is below min",
        ),
        (
            "mixes: {a: {first: 1, output: 2, turns: 2, later: [{share: 0.4, median: 1, sigma: 0, min: 1, max: 1}]}}\n"
            + PHASES,
            "E302 mixes.a.later: shares do not add up to 1",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_the_fix(tmp_path, text, words):
    found = problems(tmp_path, HEAD + text)
    assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("{mix: agents, rate: 1/s}", 'E301 phases[0].traffic[0].mix: "agents" is no mix; did you mean agent?'),
        ("{mix: agent, rate: 1}", 'E303 phases[0].traffic[0].rate: "1" has no unit; write 1/s (or /m, /h)'),
        ("{mix: agent, rate: 1/d}", 'E303 phases[0].traffic[0].rate: "1/d" has an unknown unit'),
        ("{mix: agent, rate: -1/s}", "is not a rate"),
        ("{mix: agent}", "E103 phases[0].traffic[0]: rate is missing"),
        ("{rate: 1/s}", "E103 phases[0].traffic[0]: mix is missing"),
        ("{mix: agent, rate: 1/s, arrivals: {process: poisson, rate: 1/s}}", "E210 phases[0].traffic[0].arrivals"),
        ("{mix: agent, trace: x, rate: 1/s}", "E210 phases[0].traffic[0].trace: stands beside mix"),
        ("{mix: agent, rate: 1/s, limit: 3}", "E101 phases[0].traffic[0].limit: is of a trace, not of a mix"),
        ("{trace: nowhere.jsonl}", "E305 phases[0].traffic[0].trace: "),
        ("{mix: agent, arrivals: {process: bursts}}", 'arrivals.process: "bursts" is not known'),
        (
            "{mix: agent, arrivals: {process: mmpp, rate: 1/s}}",
            "arrivals.rate: is no key of mmpp",
        ),
        ("{mix: agent, arrivals: {process: mmpp, rates: [1/s], stays: [1s]}}", "two or more"),
        ("{mix: agent, arrivals: {process: diurnal, mean: 1/s, swing: 2}}", "from 0 to 1; write 0.8"),
        ("{mix: agent, arrivals: {process: flash_crowd}}", "E103 phases[0].traffic[0].arrivals: base is missing"),
    ],
)
def test_wrong_traffic_is_refused_with_its_place_and_the_fix(tmp_path, stream, words):
    found = problems(tmp_path, phase(stream))
    assert any(words in problem for problem in found), found


def test_a_node_that_the_topology_lacks_cannot_be_out(tmp_path):
    text = HEAD + PHASES.replace("rate: 0.9/s}]}", "rate: 0.9/s}], out: [P2]}")
    (found,) = problems(tmp_path, text)
    assert found.startswith(f"{FIRST + 2}:") and 'E301 phases[0].out[0]: "P2" is no node' in found
    assert found.endswith("use one of P0, P1, D0, D1")


def test_a_topology_is_refused_in_the_words_of_the_emulator(tmp_path):
    (found,) = problems(tmp_path, HEAD.replace("2P_2D", "2P") + PHASES)
    assert found.startswith("3:1 E301 topology: topology '2P' has nobody to decode; add D or R nodes")


def test_promises_that_a_run_cannot_be_judged_by_are_refused(tmp_path):
    (found,) = problems(tmp_path, HEAD.replace("p99(tpot)", "p90(tpot)") + PHASES)
    assert "4:1 E307 slos: tpot: a scenario is judged by P99, not P90; write p99(...)" in found
    found = problems(tmp_path, HEAD.split("slos:")[0] + PHASES)[0]
    assert "E103 the file: slos is missing; write slos: and a list, or slo_file: and a path" in found


def test_a_missing_promises_file_is_a_problem_of_the_key_that_names_it(tmp_path):
    (found,) = problems(tmp_path, HEAD.split("slos:")[0] + "slo_file: none.yaml\n" + PHASES)
    assert found.startswith("4:1 E110 slo_file: ") and "none.yaml:1: cannot be read" in found


def test_all_problems_come_at_once_in_the_order_of_lines(tmp_path):
    text = HEAD.replace("version: 1", "version: 2").replace("2P_2D", "2X") + "settle: 5\nphases: []\nseeds: none\n"
    found = problems(tmp_path, text)
    assert [line.split(":")[0] for line in found] == ["1", "3", "7", "8", "9"]


@pytest.mark.parametrize("text", ["", "[1, 2]", "version: [", "&a version: 1"])
def test_what_is_no_scenario_at_all_is_refused_too(tmp_path, text):
    assert problems(tmp_path, text)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"E110 cannot be read: No such file"):
        load_points(tmp_path / "none.yaml")


# -- docs --------------------------------------------------------------------------------------------------------------


def test_every_key_that_a_file_may_have_is_in_the_reference():
    reference = (CHECKOUT / "docs" / "reference" / "scenario-file.md").read_text()
    processes = {key for keys in PROCESS_KEYS.values() for key in keys} | set(PROCESS_KEYS)
    keys = {
        *FILE_KEYS,
        *PHASE_KEYS,
        *LINK_KEYS,
        *FAULT_KEYS,
        *CLIENT_KEYS,
        *TRAFFIC_KEYS,
        *CUT_KEYS,
        *MIX_KEYS,
        *LATER_KEYS,
    }
    missing = sorted(key for key in keys | processes | {*LENGTH_KEYS, *TURNS_KEYS} if f"`{key}`" not in reference)
    assert not missing


def test_every_profile_link_and_kind_of_fault_is_in_the_reference():
    reference = (CHECKOUT / "docs" / "reference" / "scenario-file.md").read_text()
    missing = [name for name in (*PROFILES, *LINKS, *FaultKind) if f"`{name}`" not in reference]
    assert not missing


# -- other promises, fewer signals, more routers -----------------------------------------------------------------------


def test_a_phase_may_promise_something_else(tmp_path):
    own = "slos: [{name: t, objective: p99(ttft) <= 1s, match: {turn: '>=2'}}, {name: d, objective: p99(tpot) <= 29ms}]"
    text = HEAD + PHASES + "  - {duration: 30s, traffic: [{mix: agent, rate: 0.9/s}], " + own + "}\n"
    scenario = load(tmp_path, text).scenario
    assert scenario.slos_of(0) == scenario.slos
    assert [(slo.name, slo.threshold_s) for slo in scenario.slos_of(1)] == [("t", 1.0), ("d", 0.029)]


def test_memory_routers_tables_and_what_is_told_are_read(tmp_path):
    text = HEAD + PHASES + "kv: {D: 300000, D1: 200000}\nrouters: 3\ntold: 0.1\ntable: wrong\n"
    scenario = load(tmp_path, text).scenario
    assert scenario.kv_tokens == (("D", 300_000), ("D1", 200_000))
    assert (scenario.routers, scenario.told_share, scenario.table.value) == (3, 0.1, "wrong")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kv: {E0: 3000}\n", 'E101 kv."E0"'),
        ("kv: {D0: none}\n", "E302 kv.D0"),
        ("routers: 0\n", "E302 routers"),
        ("told: 0\n", "E302 told"),
        ("table: good\n", "E301 table"),
        (
            "  - {duration: 30s, traffic: [{mix: agent, rate: 1/s}], slos: [{name: d, objective: p99(tpot) <= 1s}]}\n",
            "E307 phases",
        ),
    ],
)
def test_what_makes_no_sense_of_them_is_refused_at_its_place(tmp_path, text, words):
    assert any(words in problem for problem in problems(tmp_path, HEAD + PHASES + text)), text
