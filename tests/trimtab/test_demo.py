"""The demo: every policy on the same seeds, margins over them, and views that come from the scores alone."""

import json
from dataclasses import replace
from math import inf, isnan

import pytest

from emulator.workload import AGENT, Phase
from slos.objective import Match, Signal, Slo
from trimtab.contenders import contenders
from trimtab.demo import HERO, PLOTTED, as_json, run_all, scenario_named
from trimtab.picture import as_view
from trimtab.runs import Job, Outcome, Run, run_one
from trimtab.scenarios import H1, Scenario, promises, with_slos
from trimtab.score import PhaseScore, RunScore
from trimtab.spread import Spread

SHORT = Scenario(
    "short",
    "Short: agents, one prefill node out",
    H1.profile,
    H1.topology,
    (Phase("agents", 30.0, ((AGENT, 0.9),)), Phase("one P out", 30.0, ((AGENT, 0.6),), out=("P1",))),
    H1.slos,
    settle_s=10.0,
)
TTFT, TPOT = H1.slos


def scored(policy: str, seed: int, *attainments: float, p99_ttft_ms: float | None = 1000.0) -> Run:
    phases = tuple(PhaseScore(p99_ttft_ms, 30.0, a > 0.99, a, 100, 0.5) for a in attainments)
    return Run(policy, seed, RunScore(phases), (), ())


def outcome(**attainments: list[float]) -> Outcome:
    runs = {
        policy: tuple(scored(policy, seed, a, a) for seed, a in enumerate(by_seed))
        for policy, by_seed in attainments.items()
    }
    return Outcome(SHORT, tuple(range(len(attainments[HERO]))), runs)


@pytest.fixture(scope="module")
def two_policies() -> Outcome:
    return run_all(SHORT, (0, 1), 1, lambda done, total: None, ("x1",))


# -- runs --------------------------------------------------------------------------------------------------------------


def test_the_policies_named_run_beside_the_controller_on_every_seed(two_policies):
    assert list(two_policies.runs) == [HERO, "x1"]
    assert [[run.seed for run in runs] for runs in two_policies.runs.values()] == [[0, 1], [0, 1]]


def test_a_policy_named_twice_and_the_controller_itself_run_once():
    seen = []
    found = run_all(SHORT, (0,), 1, lambda done, total: seen.append((done, total)), ("x0", HERO, "x0"))
    assert list(found.runs) == [HERO, "x0"] and seen == [(1, 2), (2, 2)]


def test_an_unknown_policy_is_refused_with_the_known_ones_before_anything_runs():
    with pytest.raises(ValueError, match=r"unknown policy 'x2'; known: controller, price_0\.4, .*threshold_4096"):
        run_all(SHORT, (0,), 1, lambda done, total: pytest.fail("it ran"), ("x1", "x2"))


def test_one_run_is_a_function_of_its_job(two_policies):
    assert run_one(Job(SHORT, "x1", 1, keep_ticks=True)) == two_policies.runs["x1"][1]


def test_ticks_are_kept_only_for_the_policies_in_the_picture(two_policies):
    assert all(run.ticks for runs in two_policies.runs.values() for run in runs)
    assert run_one(Job(SHORT, "x1", 0)).ticks == ()


def test_an_slo_that_nothing_can_hold_leaves_a_warning_with_the_direction_of_relief():
    hopeless = replace(SHORT, slos=promises(0.001, 0.005), phases=(Phase("agents", 120.0, ((AGENT, 0.5),)),))
    run = run_one(Job(hopeless, HERO, 0))
    assert run.warnings == ("llama-3.1-70b: lower the load, add prefill and decode capacity, or loosen both SLOs",)
    assert run_one(Job(hopeless, "price_0.4", 0)).warnings == (), "nobody moves it, so nobody watches"


# -- margins -----------------------------------------------------------------------------------------------------------


def test_the_margin_is_the_mean_of_paired_differences():
    found = outcome(controller=[0.99, 0.97, 0.98], other=[0.98, 0.94, 0.96])
    margin = found.margin("other")
    assert margin.mean == pytest.approx(0.02)
    assert margin.half_width == pytest.approx(4.302653 * 0.01 / 3**0.5, rel=1e-5), (
        "Student's t with 2 degrees of freedom"
    )


def test_the_margin_of_the_controller_over_itself_is_nothing():
    assert outcome(controller=[0.99, 0.97]).margin(HERO) == Spread(0.0, 0.0)


def test_one_seed_has_a_margin_and_no_interval():
    margin = outcome(controller=[0.99], other=[0.95]).margin("other")
    assert margin.mean == pytest.approx(0.04) and isnan(margin.half_width)


# -- JSON and picture --------------------------------------------------------------------------------------------------


def test_the_json_names_its_source_command_commit_and_seeds(two_policies):
    document = json.loads(as_json(two_policies, "the command", "commit abc"))
    assert document["source"] == "emulated"
    assert (document["command"], document["commit"], document["seeds"]) == ("the command", "abc", [0, 1])
    assert (document["scenario"], document["topology"]) == ("short", "2P_2D")
    assert document["slos"] == {"later-ttft": 2.0, "tpot": 0.038}
    assert list(document["policies"]) == [HERO, "x1"]


def test_the_json_holds_the_scores(two_policies):
    policy = json.loads(as_json(two_policies, "", ""))["policies"]["x1"]
    runs = two_policies.runs["x1"]
    assert policy["attainment_by_seed"] == [round(run.score.attainment, 6) for run in runs]
    assert policy["attainment"] == pytest.approx(sum(policy["attainment_by_seed"]) / 2, abs=1e-6)
    assert [phase["label"] for phase in policy["phases"]] == ["agents", "one P out"]
    ttft = [run.score.phases[0].p99_ttft_ms for run in runs]
    assert None not in ttft
    assert policy["phases"][0]["p99_ttft_ms"] == pytest.approx(sum(t for t in ttft if t is not None) / 2, abs=1e-3)


def test_the_json_is_json_also_for_turns_that_never_ended():
    runs = {HERO: (scored(HERO, 0, 0.5, 0.5, p99_ttft_ms=inf),), "x0": (scored("x0", 0, 0.5, 0.5, p99_ttft_ms=None),)}
    text = as_json(Outcome(SHORT, (0,), runs), "", "")
    assert "Infinity" not in text and "NaN" not in text
    policies = json.loads(text)["policies"]
    assert policies[HERO]["phases"][0]["p99_ttft_ms"] is None
    assert policies["x0"]["margin_of_controller"] == {"mean": 0.0, "half_width_95": None}


def test_the_picture_shows_the_first_seed_and_a_price_only_where_there_is_one(two_policies):
    view = as_view(two_policies, "the command", "commit abc", PLOTTED)
    hero, x1 = view.series
    assert (hero.policy, x1.policy) == (HERO, "x1")
    assert hero.price[0] == pytest.approx(0.4) and set(x1.price) == {None}
    assert [(phase.start_s, phase.end_s) for phase in view.phases] == [(0.0, 30.0), (30.0, 60.0)]
    assert (view.ttft_slo_ms, view.tpot_slo_ms) == (2000.0, 38.0)
    assert "source: emulated · the command · commit abc · seed 0 drawn" in view.provenance
    assert list(hero.t_s) == [5.0 * n for n in range(1, 13)]
    shares = [share for share in x1.local_share if share is not None]
    assert shares and set(shares) == {1.0}


def test_everything_in_the_picture_is_a_contender():
    assert set(PLOTTED) <= set(contenders({}))


# -- scenarios and promises --------------------------------------------------------------------------------------------


def test_a_scenario_is_found_by_name():
    assert scenario_named("H1") is H1
    with pytest.raises(ValueError, match="unknown scenario 'h1'; known: H1, H2, H3, H4"):
        scenario_named("h1")


def test_other_promises_replace_those_of_the_scenario():
    found = with_slos(H1, promises(1.0, 0.030))
    assert found.slos == promises(1.0, 0.030) and found.phases == H1.phases


@pytest.mark.parametrize(
    ("slos", "message"),
    [
        ((TTFT, replace(TTFT, name="second"), TPOT), "judged by one ttft SLO and the file has 2; write e.g. p99"),
        ((TTFT,), "judged by one tpot SLO and the file has 0"),
        ((), "judged by one ttft SLO and the file has 0"),
        (
            (replace(TTFT, objective=0.95), TPOT),
            r"later-ttft: a scenario is judged by P99, not P95; write",
        ),
        ((TTFT, replace(TPOT, match=Match(("qwen*",)))), "tpot: match covers no second turn of llama-3.1-70b"),
        ((replace(TTFT, match=Match(turn_min=3)), TPOT), "later-ttft: match covers no second turn"),
        ((replace(TTFT, threshold_s=None, match=Match(asked=True)), TPOT), "set no deadline; write a limit"),
    ],
)
def test_promises_that_the_demo_cannot_judge_are_refused(slos, message):
    with pytest.raises(ValueError, match=message):
        with_slos(H1, slos)


def test_further_slos_that_are_only_judged_are_accepted():
    whole = Slo("whole", Signal.E2E, 0.95, 30.0)
    assert with_slos(H1, (TTFT, TPOT, whole)).slos == (TTFT, TPOT, whole)
