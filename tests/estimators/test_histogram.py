"""Buckets: what they say for certain, what is added between scrapes, and sums over nodes."""

import math
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.histogram import BucketQuantile, Histogram, HistogramWindow, Snapshot, increase, merged
from estimators.protocol import Estimate
from estimators.quantile import nearest_rank

INF = math.inf
TTFT_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
EDGES = (*TTFT_EDGES, INF)

latencies = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=60)
quantiles = st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999])
edge_sets = st.sets(st.sampled_from(TTFT_EDGES), min_size=1).map(lambda edges: (*sorted(edges), INF))


def counted(values, edges=EDGES) -> Histogram:
    rows = np.sort(np.asarray(values, dtype=float))
    return Histogram(edges, tuple(float(count) for count in np.searchsorted(rows, edges, side="right")))


def seen(values, edges=EDGES, started_s: float | None = 1.0) -> Snapshot:
    return Snapshot(edges, counted(values, edges).counts, started_s)


def contains(quantile: BucketQuantile | None, truth: float) -> bool:
    assert quantile is not None
    if quantile.at_least:
        return quantile.value == quantile.low and truth > quantile.low
    assert quantile.high is not None
    return quantile.low <= truth <= quantile.high and quantile.low <= quantile.value <= quantile.high


# -- one histogram --------------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=200)
@given(latencies, edge_sets, quantiles)
def test_the_bounds_contain_the_true_quantile_whatever_the_values_and_edges(values, edges, q):
    assert contains(counted(values, edges).quantile(q), nearest_rank(sorted(values), q))


@pytest.mark.parametrize("seed", range(8))
def test_on_seeded_latencies_of_three_nodes_with_other_edges_the_bounds_contain_the_truth(seed: int):
    random = np.random.default_rng(seed)
    nodes = [random.lognormal(random.normal(-1.0, 1.0), random.uniform(0.2, 1.5), 200) for _ in range(3)]
    edges = (EDGES, EDGES[::2] if EDGES[::2][-1] == INF else (*EDGES[::2], INF), (*EDGES[3:-1], 300.0, INF))
    together = merged(counted(values, own) for values, own in zip(nodes, edges, strict=True))
    assert together is not None and set(together.edges) == set(edges[0]) & set(edges[1]) & set(edges[2])
    for q in (0.5, 0.9, 0.99, 0.999):
        assert contains(together.quantile(q), nearest_rank(sorted(np.concatenate(nodes)), q))


@pytest.mark.parametrize(
    ("values", "q", "value", "low", "high"),
    [
        ([0.3] * 100, 0.5, math.sqrt(0.25 * 0.5) * 2.0 ** (-0.5 / 100), 0.25, 0.5),  # log-linear, rank 50 of 100
        ([0.3], 0.99, math.sqrt(0.25 * 0.5), 0.25, 0.5),  # a lone value: the middle of its bucket
        ([0.0004] * 10, 0.5, 0.001 * 0.45, 0.0, 0.001),  # linear in the first bucket, which begins at 0
        ([0.25] * 10, 0.5, None, 0.1, 0.25),  # an edge belongs to the bucket below it
        ([50.0], 0.5, 40.0, 40.0, None),  # above the last finite edge: at least that
    ],
)
def test_the_point_is_log_linear_inside_its_bucket(values, q, value, low, high):
    quantile = counted(values).quantile(q)
    assert quantile is not None and (quantile.low, quantile.high, quantile.n) == (low, high, len(values))
    assert quantile.at_least is (high is None)
    if value is not None:
        assert quantile.value == pytest.approx(value)


def test_nothing_counted_and_buckets_without_a_finite_edge_have_no_quantile():
    assert counted([]).quantile(0.99) is None
    assert Histogram((INF,), (5.0,)).quantile(0.99) is None


@settings(derandomize=True, max_examples=200)
@given(latencies, edge_sets, st.floats(0.0, 120.0))
def test_the_share_above_a_limit_is_bounded_and_exact_on_an_edge(values, edges, limit):
    bounds = counted(values, edges).share_above(limit)
    assert bounds is not None
    truth = sum(value > limit for value in values) / len(values)
    assert bounds[0] - 1e-9 <= truth <= bounds[1] + 1e-9
    exact = counted(values, edges).share_above(edges[0])
    assert exact is not None and exact[0] == exact[1]


def test_the_share_above_needs_values_and_a_limit_from_zero_on():
    assert counted([]).share_above(1.0) is None
    assert counted([1.0]).share_above(-1.0) is None


def linear(histogram: Histogram, q: float) -> float:
    """Prometheus' histogram_quantile."""
    wanted = q * histogram.counts[-1]
    at = bisect_left(histogram.counts, wanted)
    low, below = (histogram.edges[at - 1], histogram.counts[at - 1]) if at else (0.0, 0.0)
    return low + (histogram.edges[at] - low) * (wanted - below) / (histogram.counts[at] - below)


def test_on_vllms_edges_the_point_reads_high_and_less_so_than_prometheus():
    random = np.random.default_rng(7)
    ours, theirs = [], []
    for p99_s in np.geomspace(0.15, 8.0, 40):
        for _ in range(10):
            values = random.lognormal(math.log(p99_s) - 2.326 * 0.5, 0.5, 300)
            truth = nearest_rank(sorted(values), 0.99)
            histogram = counted(values)
            quantile = histogram.quantile(0.99)
            assert contains(quantile, truth) and quantile is not None
            ours.append(quantile.value / truth - 1.0)
            theirs.append(linear(histogram, 0.99) / truth - 1.0)
    assert 0.10 < np.mean(ours) < 0.22 < np.mean(theirs)
    assert np.max(ours) < 0.9


# -- between scrapes ------------------------------------------------------------------------------------------------


@settings(derandomize=True)
@given(latencies, latencies, edge_sets)
def test_what_was_added_is_exactly_the_later_values(first, later, edges):
    assert increase(seen(first, edges), seen(first + later, edges)) == counted(later, edges)


@pytest.mark.parametrize(
    "after",
    [
        seen([0.2] * 3),  # every count fell or stayed
        seen([9.0] * 3 + [30.0] * 90),  # the total rose, a lower count fell
        seen([0.2] * 50, started_s=2.0),  # no count fell, but the process is another
        seen([0.2] * 50, started_s=2.0, edges=(0.1, 0.5, INF)),  # nor has it the same edges
    ],
    ids=["fell", "lower fell", "start", "edges"],
)
def test_after_a_restart_everything_since_it_counts(after: Snapshot):
    assert increase(seen([0.2] * 10), after) == Histogram(after.edges, after.counts)


def test_an_edge_that_is_not_shown_brings_nothing_back():
    before, after = seen([0.2] * 10), seen([0.2] * 50, edges=(0.1, 0.5, INF))
    assert increase(before, after) == Histogram((0.1, 0.5, INF), (0.0, 40.0, 40.0))
    assert increase(after, seen([0.2] * 60)) == Histogram((0.1, 0.5, INF), (0.0, 10.0, 10.0))


def test_without_a_start_time_only_a_falling_count_tells_of_a_restart():
    before, after = seen([0.2] * 10, started_s=None), seen([0.2] * 12, started_s=None)
    assert increase(before, after).n == 2


def test_a_page_that_was_not_read_in_one_instant_is_made_monotone():
    before = Snapshot((0.1, 0.5, INF), (10.0, 10.0, 10.0))
    after = Snapshot((0.1, 0.5, INF), (14.0, 13.0, 13.0))  # the upper buckets were written first
    assert increase(before, after).counts == (4.0, 4.0, 4.0)


# -- over nodes -----------------------------------------------------------------------------------------------------


histograms = st.builds(counted, latencies, edge_sets)


@settings(derandomize=True, max_examples=100)
@given(histograms, histograms, histograms)
def test_merging_does_not_depend_on_order_or_grouping(a, b, c):
    assert merged([a]) == a
    assert merged([a, b, c]) == merged([c, a, b])
    first, last = merged([a, b]), merged([b, c])
    assert first is not None and last is not None
    assert merged([first, c]) == merged([a, last]) == merged([a, b, c])


@settings(derandomize=True)
@given(latencies, latencies, edge_sets)
def test_merging_counts_both_nodes_values(one, other, edges):
    assert merged([counted(one, edges), counted(other, edges)]) == counted(one + other, edges)


def test_a_node_without_values_changes_nothing_and_no_nodes_are_nothing():
    full = counted([0.1, 3.0])
    assert merged([full, counted([])]) == full
    assert merged([]) is None


# -- the window -----------------------------------------------------------------------------------------------------


def test_the_window_holds_what_the_last_scrapes_added():
    window = HistogramWindow(scrapes=3)
    values: list[float] = []
    assert window.total() is None
    window.add(seen(values))
    assert window.total() is None, "one snapshot says where counting starts"
    for at in range(1, 8):
        values = [*values, *([0.03 * at] * at)]
        window.add(seen(values))
        expected = [0.03 * k for k in range(max(1, at - 2), at + 1) for _ in range(k)]
        assert window.total() == counted(expected)


def test_a_missed_scrape_costs_nothing_if_the_next_one_comes_in_time():
    window = HistogramWindow(scrapes=3)
    for page in (seen([0.1]), None, seen([0.1, 0.2, 0.2])):
        window.add(page)
    total = window.total()
    assert total is not None and total.n == 2


def test_after_a_long_gap_the_time_before_it_does_not_count_and_the_window_runs_empty():
    window = HistogramWindow(scrapes=3)
    window.add(seen([0.1]))
    window.add(seen([0.1] * 5))
    for _ in range(3):
        window.add(None)
    assert window.total() is None
    window.add(seen([0.1] * 500))
    assert window.total() is None, "500 turns of an unknown time"


def test_a_restart_within_the_window_adds_both_parts():
    window = HistogramWindow(scrapes=3)
    for page in (seen([0.1] * 5), seen([0.1] * 9), seen([0.3] * 2, started_s=2.0), seen([0.3] * 3, started_s=2.0)):
        window.add(page)
    assert window.total() == counted([0.1] * 4 + [0.3] * 3)


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edges", "counts"),
    [
        ((), ()),
        ((0.1, 0.5), (1.0, 2.0)),  # no +inf
        ((0.5, 0.1, INF), (1.0, 2.0, 3.0)),
        ((0.1, 0.1, INF), (1.0, 2.0, 3.0)),
        ((0.0, INF), (1.0, 2.0)),
        ((0.1, INF), (1.0,)),
        ((0.1, INF), (1.0, math.nan)),
        ((0.1, INF), (-1.0, 2.0)),
        ((0.1, INF), (1.0, INF)),
        ((math.nan, INF), (1.0, 2.0)),
    ],
)
def test_what_is_no_histogram_is_refused(edges, counts):
    with pytest.raises(ValueError, match=r"edges|counts"):
        Snapshot(edges, counts)


def test_a_snapshot_may_lag_in_its_upper_counts_and_a_histogram_may_not():
    lagging = Snapshot.of({INF: 9.0, 0.5: 10.0, 0.1: 4.0})
    assert lagging.edges == (0.1, 0.5, INF) and lagging.counts == (4.0, 10.0, 9.0)
    with pytest.raises(ValueError, match="fall"):
        Histogram(lagging.edges, lagging.counts)


def test_a_window_spans_at_least_one_interval():
    with pytest.raises(ValueError, match="0 scrapes"):
        HistogramWindow(0)


def test_a_sum_of_quantiles_adds_its_bounds_and_stays_open_above_if_either_is():
    one, two = BucketQuantile(0.3, 0.25, 0.5, 100), BucketQuantile(2.0, 1.0, 2.5, 40)
    assert one + two == BucketQuantile(2.3, 1.25, 3.0, 40)
    assert (one + BucketQuantile(40.0, 40.0, None, 50)).at_least


# -- the distribution behind the values -----------------------------------------------------------------------------


def test_few_values_have_no_upper_bound_and_a_p99_above_the_last_edge_has_none():
    few, certain = counted([0.3] * 298), counted([0.3] * 298).quantile(0.99)
    assert certain is not None
    assert few.estimate(0.99, 4.0) == Estimate(certain.value, 0.25, None, 298, 4.0)
    assert counted([0.3] * 299).estimate(0.99, 0.0).high == 0.5
    above = counted([0.3] * 900 + [90.0] * 100).estimate(0.99, 0.0)
    assert (above.value, above.low, above.high) == (40.0, 40.0, None)
    assert counted([]).estimate(0.99, 0.0) == Estimate(None, None, None, 0, 0.0)


@settings(derandomize=True)
@given(latencies, edge_sets, quantiles)
def test_the_distributions_bounds_hold_those_of_the_values(values, edges, q):
    histogram = counted(values, edges)
    estimate, certain = histogram.estimate(q, 0.0), histogram.quantile(q)
    if certain is not None:
        assert estimate.low is None or estimate.low <= certain.low
        assert estimate.high is None or (certain.high is not None and estimate.high >= certain.high)
