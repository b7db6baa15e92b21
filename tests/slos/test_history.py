"""Slices of time, held against sums over a plain dictionary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slos.counts import Count
from slos.history import History, Slices

DAY_S = 86_400.0


def summed(rows: dict[int, Count], first: int, last: int) -> Count:
    return sum((count for at, count in rows.items() if first <= at <= last), Count())


ADDS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50), st.integers(0, 50)), max_size=60)


@given(ADDS, st.integers(1, 20))
def test_windows_are_the_sums_of_their_slices(adds: list[tuple[int, int, int]], slices: int):
    rows: dict[int, Count] = {}
    history, at = History(60.0, 20 * 60.0), 1_000_000
    for step, good, bad in adds:
        at += step
        history.add(at, Count(good + bad, bad))
        rows[at] = rows.get(at, Count()) + Count(good + bad, bad)
        assert history.window(slices * 60.0, at) == summed(rows, at - slices, at)
        assert history.window(slices * 60.0, at + 1) == summed(rows, at + 1 - slices, at + 1), (
            "the next one, still empty"
        )
    kept = {at: count for at, count in rows.items() if at > max(rows, default=0) - 22}
    assert {at: count for at, count in history.rows() if at in kept} == kept
    assert [at for at, _ in history.rows()] == sorted(at for at, _ in history.rows())


@given(ADDS)
def test_verdicts_are_those_of_each_slice(adds: list[tuple[int, int, int]]):
    rows: dict[int, Count] = {}
    history, at = History(60.0, 30 * 60.0), 1_000_000
    for step, good, bad in adds:
        at += step
        history.add(at, Count(good + bad, bad))
        rows[at] = rows.get(at, Count()) + Count(good + bad, bad)
    if not rows:
        return
    closed = range(at - 30, at)
    known = [rows[one] for one in closed if one in rows and rows[one].valid >= 20]
    broken = sum(count.bad > 0.1 * count.valid for count in known)
    elapsed = min(30, at - next(iter(history.rows()))[0])
    assert history.slices(30 * 60.0, at, 0.1, 20) == Slices(len(known) - broken, broken, max(0, elapsed - len(known)))


def test_a_slice_that_changes_late_is_seen():
    history = History(300.0, DAY_S)
    history.add(100, Count(10, 1))
    history.add(102, Count(10, 0))
    assert history.window(3600.0, 103) == Count(20, 1)
    history.add(101, Count(5, 5))
    assert history.window(3600.0, 103) == Count(25, 6)
    history.put(100, Count(1, 0))
    assert history.window(3600.0, 103) == Count(16, 5)


def test_what_is_older_than_the_ring_is_gone_and_never_counted_for_something_else():
    history = History(300.0, 10 * 300.0)
    for at in range(100):
        history.add(at, Count(1, 0))
        assert history.window(10 * 300.0, at).valid == min(at + 1, 11)
    assert len(list(history.rows())) == 12 and history.first == 88


@pytest.mark.parametrize(("slice_s", "over_s"), [(0.0, 10.0), (-1.0, 10.0), (20.0, 10.0)])
def test_sizes_that_are_none_are_refused(slice_s: float, over_s: float):
    with pytest.raises(ValueError, match="slices of"):
        History(slice_s, over_s)
