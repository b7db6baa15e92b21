"""Calibration: what cannot be measured is said before anything runs, and the artefact is a function of the results."""

from dataclasses import replace

import pytest

from router.artefact import load
from router.table import LoadAwareTable
from trimtab import calibrate
from trimtab.calibrate import CalibrationError, Plan, advice, artefact_text, document, doubt, run_phase1
from trimtab.fit import FitError
from trimtab.rows import CellResult
from trimtab.workloads import Workload

PLAN = Plan("llama-3.1-8b-h100", "2P_2D", jobs=1)
CELLS = tuple(
    (Workload((1024, 1024), turn2), qps) for turn2 in ("tiny", "mid_paste", "huge_paste") for qps in (1.0, 4.0)
)


@pytest.fixture
def small_grid(monkeypatch):
    monkeypatch.setattr(calibrate, "grid", lambda: iter(CELLS))


@pytest.fixture(scope="module")
def results() -> list[CellResult]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "grid", lambda: iter(CELLS))
        return run_phase1(PLAN, lambda done, total: None)


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(CalibrationError, match=r"unknown model 'gpt'; known: llama-3\.1-70b-a100-tp4, llama-3\.1-70b"):
        Plan("gpt", "2P_2D").checked()


@pytest.mark.parametrize("topology", ["2P2D", "", "2P_0D", "2X_2D"])
def test_a_topology_that_is_none_is_refused_with_an_example(topology):
    with pytest.raises(CalibrationError, match=r"write e\.g\. 1P_3D, 2P_2pD or 4R"):
        Plan(PLAN.profile, topology).checked()


@pytest.mark.parametrize("topology", ["2D", "4R", "2P_2R"])
def test_a_topology_without_a_choice_is_refused(topology):
    with pytest.raises(CalibrationError, match=rf"'{topology}' has no choice to calibrate: it needs P and D nodes"):
        Plan(PLAN.profile, topology).checked()


def test_a_bad_plan_measures_nothing(small_grid):
    with pytest.raises(CalibrationError):
        run_phase1(Plan("gpt", "2P_2D"), lambda done, total: pytest.fail("a cell was measured"))


def test_progress_counts_every_cell_and_the_order_does_not_depend_on_the_jobs(small_grid, results):
    seen = []
    again = run_phase1(Plan(PLAN.profile, PLAN.topology, jobs=2), lambda done, total: seen.append((done, total)))
    assert seen == [(at + 1, len(CELLS)) for at in range(len(CELLS))]
    assert again == results
    assert [result.cell.key for result in results] == [(w.context, w.turn2, qps) for w, qps in CELLS]


def test_the_same_results_give_the_same_bytes(results):
    one, two = (artefact_text(PLAN, results, date="2026-01-01", command="c") for _ in range(2))
    assert one == two and one.endswith("}\n")


def test_the_artefact_says_where_it_comes_from_and_holds_the_cells(results):
    artefact = load(artefact_text(PLAN, results, date="2026-01-01", command="the command"), "t.json")
    origin = artefact.origin
    assert (origin.model, origin.topology, origin.source, origin.seed) == ("llama-3.1-8b", "2P_2D", "emulated", 0)
    assert (origin.date, origin.command) == ("2026-01-01", "the command")
    assert origin.engine.startswith("trimtab emulator, profile llama-3.1-8b-h100")
    assert origin.samples == sum(result.cell.x0.n + result.cell.x1.n for result in results)
    assert artefact.cells == tuple(result.cell for result in results)
    assert artefact.table.cost == pytest.approx(LoadAwareTable.filled(artefact.table.model).cost, rel=1e-5, abs=0.011)


def test_too_few_measurements_are_no_artefact(results):
    with pytest.raises(FitError, match="are needed"):
        artefact_text(PLAN, results[:1], date="2026-01-01", command="c")


def test_cells_that_were_asked_for_and_not_measured_are_named_in_the_artefact(results):
    origin = load(artefact_text(PLAN, results, date="2026-01-01", command="c"), "t.json").origin
    missing = {"huge/tiny@2": "needs 8816 tokens of context, the engines take 8192"}
    artefact = load(document(origin, results, missing), "t.json")
    assert artefact.missing == missing
    assert load(document(origin, results, {}), "t.json").missing == {}
    assert '"missing"' not in document(origin, results, {})


def test_a_few_cells_give_the_fit_more_rows_of_each(results):
    few = run_phase1(replace(PLAN, cells=CELLS[:1]), lambda done, total: None)
    assert len(few) == 1 and len(few[0].ttft_rows) > len(results[0].ttft_rows)


def test_the_advice_is_lower_rates_where_the_fleet_was_overloaded_and_more_cells_where_not(results):
    assert advice(results[:1]).startswith("Add --cells, e.g. of small/tiny@2")
    swamped = replace(results[0], cell=replace(results[0].cell, x0=replace(results[0].cell.x0, success=0.5)))
    assert advice([swamped, results[1]]) == "Overloaded: large/tiny@1. Add the same --cells at lower rates"
    silent = replace(results[1], cell=replace(results[1].cell, x1=replace(results[1].cell.x1, n=0)))
    assert "Overloaded: large/tiny@4" in advice([results[0], silent])


def test_a_table_that_does_not_fit_comes_with_a_warning():
    good = {"ttft_local": 0.05, "ttft_transferred": 0.25, "tpot": 0.01, "ttft_rows": 400.0}
    assert doubt(good) == ""
    assert "by more than 72%: do not serve with this table" in doubt({**good, "ttft_local": 0.717})
