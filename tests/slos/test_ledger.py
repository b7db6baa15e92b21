"""The last few minutes of ever-growing counters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slos.counts import Count
from slos.ledger import CountWindow


def test_the_first_value_only_says_where_counting_starts():
    window = CountWindow(300.0)
    assert window.total() == Count()
    window.add(Count(5000, 400, 3), 1000.0)
    assert window.total() == Count()
    window.add(Count(5010, 402, 3), 1005.0)
    assert window.total() == Count(10, 2, 0)


def test_what_is_older_than_the_span_is_forgotten():
    window = CountWindow(300.0)
    for at in range(200):
        window.add(Count(10 * at, at, 0), 5.0 * at)
    assert window.total() == Count(600, 60, 0)
    window.add(Count(1990, 199, 0), 995.0 + 300.0)
    assert window.total() == Count()


@settings(derandomize=True)
@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(0, 9)), min_size=1, max_size=200))
def test_the_window_is_right_to_one_slice_and_its_memory_is_bounded(steps):
    window, now_s, total, log = CountWindow(300.0), 0.0, 0, []
    for step_s, added in steps:
        now_s, total = now_s + step_s, total + added
        log.append((now_s, added))
        window.add(Count(total), now_s)
    log = log[1:]  # the first is where counting starts
    within = sum(added for at_s, added in log if at_s > now_s - 300.0 + 5.0)
    at_most = sum(added for at_s, added in log if at_s > now_s - 300.0 - 5.0)
    assert within <= window.total().valid <= at_most
    assert len(window._slices) <= 61


def test_a_counter_that_fell_began_anew():
    window = CountWindow(300.0)
    window.add(Count(100, 5, 0), 0.0)
    window.add(Count(7, 1, 0), 5.0)
    assert window.total() == Count(7, 1, 0)


def test_time_that_runs_backwards_stands_still():
    window = CountWindow(300.0)
    for now_s, valid in ((100.0, 0), (200.0, 4), (50.0, 9)):
        window.add(Count(valid), now_s)
    assert window.total() == Count(9)


def test_a_restart_forgets_all():
    window = CountWindow(300.0)
    window.add(Count(0), 0.0)
    window.add(Count(10), 5.0)
    window.restart()
    assert window.total() == Count()
    window.add(Count(5000), 10.0)
    assert window.total() == Count()


def test_a_window_has_a_span():
    with pytest.raises(ValueError, match="0"):
        CountWindow(0.0)
