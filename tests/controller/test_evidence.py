"""Evidence over ticks: discounted by time, by turns and by moves of the price."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.evidence import FULL_TICK, KEEP, SLOWEST, Evidence
from controller.feasibility import LONG_KEEP
from estimators.clusters import Clusters
from slos.reduce import SloReading
from tests.controller.records import TPOT, TTFT, counted, severities

counts = st.tuples(st.integers(0, 40), st.integers(1, 400)).map(lambda two: (min(two), max(two)))


def reading(bad: int, turns: int, late: int = 0, slo=TTFT) -> SloReading:
    return SloReading(slo, None, Clusters.of([(0, 1)] * (turns - bad) + [(1, 1)] * bad), late)


def test_a_full_tick_forgets_by_keep_and_an_empty_one_by_a_root_of_it():
    seen = Evidence().after([reading(10, 100)])
    full = seen.after([reading(0, int(FULL_TICK))])
    assert full.counts[TTFT].bad == pytest.approx(10 * KEEP)
    empty = seen.after([reading(0, 0)])
    assert empty.counts[TTFT].bad == pytest.approx(10 * KEEP ** (1 / SLOWEST))


def test_a_move_discounts_what_was_seen_before_it():
    seen = Evidence().after([reading(10, 100)])
    assert seen.moved(0.0) is seen
    assert seen.moved(-0.1).counts[TTFT].bad == pytest.approx(10 / 2.718281828, rel=1e-6)
    assert seen.moved(0.045).sides([reading(0, 0)]).ttft.sd > seen.sides([reading(0, 0)]).ttft.sd


def test_a_turn_that_still_waits_is_a_miss_now_and_is_not_kept():
    late = reading(0, 100, late=5)
    seen = Evidence().after([late])
    assert seen.sides([late]).ttft.z > 0 and seen.sides([reading(0, 0)]).ttft.z < 0


def test_a_stalled_fleet_never_looks_fast():
    stalled = reading(0, 0, late=50)
    fast = Evidence().after([reading(0, 400)])
    assert fast.sides([reading(0, 0)]).ttft.kept
    for seen in (Evidence(), fast):
        side = seen.after([stalled]).sides([stalled]).ttft
        assert side.z > 0 and side.low > 1 and not side.kept, "with no turn ended those that wait are all there is"


@given(seen=counts, late=st.integers(0, 200))
def test_a_turn_that_waits_past_its_slo_is_a_miss_for_sure_and_never_helps(seen, late):
    bad, turns = seen
    ended, waiting = reading(bad, turns), reading(bad, turns, late)
    evidence = Evidence().after([ended])
    calm, side = evidence.sides([ended]).ttft, evidence.sides([waiting]).ttft
    assert side.z >= calm.z and side.low >= calm.low - 1e-9 and side.high >= calm.high - 1e-9
    as_if_ended = Evidence().after([reading(bad + late, turns + late)]).sides([ended]).ttft
    assert side.z == pytest.approx(as_if_ended.z)


def test_no_turns_say_nothing_and_no_slo_says_nothing():
    side = counted(None, None).ttft
    assert side.z == 0 and side.turns == 0 and not side.kept and side.severity is None
    assert Evidence().sides([]).tpot.high == inf


def test_a_promise_is_kept_for_sure_from_299_turns_without_a_miss():
    assert not counted((0, 298), None).ttft.kept and counted((0, 299), None).ttft.kept


def test_of_several_slos_a_side_is_kept_only_if_all_are():
    strict = type(TTFT)("strict", TTFT.signal, 0.99, 1.0)
    rows = [reading(0, 400), reading(20, 400, slo=strict)]
    side = Evidence().after(rows).sides(rows).ttft
    assert side.z > 0 and not side.kept and side.low > 1


def test_an_slo_that_is_declared_no_more_is_forgotten():
    seen = Evidence().after([reading(1, 10), reading(1, 10, slo=TPOT)])
    assert set(seen.after([reading(0, 1)]).counts) == {TTFT}


def test_without_counts_the_percentile_speaks_and_nothing_is_ever_sure():
    sides = severities(0.2, 1.5)
    assert sides.ttft.z < 0 < sides.tpot.z and not sides.ttft.kept
    assert sides.tpot.low == 1.5


@given(ticks=st.lists(counts, min_size=1, max_size=30), step=st.floats(-1, 1))
def test_bounds_enclose_the_share_and_z_agrees_with_it(ticks, step):
    seen = Evidence()
    for bad, turns in ticks:
        seen = seen.after([reading(bad, turns)]).moved(step)
    counts = seen.counts[TTFT]
    side = seen.sides([reading(0, 0)]).ttft
    over = counts.bad / counts.valid / TTFT.epsilon
    assert side.low <= over * (1 + 1e-9) and over <= side.high * (1 + 1e-9)
    assert (side.z > 0) == (over > 1) or abs(side.z) < 1e-9
    assert side.sd > 0


def ticks_of(turns_hz: int, ticks: int, misses: int = 0) -> Evidence:
    """So many turns each second; a tick is five of them. The first turns of the last tick miss."""
    evidence = Evidence()
    for at in range(ticks):
        blocks = [(0, turns_hz)] * 5 if at < ticks - 1 else [(misses, turns_hz), *[(0, turns_hz)] * 4]
        evidence = evidence.after([SloReading(TTFT, None, Clusters.of(blocks))], LONG_KEEP)
    return evidence


@pytest.mark.parametrize("turns_hz", [2, 8, 20, 300])
def test_a_busy_service_without_a_miss_is_sure_within_minutes_as_is_one_with_a_miss(turns_hz):
    nothing = reading(0, 0)
    assert ticks_of(turns_hz, 60).sides([nothing]).ttft.kept, "five minutes"
    assert not ticks_of(turns_hz, 6).sides([nothing]).ttft.kept, "half a minute, and a second may be one event"
    if turns_hz >= 8:
        assert ticks_of(turns_hz, 60, misses=1).sides([nothing]).ttft.kept, "a miss does not make it less sure"
