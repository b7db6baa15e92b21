"""Cumulative counts of verdicts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slos.counts import MAX_ASIDE, Count, SloCounts
from slos.objective import Verdict

verdicts = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(Verdict)), max_size=30)


def counted(pairs: list[tuple[str, Verdict]]) -> SloCounts:
    counts = SloCounts(["a", "b"])
    for name, verdict in pairs:
        counts.add(name, verdict)
    return counts


def test_every_declared_slo_starts_with_a_row_of_zeros():
    assert SloCounts(["ttft", "tpot"]).snapshot() == {"ttft": Count(0, 0, 0), "tpot": Count(0, 0, 0)}


def test_good_and_bad_turns_are_valid_and_excluded_ones_are_counted_apart():
    counts = counted([("a", Verdict.GOOD), ("a", Verdict.BAD), ("a", Verdict.EXCLUDED), ("a", Verdict.GOOD)])
    assert counts.snapshot() == {"a": Count(valid=3, bad=1, excluded=1), "b": Count()}


def test_an_slo_that_was_not_declared_cannot_be_counted():
    with pytest.raises(KeyError):
        SloCounts(["a"]).add("b", Verdict.GOOD)


def test_a_snapshot_does_not_change_afterwards():
    counts = SloCounts(["a"])
    before = counts.snapshot()
    counts.add("a", Verdict.BAD)
    assert before == {"a": Count()}


def test_merging_reports_the_names_that_it_does_not_know_and_keeps_the_set_of_rows():
    counts = SloCounts(["a", "b"])
    assert counts.merge({"a": Count(2, 1, 0), "old": Count(9, 9, 9)}) == {"old"}
    assert counts.snapshot() == {"a": Count(2, 1, 0), "b": Count()}


def test_the_increase_after_a_restart_is_all_that_the_new_process_counted():
    for fresh in (Count(3, 5, 2), Count(200, 1, 2), Count(200, 5, 0)):
        assert fresh.since(Count(100, 5, 2)) == fresh
    assert Count(105, 6, 2).since(Count(100, 5, 2)) == Count(5, 1, 0)


@settings(derandomize=True)
@given(verdicts, verdicts)
def test_counts_of_two_processes_merge_to_the_counts_of_one_that_saw_both(first, second):
    together = counted(first)
    assert together.merge(counted(second).snapshot()) == frozenset()
    assert together.snapshot() == counted(first + second).snapshot()


@settings(derandomize=True)
@given(verdicts, verdicts)
def test_the_increase_between_two_snapshots_is_what_was_counted_between_them(first, second):
    later, earlier, between = counted(first + second), counted(first), counted(second)
    for name, count in later.snapshot().items():
        assert count.since(earlier.snapshot()[name]) == between.snapshot()[name]


@settings(derandomize=True)
@given(verdicts)
def test_there_are_never_more_bad_than_valid_turns(pairs):
    assert all(0 <= count.bad <= count.valid for count in counted(pairs).snapshot().values())


def test_a_reload_keeps_what_means_the_same_and_begins_anew_what_changed():
    counts = SloCounts({"a": "1", "b": "1", "c": "1"})
    for name in "abc":
        counts.add(name, Verdict.BAD)
    counts.redeclare({"a": "1", "b": "2", "d": "1"})
    assert counts.snapshot() == {"a": Count(1, 1), "b": Count(), "d": Count()}
    assert counts.revisions == {"a": "1", "b": "2", "d": "1"}


def test_a_change_that_is_taken_back_goes_on_where_it_stopped():
    counts = SloCounts({"a": "1"})
    counts.add("a", Verdict.GOOD)
    counts.redeclare({"a": "2"})
    counts.add("a", Verdict.BAD)
    counts.redeclare({"a": "1"})
    counts.add("a", Verdict.GOOD)
    assert counts.snapshot() == {"a": Count(2, 0)}
    counts.redeclare({"a": "2"})
    assert counts.snapshot() == {"a": Count(1, 1)}


def test_what_is_set_aside_is_bounded():
    counts = SloCounts({"a": "0"})
    for at in range(MAX_ASIDE + 50):
        counts.add("a", Verdict.GOOD)
        counts.redeclare({"a": str(at + 1)})
    assert len(counts._aside) == MAX_ASIDE
