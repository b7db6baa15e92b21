"""The suite's JSON, page and demands, from scores made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.trimtab.suite.test_measures import views
from trimtab.runs import Outcome, Run
from trimtab.score import PhaseScore, RunScore
from trimtab.suite.catalogue import CATALOGUE
from trimtab.suite.measures import measured
from trimtab.suite.play import Played
from trimtab.suite.policies import BESIDE_SEEDS, BEST, CONTROLLER, FEASIBLE_SEEDS, PRICES, STARTS, Cast, cast_of
from trimtab.suite.report import page
from trimtab.suite.result import as_json
from trimtab.suite.split import Frozen, Split, shipped_split
from trimtab.suite.verdicts import Verdict, verdicts

SEEDS = tuple(range(200, 207))
FROZEN = {
    "tuned_threshold": Frozen("threshold_1536", "trimtab scenarios tune"),
    "tuned_dynamo": Frozen("dynamo_1536_0.9", "trimtab scenarios tune"),
    BEST: Frozen("threshold_1536", "trimtab scenarios tune"),
}
SPLIT: Split = replace(shipped_split(), frozen=FROZEN)
GOOD = {CONTROLLER: 0.99, "price_0.4": 0.991, "threshold_1536": 0.97, "paper_table": 0.80, "price_1.2": 0.985}


def made(name: str = "h1", **better: float) -> Played:
    """Everybody holds and attains .9, but for who is better."""
    entry = CATALOGUE[name]
    cast = cast_of(entry, SPLIT, SEEDS, full=False)
    means = GOOD | dict.fromkeys(STARTS, 0.985) | better

    def run(policy: str, seed: int) -> Run:
        mean = means.get(policy, 0.9) + 0.001 * (seed % 3)
        phases = [
            PhaseScore(1000.0, 30.0, mean > 0.9, mean - 0.01 * at, 500, 0.5) for at in range(len(entry.scenario.phases))
        ]
        return Run(policy, seed, RunScore(tuple(phases)), (), ())

    runs = {policy: tuple(run(policy, seed) for seed in seeds) for policy, seeds in cast.seeds.items()}
    ticks = views([(0.5, 0.5), (1.5, 0.5), (0.9, 0.9), *[(0.5, 0.5)] * 40])
    own = {
        (policy, seed): measured(entry.scenario, ticks)
        for policy in (CONTROLLER, *STARTS)
        for seed in cast.seeds[policy]
    }
    return Played(entry, cast, Outcome(entry.scenario, SEEDS, runs), own)


def demanded(found: list[Verdict], demand: str, against: str | None = None) -> Verdict:
    [verdict] = [v for v in found if v.demand == demand and v.against == against]
    return verdict


def test_four_policies_run_on_all_seeds_and_the_others_on_the_first_five():
    cast: Cast = made().cast
    assert {policy for policy, seeds in cast.seeds.items() if seeds == SEEDS} == {
        CONTROLLER,
        "price_0.4",
        "paper_table",
        "threshold_1536",
    }
    assert set(cast.seeds.values()) == {SEEDS, SEEDS[:BESIDE_SEEDS]}


def test_where_traffic_is_feasible_prices_run_on_all_seeds_and_fixed_rules_on_two():
    cast = made("day").cast
    assert {policy for policy, seeds in cast.seeds.items() if seeds == SEEDS} == {CONTROLLER, *PRICES}
    assert {cast.seeds[start] for start in STARTS} == {SEEDS[:BESIDE_SEEDS]}
    rules = {seeds for policy, seeds in cast.seeds.items() if policy not in (CONTROLLER, *STARTS, *PRICES)}
    assert rules == {SEEDS[:FEASIBLE_SEEDS]}


def test_the_oracle_is_asked_of_two_sided_scenarios_or_of_all_in_full():
    assert made("h1").cast.constants and not made("load_step").cast.constants
    full = cast_of(CATALOGUE["load_step"], SPLIT, SEEDS, full=True)
    assert full.constants and set(full.seeds.values()) == {SEEDS}


def test_before_tuning_there_is_no_tuned_rule():
    cast = cast_of(CATALOGUE["h1"], replace(SPLIT, frozen={}), SEEDS, full=False)
    assert not cast.aliases and "threshold_1536" not in cast.rules


def test_the_json_has_the_keys_that_were_promised_and_more(golden: Callable[[str, str], None]):
    document = json.loads(as_json([made("h1"), made("load_step")], SPLIT, "c", "commit abc"))
    document["provenance"]["versions"] = {}
    assert document["source"] == "emulated"
    for scenario in document["scenarios"].values():
        assert list(scenario)[:8] == [
            "binding",
            "two_sided",
            "gap_recovery",
            "attainment",
            "holds_all",
            "settle_ticks",
            "sd_ln_p",
            "reversals_per_h",
        ]
    h1 = document["scenarios"]["h1"]
    assert h1["attainment"]["tuned_threshold"] == h1["attainment"]["threshold_1536"]
    assert h1["attainment"]["threshold_hindsight"] == h1["attainment"]["threshold_1536"]
    golden("suite.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def test_a_controller_that_leads_meets_its_musts():
    found = verdicts([made()], SPLIT)
    assert demanded(found, "above the frozen rule", "threshold_1536").met
    near = demanded(found, "above the frozen rule", "price_0.4")
    assert near.met and near.limit == -0.005 and near.figure == pytest.approx(-0.001)
    assert demanded(found, "from another price, near its own default", STARTS[0]).met


def test_a_controller_that_is_beaten_is_told_so():
    found = verdicts([made(dynamo=0.995)], SPLIT)
    beaten = demanded(found, "above the frozen rule", "dynamo")
    assert beaten.met is False and beaten.sure is False and beaten.figure == pytest.approx(-0.005)
    assert "- `h1`: above the frozen rule `dynamo`: -0.50 points, limit +0.0" in page(
        [made(dynamo=0.995)], SPLIT, "c", "x"
    )


def test_one_sided_scenarios_ask_for_the_best_fixed_rule_in_hindsight():
    p_failure = made("p_failure", threshold_3072=0.994)
    verdict = demanded(verdicts([p_failure], SPLIT), "not below the best fixed rule in hindsight", "threshold_3072")
    assert verdict.met and verdict.figure == pytest.approx(-0.004)


def test_margins_are_asked_of_held_out_scenarios_only():
    assert not [v for v in verdicts([made("slo_switch")], SPLIT) if v.against is not None]


def test_recovery_is_the_controllers_on_the_oracles_seeds():
    found = made()
    assert found.gap_recovery == pytest.approx((0.99 - 0.80) / (0.991 - 0.80))
    assert demanded(verdicts([found], SPLIT), "gap recovery, worst").met


def test_needless_moves_are_unknown_without_bounds():
    verdict = demanded(verdicts([made()], SPLIT), "moves while both upper bounds are inside")
    assert verdict.met is None and verdict.figure is None


def with_a_flag(name: str, tick: int, seed: int = SEEDS[0], **better: float) -> Played:
    """The controller's flag is up at one tick of one seed."""
    played = made(name, **better)
    ticks = views([(0.5, 0.5)] * 300, flagged={tick})
    return replace(played, measures={(CONTROLLER, seed): measured(played.entry.scenario, ticks)})


@pytest.mark.parametrize("tick", [3, 100, 150])
def test_a_flag_in_feasible_traffic_breaks_a_must_from_the_first_second_of_a_phase(tick):
    found = verdicts([with_a_flag("day", tick)], SPLIT)
    flags = demanded(found, "flags in 1.2 simulated hours of feasible traffic")
    assert (flags.kind, flags.figure, flags.met) == ("must", 1.0, False)
    assert not [v for v in verdicts([with_a_flag("h1", tick)], SPLIT) if "feasible traffic" in v.demand]


def test_what_nobody_held_was_not_feasible():
    means = dict.fromkeys((CONTROLLER, *PRICES, "threshold_1536", *STARTS), 0.7)
    flags = demanded(
        verdicts([with_a_flag("day", 100, 201, **means)], SPLIT), "flags in 0.0 simulated hours of feasible traffic"
    )
    assert (flags.figure, flags.met) == (0.0, True)


@pytest.mark.parametrize(
    ("name", "tick", "why", "doubtful"),
    [
        ("h1", 30, "somebody held that phase", 1),
        ("h1", 50, "nobody is judged by the first minute of a phase", 0),
        ("infeasible", 90, "nothing can hold that phase", 0),
    ],
)
def test_a_flag_is_doubtful_where_somebody_held_the_phase(name, tick, why, doubtful):
    found = verdicts([with_a_flag(name, tick)], SPLIT)
    assert [v.figure for v in found if v.demand.startswith("flags in phases that some policy held")] == [doubtful], why


def test_a_flag_is_not_doubtful_where_nobody_held():
    means = dict.fromkeys((CONTROLLER, "price_0.4", "threshold_1536", "price_1.2", *STARTS), 0.7)
    found = verdicts([with_a_flag("h1", 30, 201, **means)], SPLIT)
    [flags] = [v for v in found if v.demand.startswith("flags in phases that some policy held")]
    assert (flags.kind, flags.figure) == ("target", 0)
