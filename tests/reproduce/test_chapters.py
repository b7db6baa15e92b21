"""Chapters that need no long run: interference, Equation 2, frontiers, trials, and the register."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emulator.workload import fixed
from router.paper_table import CellKey, ContextClass, PaperCell, PaperTable
from trimtab.grid import AS_MEASURED
from trimtab.measured import RealRun, TurnStats
from trimtab.reproduce.chapters import CHAPTERS
from trimtab.reproduce.interference import figure_8, figures_2_and_7, in_window, slowdown
from trimtab.reproduce.lab import QUICK_WORKLOADS, Lab, appends
from trimtab.reproduce.network import WILDCHAT_AT_ONCE, equation_2
from trimtab.reproduce.pareto import Spot, frontier
from trimtab.reproduce.published import cut, published
from trimtab.reproduce.readings import Readings
from trimtab.reproduce.target import Verdict
from trimtab.reproduce.trial import Rule, Trial, run_trial
from trimtab.workloads import PAPER_WORKLOADS

LAB = Lab(Readings(), quick=True, jobs=1, seed=0)
TRIAL = Trial("1P_3D", replace(WILDCHAT_AT_ONCE, turns_high=4), 2.0, 20, AS_MEASURED)


def test_every_figure_and_table_with_numbers_has_a_chapter():
    named = {name for name in CHAPTERS if "-" in name}
    figures = {f"figure-{n}" for n in (1, 2, 4, 5, 6, 8, 9, 10, 11)}  # 3 is a drawing, 7 is with 2
    assert named == figures | {"table-1", "table-2", "table-5", "equation-2"}  # 3 is with figure-11, 4 with table-2


def test_equation_2_gives_the_papers_milliseconds():
    found = [(f.target.paper, f.verdict) for f in equation_2(LAB).findings]
    assert found == [(4.5, Verdict.HOLDS), (27.0, Verdict.HOLDS), (67.0, Verdict.HOLDS)]


def test_names_of_findings_are_unique_within_and_across_pure_chapters():
    names = [f.target.name for chapter in (figures_2_and_7, figure_8, equation_2) for f in chapter(LAB).findings]
    assert len(names) == len(set(names))


def test_a_full_prefill_slows_a_step_an_order_of_magnitude_more_than_a_small_append():
    assert slowdown(200, 1, 1024, 0) > 10 * slowdown(200, 1, 64, 2048) > 0


def test_a_prefill_once_in_a_window_costs_what_its_steps_cost():
    assert in_window(64, 128, 2048) == pytest.approx(slowdown(64, 1, 128, 2048) / 64, rel=0.01)
    assert in_window(64, 32_768, 0) > 4 * in_window(64, 8_192, 0)


def test_a_frontier_is_what_nobody_beats():
    spots = {"fast": Spot(30, 90), "wide": Spot(90, 120), "beaten": Spot(95, 110), "same": Spot(90, 120)}
    assert frontier(spots) == ["fast", "wide", "same"]


def test_a_quick_table_knows_all_nine_second_turns():
    assert set(QUICK_WORKLOADS) < set(PAPER_WORKLOADS)
    assert {PAPER_WORKLOADS[name].turn2 for name in QUICK_WORKLOADS} == {w.turn2 for w in PAPER_WORKLOADS.values()}


def test_a_ratio_that_appends_has_pd_nodes():
    assert [appends(ratio) for ratio in ("1P_3D", "2P_2D")] == ["1P_3pD", "2P_2pD"]


# -- trials ------------------------------------------------------------------------------------------------------------


def test_static_pd_sends_every_turn_and_full_append_only_first_ones():
    pd, full = run_trial(TRIAL, 0), run_trial(replace(TRIAL, x=1.0), 0)
    assert pd.sent_turns == 1 and pd.local_share == 0
    assert full.local_share == 1 and full.sent_turns == pytest.approx(1 / full.turns)
    assert full.sent_tokens < pd.sent_tokens
    assert pd.later.n == full.later.n  # the same conversations


def test_a_rule_decides_by_its_table_and_weights():
    table = PaperTable(
        {
            CellKey(context, turn2, 1.0): PaperCell(0.6, 0.1, 1.0, 1.0, 9, 9)
            for context in ContextClass
            for turn2 in {w.turn2 for w in PAPER_WORKLOADS.values()}
        }
    )
    shares = [run_trial(replace(TRIAL, rule=Rule(table, 1.0, w)), 0).local_share for w in (1.0, 7.0)]
    assert shares == [1.0, 0.0]  # the price at which all cells change is 6


def test_what_is_given_up_is_no_success():
    slow = replace(TRIAL, mix=replace(TRIAL.mix, output=fixed(1000)))
    impatient = replace(AS_MEASURED, client=replace(AS_MEASURED.client, timeout_s=3.0))
    patient, given_up = run_trial(slow, 0), run_trial(replace(slow, conditions=impatient), 0)
    assert (patient.success, given_up.success) == (1, 0)
    assert patient.within(3.0) == 0 and patient.within(600.0) == 1


def test_repeats_of_published_runs_are_averaged_and_failed_ones_left_out():
    def run(config: str, routed: bool, ttft_ms: float, success: float = 1.0) -> RealRun:
        later = TurnStats(9, ttft_ms, ttft_ms, ttft_ms, 9.0, 0.0, 3000.0, 0.0)
        return RealRun("sharegpt", config, routed, 2.0, 500, success, 90.0, later, 1.0, 1.0)

    found = published(
        [
            run("2P_2D", False, 120.0),
            run("2P_2D", True, 40.0),
            run("2P_2D", True, 60.0),
            run("2P_2pD", False, 45.0),
            run("3P_1D", False, 120.0, 0.5),
            run("1R_1P_2D", False, 90.0),
        ]
    )
    place = ("sharegpt", "2P_2D", 2.0)
    assert {key: stats.ttft_mean_ms for key, stats in found.items()} == {
        (*place, "x = 0"): 120.0,
        (*place, "x = 1"): 45.0,
        (*place, "PPD"): 50.0,
    }
    assert cut(found, lambda stats: stats.ttft_mean_ms) == pytest.approx(50 / 120 - 1)
