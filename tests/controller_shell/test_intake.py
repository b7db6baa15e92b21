"""Folding reports: once each, over boots and routers, and only news counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.intake import (
    FORGET_S,
    MAX_AGEING_S,
    MAX_ASIDE,
    MAX_BOOTS,
    MAX_MODELS,
    MAX_ROUTERS,
    SILENT_S,
    Intake,
    IntakeFull,
)
from router.wire import SourceView, WaitingTurn
from slos.counts import Count
from slos.revisions import revision
from tests.controller.records import TPOT, record
from tests.controller_shell.reports import SLOS, report, turns


def intake(*models: str) -> Intake:
    return Intake(SLOS, models)


def test_a_repeated_report_is_acknowledged_and_not_folded() -> None:
    it = intake()
    first = report(1, records=turns(5), counts={"tpot": Count(5, 1)})
    assert it.accept(first, 0.0) == 1
    assert it.accept(first, 1.0) == 1
    assert it.tallies["m"].turns == 5
    assert it.counts()["tpot"] == Count(5, 1)
    assert it.totals.repeated == 1


def test_an_older_report_is_acknowledged_by_the_newest_number_and_changes_nothing() -> None:
    it = intake()
    it.accept(report(5, records=turns(2), pin_x=0.5, counts={"tpot": Count(9, 0)}), 0.0)
    assert it.accept(report(3, records=turns(2), counts={"tpot": Count(4, 0)}), 1.0) == 5
    assert it.tallies["m"].turns == 2
    assert it.counts()["tpot"] == Count(9, 0)
    assert it.pins(1.0) == {"router-0": 0.5}


def test_a_new_boot_starts_over_and_its_counts_are_added() -> None:
    it = intake()
    it.accept(report(40, counts={"tpot": Count(100, 3)}, records=turns(1)), 0.0)
    assert it.accept(report(1, boot="boot-b", counts={"tpot": Count(2, 1)}, records=turns(1)), 1.0) == 1
    assert it.counts()["tpot"] == Count(102, 4)
    assert it.tallies["m"].turns == 2


def test_counts_are_added_over_routers() -> None:
    it = intake()
    it.accept(report(1, router="a", counts={"tpot": Count(10, 1)}), 0.0)
    it.accept(report(1, router="b", counts={"tpot": Count(20, 2)}), 0.0)
    it.accept(report(2, router="a", counts={"tpot": Count(15, 1)}), 1.0)
    assert it.counts()["tpot"] == Count(35, 3)


def test_a_lost_report_costs_no_counts_and_is_noticed() -> None:
    it = intake()
    it.accept(report(1, counts={"tpot": Count(10, 1)}), 0.0)
    it.accept(report(4, counts={"tpot": Count(40, 2)}), 3.0)
    assert it.counts()["tpot"] == Count(40, 2)
    assert it.totals.gaps == 2


def test_two_processes_under_one_name_are_counted_apart_and_told() -> None:
    it = intake()
    for seq in (1, 2, 3):
        it.accept(report(seq, boot="boot-a", counts={"tpot": Count(10 * seq, 0)}), float(seq))
        it.accept(report(seq, boot="boot-b", counts={"tpot": Count(seq, 0)}), float(seq))
    assert it.counts()["tpot"] == Count(33, 0)
    assert it.routers(3.0)["router-0"].doubled(3.0)


def test_a_restart_of_a_router_is_no_second_process() -> None:
    it = intake()
    it.accept(report(9, boot="boot-a"), 0.0)
    it.accept(report(1, boot="boot-b"), 1.0)
    it.accept(report(2, boot="boot-b"), 2.0)
    assert not it.routers(2.0)["router-0"].doubled(2.0)


def test_slos_that_this_process_does_not_know_are_named_and_not_counted() -> None:
    it = intake()
    it.accept(report(1, counts={"tpot": Count(1, 0), "other": Count(5, 5)}), 0.0)
    assert it.unknown_slos == {"other"}
    assert it.counts() == {"later-ttft": Count(), "tpot": Count(1, 0)}


def test_waiting_turns_are_aged_by_the_time_since_their_report_up_to_the_next_one() -> None:
    it = intake()
    it.accept(report(1, waiting=(WaitingTurn("m", 2, True, 4.0),)), 100.0)
    assert [w.age_s for w in it.waiting(101.0)] == [5.0]
    assert [w.age_s for w in it.waiting(110.0)] == [4.0 + MAX_AGEING_S]
    it.accept(report(2), 111.0)
    assert it.waiting(111.0) == []


def test_a_model_is_followed_as_soon_as_a_turn_of_it_waits() -> None:
    it = intake()
    it.accept(report(1, waiting=(WaitingTurn("m", 2, True, 4.0),)), 0.0)
    assert list(it.tallies) == ["m"]


def test_what_a_silent_router_said_no_longer_counts() -> None:
    it = intake()
    it.accept(report(1, pin_x=0.0, waiting=(WaitingTurn("m", 2, True, 4.0),)), 0.0)
    at_s = SILENT_S + 0.1
    assert it.routers(at_s)["router-0"].silent(at_s)
    assert it.waiting(at_s) == []
    assert it.pins(at_s) == {}
    assert it.nodes(at_s) == ("", ())
    assert it.speaking(at_s) == {}


def test_a_router_that_is_gone_for_long_is_forgotten_but_not_its_counts() -> None:
    it = intake()
    it.accept(report(1, counts={"tpot": Count(10, 1)}), 0.0)
    assert it.routers(FORGET_S + 1) == {}
    it.accept(report(2, counts={"tpot": Count(12, 1)}), FORGET_S + 2)
    assert it.counts()["tpot"] == Count(12, 1)


def test_nodes_are_those_of_the_newest_report() -> None:
    it = intake()
    it.accept(report(1, router="a"), 0.0)
    it.accept(report(1, router="b"), 1.0)
    name, nodes = it.nodes(1.0)
    assert name == "b" and [node.id for node in nodes] == ["P0", "D0"]


def test_nodes_of_other_models_are_those_of_their_own_routers() -> None:
    it = intake()
    it.accept(report(1, router="a"), 0.0)
    others = tuple(replace(node, id=f"b/{node.id}") for node in report(1).nodes)
    source = SourceView("b/static", 2, 0.0, "")
    it.accept(replace(report(1, router="b"), nodes=others, sources=(source,)), 1.0)
    name, nodes = it.nodes(1.0)
    assert name == "b, a" and [node.id for node in nodes] == ["b/P0", "b/D0", "P0", "D0"]
    assert it.sources(1.0) == (source,)


def test_a_node_that_the_newest_report_on_its_model_leaves_out_is_gone() -> None:
    it = intake()
    it.accept(report(1, router="a"), 0.0)
    it.accept(replace(report(1, router="b"), nodes=report(1).nodes[1:]), 1.0)
    name, nodes = it.nodes(1.0)
    assert name == "b" and [node.id for node in nodes] == ["D0"]


def test_models_are_bounded_and_those_with_tables_always_followed() -> None:
    it = intake("wanted")
    flood = tuple(record(model=f"x{i}") for i in range(MAX_MODELS + 5))
    it.accept(report(1, records=flood), 0.0)
    it.accept(report(2, records=(record(model="wanted"),)), 1.0)
    assert len(it.tallies) == MAX_MODELS + 1 and "wanted" in it.tallies
    assert it.totals.records_of_refused_models == 5


def test_routers_are_bounded_and_a_silent_one_makes_room() -> None:
    it = intake()
    for i in range(MAX_ROUTERS):
        it.accept(report(1, router=f"r{i}"), 0.0)
    with pytest.raises(IntakeFull):
        it.accept(report(1, router="late"), 1.0)
    assert it.accept(report(1, router="late"), SILENT_S + 1) == 1
    assert len(it.routers(SILENT_S + 1)) == MAX_ROUTERS


def test_boots_are_bounded() -> None:
    it = intake()
    for i in range(MAX_BOOTS + 10):
        it.accept(report(1, boot=f"b{i}"), float(i))
    assert len(it.boots()) == MAX_BOOTS


def test_dropped_records_are_cumulative_per_boot() -> None:
    it = intake()
    it.accept(report(1, dropped_records=5), 0.0)
    it.accept(report(2, dropped_records=7), 1.0)
    it.accept(report(1, boot="boot-b", dropped_records=2), 2.0)
    assert it.totals.dropped_records == 9


def test_counting_goes_on_after_a_restart_of_this_process() -> None:
    before = intake()
    before.accept(report(7, counts={"tpot": Count(100, 3)}), 0.0)
    after = intake()
    after.restore(before.counts(), before.boots())
    assert after.is_first(report(8))
    after.accept(report(8, counts={"tpot": Count(110, 4)}), 0.0)
    assert after.counts()["tpot"] == Count(110, 4)


def test_the_rate_of_turns_follows_reports() -> None:
    it = intake()
    for second in range(1, 31):
        it.accept(report(second, records=turns(4)), float(second))
    assert it.qps("m", 30.0) == pytest.approx(4.0, rel=0.15)
    assert it.qps("unknown", 30.0) == 0.0


def test_failed_turns_reach_the_window() -> None:
    it = intake()
    it.accept(report(1, records=turns(30, tpot_s=0.09)), 0.0)
    [reading] = [r for r in it.tallies["m"].readings([], 5.0) if r.slo is TPOT]
    assert reading.value_s == 0.09


# -- another declaration ---------------------------------------------------------------------------------------------

SLOWER = replace(TPOT, threshold_s=1.0)
OLD, NEW = revision(TPOT), revision(SLOWER)


def counted(seq: int, valid: int, revision: str, boot: str = "boot-a"):
    return report(seq, boot=boot, counts={"tpot": Count(valid, 0)}, revisions={"tpot": revision})


def test_what_means_the_same_goes_on_and_what_changed_begins_anew() -> None:
    it = intake()
    it.accept(report(1, records=turns(30), counts={"tpot": Count(10, 1), "later-ttft": Count(7, 0)}), 0.0)
    it.redeclare((SLOS[0], SLOWER))
    assert it.counts() == {"later-ttft": Count(7, 0), "tpot": Count()}
    assert it.tallies["m"].turns == 30, "only the windows of what changed begin anew"


@pytest.mark.parametrize("router_first", [True, False])
def test_a_reload_that_one_process_sees_first_loses_no_turn_of_the_new_meaning_and_counts_none_twice(
    router_first: bool,
) -> None:
    it = intake()
    it.accept(counted(1, 10, OLD), 0.0)
    if router_first:
        it.accept(counted(2, 3, NEW), 1.0)
        assert it.counts()["tpot"] == Count(10, 0)
        assert it.differing(1.0) == {"router-0": ("tpot",)}
        it.redeclare((SLOS[0], SLOWER))
    else:
        it.redeclare((SLOS[0], SLOWER))
        it.accept(counted(2, 14, OLD), 1.0)
        assert it.counts()["tpot"] == Count()
    it.accept(counted(3, 5, NEW), 2.0)
    it.accept(counted(4, 8, NEW), 3.0)
    assert it.counts()["tpot"] == Count(8, 0)
    assert it.differing(3.0) == {}


def test_a_change_that_is_taken_back_before_a_router_saw_it_counts_nothing_twice() -> None:
    it = intake()
    it.accept(counted(1, 10, OLD), 0.0)
    it.redeclare((SLOS[0], SLOWER))
    it.accept(counted(2, 14, OLD), 1.0)
    it.redeclare(SLOS)
    it.accept(counted(3, 20, OLD), 2.0)
    assert it.counts()["tpot"] == Count(20, 0)


def test_a_router_that_knows_of_no_revisions_is_believed() -> None:
    it = intake()
    it.accept(report(1, counts={"tpot": Count(10, 0)}), 0.0)
    assert it.counts()["tpot"] == Count(10, 0)


def test_what_a_boot_counted_under_earlier_meanings_is_bounded() -> None:
    it = intake()
    for at in range(MAX_ASIDE + 20):
        slo = replace(TPOT, threshold_s=1.0 + at)
        it.redeclare((SLOS[0], slo))
        it.accept(counted(at + 1, 5, revision(slo)), float(at))
    (boot,) = it._boots.values()
    assert len(boot.aside) == MAX_ASIDE


def test_what_a_boot_had_counted_before_anybody_met_it_is_counted_and_not_measured():
    intake = Intake(SLOS)
    old = {"tpot": Count(50_000, 900, 3), "later-ttft": Count()}
    intake.accept(report(9_000, counts=old), 0.0)
    assert intake.counts()["tpot"] == Count(50_000, 900, 3) and intake.measured()["tpot"] == Count()
    intake.accept(report(9_001, counts={"tpot": Count(50_010, 901, 3)}), 1.0)
    assert intake.measured()["tpot"] == Count(10, 1)
    # A boot whose first report brings all the turns that it counts is young.
    intake.accept(report(1, boot="boot-b", records=turns(40), counts={"tpot": Count(40, 2)}), 2.0)
    assert intake.measured()["tpot"] == Count(50, 3)


def test_a_process_that_remembers_measures_what_was_counted_while_it_was_away():
    intake = Intake(SLOS)
    intake.restore({"tpot": Count(100, 5)}, {("router-0", "boot-a"): {"tpot": Count(100, 5)}})
    intake.accept(report(50, counts={"tpot": Count(130, 6)}), 0.0)
    intake.accept(report(3, router="router-1", counts={"tpot": Count(7, 0)}), 0.0)
    assert intake.measured()["tpot"] == Count(137, 6)
