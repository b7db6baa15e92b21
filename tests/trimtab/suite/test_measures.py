"""What ticks say of a controller: settling, calm, needless moves and flags, on ticks made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, sqrt

import pytest

from controller.feasibility import Feasibility, Relief
from controller.laws.protocol import Action, Side, Sides
from controller.safety import State
from controller.tick import TICK_S, ModelOutput
from emulator.workload import Phase
from slos.reduce import SloReading, binding
from trimtab.scenarios import Scenario, promises
from trimtab.simulate import TickView
from trimtab.suite.measures import Flag, Settled, measured

SLOS = promises(2.0, 0.040)
SCENARIO = Scenario("s", "s", "p", "2P_2D", (Phase("a", 50.0), Phase("b", 50.0)), SLOS, settle_s=10.0)


def views(
    severities: Sequence[tuple[float | None, float | None]],
    prices: list[float] | None = None,
    flagged: set[int] = frozenset(),  # type: ignore[assignment]
    high: float = inf,
) -> list[TickView]:
    """A tick every five seconds, 10 later turns in each; severities are (TTFT, TPOT)."""
    found = []
    for at, (ttft, tpot) in enumerate(severities):
        values = (None if ttft is None else 2.0 * ttft, None if tpot is None else 0.040 * tpot)
        readings = tuple(SloReading(slo, value) for slo, value in zip(SLOS, values, strict=True))
        sides = Sides(Side(ttft, high=high), Side(tpot, high=high))
        price = prices[at] if prices is not None else 0.4
        relief = Relief.BOTH if at in flagged else None
        output = ModelOutput(readings, binding(readings), price, Action.HOLD, Feasibility(relief=relief), sides)
        found.append(TickView(TICK_S * (at + 1), output, 10 * (at + 1), 0, State.ACTIVE))
    return found


CALM = (0.5, 0.5)


def test_a_phase_settles_when_both_sides_are_inside_again():
    severities = [CALM, (1.5, 0.5), (2.5, 0.9), (0.9, 1.1), *[CALM] * 16]
    assert measured(SCENARIO, views(severities)).settled == (Settled(0, 3, 30, True, 2.5),)


def test_a_phase_that_ends_before_is_unsettled_and_the_next_one_counts_anew():
    severities = [*[CALM] * 8, (1.2, 0.5), (1.2, 0.5), (1.2, 0.5), *[CALM] * 9]
    found = measured(SCENARIO, views(severities)).settled
    assert found == (Settled(0, 1, 10, False, 1.2), Settled(1, 1, 10, True, 1.2))


def test_no_evidence_is_neither_over_nor_inside():
    severities = [(None, None), (1.5, 0.5), (None, 0.5), CALM, *[(None, None)] * 16]
    assert measured(SCENARIO, views(severities)).settled == (Settled(0, 2, 20, True, 1.5),)


def test_a_run_inside_has_nothing_to_settle_and_a_constant_price_no_deviation():
    found = measured(SCENARIO, views([CALM] * 20))
    assert (found.settled, found.sd_ln_p, found.moves, found.reversals_per_h) == ((), 0.0, 0, 0.0)


def test_the_deviation_is_within_phases_and_without_their_settling_time():
    prices = [9.0, 9.0, *[1.0, 2.0] * 4, 7.0, 7.0, *[3.0, 3.0] * 4]
    assert measured(SCENARIO, views([CALM] * 20, prices)).sd_ln_p == pytest.approx(sqrt((log(2) / 2) ** 2 / 2))


def test_reversals_are_turning_points_after_swings_that_matter():
    prices = [1.0, 1.2, 1.2, 1.4, 1.2, 1.2, 1.0, 1.4, *[1.4, 1.3] * 6]
    found = measured(SCENARIO, views([CALM] * 20, prices))
    assert (found.moves, found.reversals_per_h, found.cycling_ticks) == (16, 2 * 36, 0)


def test_a_price_that_goes_to_and_fro_is_in_a_limit_cycle():
    found = measured(SCENARIO, views([CALM] * 20, [1.0, 1.4] * 10))
    assert found.reversals_per_h == 18 * 36
    assert found.cycling_ticks == 20 - 5, "the fourth turn shows at the sixth tick"


def test_moves_are_needless_where_both_upper_bounds_are_inside_the_budget():
    prices = [1.0, 1.1, 1.2, *[1.2] * 17]
    assert measured(SCENARIO, views([CALM] * 20, prices)).needless_moves is None, "nothing was ever sure"
    assert measured(SCENARIO, views([CALM] * 20, prices, high=0.9)).needless_moves == 2
    assert measured(SCENARIO, views([CALM] * 20, prices, high=1.1)).needless_moves is None


def test_a_flag_is_counted_when_it_goes_up():
    found = measured(SCENARIO, views([CALM] * 20, flagged={3, 4, 5, 12, 13}))
    assert found.flags == (Flag(0, 20.0), Flag(1, 15.0))
