"""The law in shadow: it reads what its own price would have made of the turns, and keeps both sides of a window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.laws.aimd import Aimd
from controller.observe import MAX_TURNS, WINDOW_S, Caution, Observed, Shadow, Window
from controller.replay import Compared
from router.policy import Policy, Weights
from router.record import TurnRecord
from router.turn import Route
from slos.objective import Outcome, Slo
from tests.controller.records import MODEL, TPOT, TTFT, failed
from tests.controller.test_replay import TABLES, turn

SLOS = (TTFT, TPOT)


def shadow(price: float = 0.4, *, law: Aimd | None = None, slos: tuple[Slo, ...] = SLOS, hold_s: float = 0.0) -> Shadow:
    return Shadow(Policy(7, TABLES, Weights.from_price(price), pin_x=0.0), law, slos, hold_s)


def compared(record: TurnRecord, ttft_s: float | None = None, tpot_s: float | None = None) -> Compared:
    return Compared(record, Route.APPEND_LOCAL, None, ttft_s or record.ttft_s, tpot_s or record.tpot_s, 1.0)


def window_of(*turns: Compared, now_s: float = 0.0) -> Observed:
    window = Window(MODEL, SLOS)
    for each in turns:
        window.add(each, now_s)
    return window.observed(now_s)


def test_the_pin_that_is_acted_on_is_none_of_the_shadows() -> None:
    assert shadow().policy.pin_x is None


def test_both_sides_are_told_with_the_misses_of_each_slo() -> None:
    slow = [compared(turn(i, ttft_s=3.0), 0.5) for i in range(30)]
    fast = [compared(turn(i, ttft_s=0.3), 0.2, 0.05) for i in range(970)]
    seen = window_of(*slow, *fast)
    assert (seen.ttft.acted.value, seen.ttft.shadow.value) == (3.0, 0.5)
    assert seen.ttft.shadow.low == 0.5 and seen.ttft.shadow.high == 0.5
    ttft, tpot = seen.misses
    assert (ttft.valid, ttft.acted, ttft.shadow) == (1000, 30, 0)
    assert (tpot.valid, tpot.acted, tpot.shadow) == (1000, 0, 970)
    assert ttft.share.acted.low is not None and ttft.share.acted.low < 0.03 < (ttft.share.acted.high or 0)
    assert not seen.cautions


def test_too_few_turns_have_no_upper_bound_and_say_so() -> None:
    seen = window_of(*[compared(turn(i)) for i in range(100)])
    assert seen.ttft.acted.value is not None and seen.ttft.acted.high is None
    assert Caution.FEW_TURNS in seen.cautions
    assert window_of().ttft.acted.value is None


def test_an_overloaded_fleet_and_a_table_that_is_off_are_told() -> None:
    seen = window_of(*[compared(turn(i, ttft_s=9.0)) for i in range(400)])
    assert Caution.OVERLOADED in seen.cautions
    unknown = [replace(compared(turn(i)), has_table=i > 0) for i in range(400)]
    assert window_of(*unknown).cautions == (Caution.NO_TABLE,)
    wrong = [replace(compared(turn(i)), predicted=4.0) for i in range(400)]
    assert window_of(*wrong).cautions == (Caution.MODEL_OFF,)


def test_first_turns_and_short_answers_have_no_say_in_the_percentiles() -> None:
    seen = window_of(compared(turn(0.0, turn=1)), compared(turn(1.0, tokens=7)))
    assert (seen.ttft.acted.n, seen.tpot.acted.n, seen.turns) == (1, 1, 2)


def test_a_turn_that_failed_is_as_bad_on_both_sides() -> None:
    seen = window_of(compared(failed(outcome=Outcome.FAILED)))
    assert seen.ttft.acted.value == seen.ttft.shadow.value == float("inf")
    assert (seen.misses[0].acted, seen.misses[0].shadow) == (1, 1)


def test_a_window_forgets_and_is_bounded() -> None:
    window = Window(MODEL, SLOS, max_turns=50)
    for i in range(80):
        window.add(compared(turn(i)), float(i))
    assert window.observed(80.0).turns == 50
    assert window.observed(WINDOW_S + 60.5).turns == 19
    assert window.observed(2 * WINDOW_S).turns == 0
    assert MAX_TURNS * 1e-3 < WINDOW_S * 30, "at 20 turns a second the whole window is there"


def test_turns_that_could_go_either_way_are_told_from_the_others() -> None:
    seen = shadow(price=1e-6)
    turns = [turn(i * 1.0, uncached_d=64, p_backlog_ms=300.0) for i in range(8)]
    turns += [turn(i + 0.5, turn=1) for i in range(4)]
    seen.take(turns, 100.0)
    seen.take((), 200.0)
    seen.tick(200.0)
    told = seen.observed(MODEL, 200.0)
    assert (told.turns, told.decided, told.differing, told.differing_share) == (12, 8, 8, 1.0)


def prices(start: float, ticks: int) -> list[float]:
    """Where the law stands after each tick over a fleet on x=0 whose P is overrun, for ever."""
    seen = shadow(start, law=Aimd())
    found = []
    for i in range(ticks):
        at_s = 5.0 * i
        turns = [
            turn(at_s + k / 2, ttft_s=2.6, p_backlog_ms=900.0, n_in=4000, uncached_d=4000, uncached_p=1000)
            for k in range(10)
        ]
        seen.take(turns, at_s + 7.2)
        seen.tick(at_s + 7.2)
        found.append(seen.policy.weights_for(MODEL).price)
    return found


def test_the_law_rests_once_its_own_price_would_have_mended_what_it_was_moved_by() -> None:
    """On the readings of the fleet as it is run, which are over the SLO for ever, it would go on to its end."""
    found = prices(5.0, 70)
    assert found[10] < found[3] <= 5.0, "it moves while its policy would not help"
    assert found[-1] == found[-15] > 0.1, "and rests where it would"


def test_without_a_law_the_price_stays() -> None:
    seen = shadow(0.4)
    seen.take([turn(i * 0.1, ttft_s=9.0) for i in range(50)], 6.0)
    seen.tick(50.0)
    assert seen.policy.weights_for(MODEL).price == pytest.approx(0.4)


def test_other_slos_begin_windows_anew() -> None:
    seen = shadow()
    seen.take([turn(i * 0.1) for i in range(50)], 6.0)
    seen.tick(50.0)
    assert seen.observed(MODEL, 50.0).turns == 50
    seen.redeclare((replace(TTFT, threshold_s=0.1),))
    assert seen.observed(MODEL, 50.0).turns == 0
    seen.take([turn(60 + i * 0.1) for i in range(50)], 70.0)
    assert [each.slo.threshold_s for each in seen.observed(MODEL, 90.0).misses] == [0.1]


def test_models_are_bounded() -> None:
    seen = shadow()
    seen.take([turn(0.0, model=f"m{i}") for i in range(40)], 5.0)
    assert len(seen.models) <= 32
