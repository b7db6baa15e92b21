"""Tallies: three ticks of samples per driving SLO, and counts per cell that are bounded."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import cells
from controller.cells import MIN_SAMPLES, CellCount, Tallies
from router.core import Waiting
from router.turn import Route
from slos.objective import Match, Outcome, Signal, Slo
from slos.terms import NO_TERMS, Terms
from tests.controller.records import MODEL, TPOT, TTFT, failed, record

SLOS = (TTFT, TPOT)


def readings(tallies: Tallies, now_s: float = 5.0, waiting: tuple[Waiting, ...] = ()) -> dict[str, float | None]:
    return {reading.slo.name: reading.value_s for reading in tallies.readings(waiting, now_s)}


def filled(count: int = 100, **what: object) -> Tallies:
    tallies = Tallies(MODEL, SLOS)
    for _ in range(count):
        tallies.fold(record(**what))  # type: ignore[arg-type]
    return tallies


def test_a_reading_is_the_percentile_of_the_window_by_nearest_rank():
    tallies = Tallies(MODEL, SLOS)
    for at in range(100):
        tallies.fold(record(ttft_s=(at + 1) / 100, tpot_s=(at + 1) / 10_000))
    assert readings(tallies) == {"later-ttft": 0.99, "tpot": 0.0099}


def test_below_twenty_samples_there_is_no_reading():
    tallies = filled(19)
    assert readings(tallies) == {"later-ttft": None, "tpot": None}
    tallies.fold(record())
    assert readings(tallies, 10.0) == {"later-ttft": 0.5, "tpot": 0.020}


def test_a_sample_is_read_in_three_ticks_and_then_forgotten():
    tallies = filled(30)
    seen = [readings(tallies, 5.0 * tick)["later-ttft"] for tick in range(1, 5)]
    assert seen == [0.5, 0.5, 0.5, None]


def test_the_window_slides_tick_by_tick():
    tallies = Tallies(MODEL, SLOS)
    for tick in range(1, 7):
        for _ in range(30):
            tallies.fold(record(ttft_s=float(tick)))
        assert readings(tallies, 5.0 * tick)["later-ttft"] == tick
    assert readings(tallies, 35.0)["later-ttft"] == 6.0


def test_first_turns_count_for_tpot_and_not_for_the_ttft_of_later_turns():
    tallies = filled(100, turn=1, ttft_s=9.0)
    assert readings(tallies) == {"later-ttft": None, "tpot": 0.020}
    assert tallies.turns == 100 and tallies.later_turns == 0


def test_a_tpot_over_fewer_than_eight_tokens_is_no_sample():
    assert readings(filled(100, output_tokens=7))["tpot"] is None
    assert readings(filled(100, output_tokens=8))["tpot"] == 0.020


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_failures_count_as_infinitely_slow_on_both_sides(outcome):
    tallies = filled(100)
    tallies.fold(failed(outcome=outcome))
    tallies.fold(failed(outcome=outcome))
    assert readings(tallies) == {"later-ttft": inf, "tpot": inf}


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.CLIENT_ERROR])
def test_turns_that_were_never_served_are_no_samples(outcome):
    tallies = filled(100)
    for _ in range(50):
        tallies.fold(failed(outcome=outcome))
    assert readings(tallies) == {"later-ttft": 0.5, "tpot": 0.020}


def test_a_client_that_gave_up_past_the_slo_counts_with_its_wait():
    tallies = filled(100)
    for _ in range(2):
        gone = record(ttft_s=None, tpot_s=None, output_tokens=0, outcome=Outcome.CLIENT_GONE, waited_s=7.0)
        tallies.fold(gone)
    assert readings(tallies) == {"later-ttft": 7.0, "tpot": 0.020}


def test_a_client_that_left_within_the_slo_says_nothing():
    tallies = filled(10)
    for _ in range(50):
        tallies.fold(record(ttft_s=None, tpot_s=None, output_tokens=0, outcome=Outcome.CLIENT_GONE, waited_s=1.0))
    assert readings(tallies) == {"later-ttft": None, "tpot": None}


def test_turns_waiting_past_the_slo_count_with_their_age():
    late = Waiting(MODEL, 2, True, 2.5)
    assert readings(filled(100), waiting=(late, late))["later-ttft"] == 2.5
    assert readings(Tallies(MODEL, SLOS), waiting=(late,) * 20) == {"later-ttft": 2.5, "tpot": None}


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.floats(0.1, 4.0), min_size=MIN_SAMPLES, max_size=80), st.lists(st.floats(2.01, 9.0), max_size=40))
def test_turns_that_wait_past_the_slo_never_make_a_reading_look_kept(ended, ages):
    limit_s = TTFT.threshold_s or 0.0
    tallies = Tallies(MODEL, SLOS), Tallies(MODEL, SLOS)
    for ttft_s in ended:
        for each in tallies:
            each.fold(record(ttft_s=ttft_s))
    alone = readings(tallies[0])[TTFT.name]
    (reading, _) = tallies[1].readings([Waiting(MODEL, 2, True, age_s) for age_s in ages], 5.0)
    assert alone is not None and reading.value_s is not None
    assert reading.value_s > limit_s or alone <= limit_s
    assert reading.late == len(ages), "and each is a miss for the evidence"


@pytest.mark.parametrize(
    "other",
    [
        Waiting(MODEL, 2, True, 2.0),  # at the SLO, not past it
        Waiting(MODEL, 1, True, 9.0),  # a first turn, which the SLO does not cover
        Waiting(MODEL, 2, False, 9.0),  # has no TTFT
        Waiting("other", 2, True, 9.0),
    ],
)
def test_other_waiting_turns_do_not_count(other):
    assert readings(filled(100), waiting=(other,) * 50)["later-ttft"] == 0.5


def test_waiting_turns_are_counted_anew_at_every_tick():
    tallies = filled(100)
    assert readings(tallies, 5.0, (Waiting(MODEL, 2, True, 9.0),) * 5)["later-ttft"] == 9.0
    assert readings(tallies, 10.0)["later-ttft"] == 0.5


def test_turns_that_do_not_stream_are_counted_and_are_no_samples():
    tallies = filled(100, streaming=False, ttft_s=9.0)
    assert readings(tallies) == {"later-ttft": None, "tpot": None}
    assert tallies.turns == tallies.later_turns == 100


def test_another_models_turns_are_ignored():
    tallies = filled(100, model="other")
    assert readings(tallies) == {"later-ttft": None, "tpot": None}
    assert tallies.turns == 0 and not tallies.cells


def test_slos_of_other_models_and_those_that_cannot_drive_have_no_reading():
    theirs = Slo("theirs", Signal.TTFT, 0.99, 1.0, Match(("qwen*",)))
    whole = Slo("whole", Signal.E2E, 0.99, 30.0)
    assert [r.slo for r in Tallies(MODEL, (theirs, TPOT, whole, TTFT)).readings((), 5.0)] == [TTFT, TPOT]


def test_each_slo_is_read_at_its_own_percentile():
    tallies = Tallies(MODEL, (Slo("median", Signal.TTFT, 0.5, 1.0), TTFT))
    for at in range(100):
        tallies.fold(record(ttft_s=(at + 1) / 100))
    assert readings(tallies) == {"median": 0.5, "later-ttft": 0.99}


def test_later_turns_are_counted_by_cell_and_realised_route():
    tallies = Tallies(MODEL, SLOS)
    tallies.fold(record(cell="a", ttft_s=0.2))
    tallies.fold(record(cell="a", ttft_s=0.4))
    elsewhere = record(cell="a", ttft_s=1.0, local=False)
    tallies.fold(replace(elsewhere, decision=replace(elsewhere.decision, route=Route.APPEND_LOCAL)))
    tallies.fold(record(cell="", ttft_s=1.0))
    tallies.fold(record(1, cell="a", ttft_s=1.0))
    tallies.fold(failed())
    assert tallies.cells == {
        ("a", Route.APPEND_LOCAL): CellCount(2, 0.2 + 0.4),
        ("a", Route.PREFILL_TRANSFER): CellCount(1, 1.0),
    }
    assert (tallies.turns, tallies.later_turns, tallies.local_turns) == (6, 5, 4)


def test_the_number_of_cells_is_bounded_and_what_is_dropped_is_counted(monkeypatch):
    monkeypatch.setattr(cells, "MAX_CELLS", 3)
    tallies = Tallies(MODEL, SLOS)
    for at in range(5):
        tallies.fold(record(cell=f"c{at}"))
    tallies.fold(record(cell="c0"))
    assert len(tallies.cells) == 3 and tallies.cells_dropped == 2
    assert tallies.cells["c0", Route.APPEND_LOCAL].n == 2


def test_a_turn_that_asked_for_a_deadline_of_its_own_is_no_sample_of_that_signal_and_does_not_wait_for_it():
    tally = Tallies(MODEL, (TTFT, TPOT))
    own = Terms(ttft_s=60.0)
    for _ in range(MIN_SAMPLES):
        tally.fold(replace(record(ttft_s=9.0), terms=own))
        tally.fold(record(ttft_s=0.5))
    late = [Waiting(MODEL, 2, True, 30.0, own)]
    ttft, tpot = tally.readings(late, 1.0)
    assert ttft.value_s == 0.5
    assert tpot.value_s is not None
    assert tally.readings([replace(late[0], terms=NO_TERMS)], 2.0)[0].value_s == 30.0


def test_only_turns_of_its_class_are_samples_of_an_slo_with_one():
    gold = replace(TTFT, match=replace(TTFT.match, classes=("gold",)))
    tally = Tallies(MODEL, (gold,))
    for _ in range(MIN_SAMPLES):
        tally.fold(record(ttft_s=9.0))
        tally.fold(replace(record(ttft_s=0.5), terms=Terms("gold")))
    (reading,) = tally.readings((), 1.0)
    assert reading.value_s == 0.5


def test_a_window_goes_on_under_another_declaration_that_still_has_its_slo():
    tally = Tallies(MODEL, (TTFT, TPOT))
    for _ in range(MIN_SAMPLES):
        tally.fold(record())
    tally.redeclare((replace(TPOT, threshold_s=9.0), TTFT))
    values = {each.slo.name: each.value_s for each in tally.readings((), 1.0)}
    assert values[TTFT.name] is not None
    assert values[TPOT.name] is None
