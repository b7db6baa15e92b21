"""The laws that every estimator obeys, whatever it measures. To add one is a line in registry.py, or a reason there."""

import importlib
import json
import math
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import estimators
from estimators.clusters import Clusters
from estimators.drift import DriftAlarm
from estimators.exceedance import Exceedance
from estimators.histogram import Histogram
from estimators.protocol import Estimate
from estimators.quantile import WindowedQuantile
from tests.estimators.registry import ESTIMATORS, EXEMPT, KEPT, MERGEABLE, VLLM_EDGES

samples = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 900.0)), max_size=40)


def every(law: str):
    """All that the law applies to."""
    return pytest.mark.parametrize("name", [name for name in ESTIMATORS if (name, law) not in EXEMPT])


def fed(name: str, rows):
    estimator = ESTIMATORS[name]()
    for value, now_s in rows:
        estimator.update(value, now_s)
    return estimator


def numbers(estimate: Estimate) -> list[float | None]:
    return [estimate.value, estimate.low, estimate.high, estimate.n]


def same(one: Estimate, other: Estimate) -> bool:
    pairs = zip(numbers(one), numbers(other), strict=True)
    return all(
        a is b is None or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9))
        for a, b in pairs
    )


def stream(n: int, step_s: float = 1.0) -> list[tuple[float, float]]:
    """Values from 0 to 100 that do not repeat soon, at rising times."""
    return [((at * 37.7) % 100.0, at * step_s) for at in range(1, n + 1)]


def test_every_class_that_takes_samples_and_estimates_is_in_the_registry():
    known = {type(made) if not hasattr(made, "of") else made.of for made in (make() for make in ESTIMATORS.values())}
    found = {
        each
        for module in pkgutil.iter_modules(estimators.__path__)
        for each in vars(importlib.import_module(f"estimators.{module.name}")).values()
        if isinstance(each, type) and {"update", "estimate"} <= vars(each).keys() and not hasattr(each, "_is_protocol")
    }
    assert found and found <= known | {base for each in known for base in each.__bases__}
    assert found >= {*KEPT, *MERGEABLE}
    laws = {"merge", "pooled", "memory", "snapshot", "coverage", "nan", "time"}
    assert all(name in ESTIMATORS and law in laws and reason for (name, law), reason in EXEMPT.items())


# -- asking ---------------------------------------------------------------------------------------------------------


@every("all")
def test_without_samples_there_is_no_evidence_and_no_bound(name):
    nothing = ESTIMATORS[name]().estimate(5.0)
    assert nothing.n == 0
    assert not nothing.value
    assert nothing.low is None
    assert nothing.high is None
    assert nothing.asof_s == 5.0


@every("all")
@settings(derandomize=True, max_examples=40)
@given(rows=samples)
def test_asking_changes_nothing(name, rows):
    asked, silent = ESTIMATORS[name](), ESTIMATORS[name]()
    for value, now_s in rows:
        asked.update(value, now_s)
        silent.update(value, now_s)
        assert asked.estimate(now_s) == asked.estimate(now_s)
    assert asked.estimate(2000.0) == silent.estimate(2000.0)


@every("all")
@settings(derandomize=True, max_examples=40)
@given(rows=samples)
def test_whatever_the_order_of_times_the_value_lies_between_its_bounds(name, rows):
    estimator = ESTIMATORS[name]()
    for value, now_s in rows:
        estimator.update(value, now_s)
        estimate = estimator.estimate(now_s)
        assert estimate.n >= 0
        if estimate.value is not None:
            assert math.isfinite(estimate.value)
            assert estimate.low is None or estimate.low <= estimate.value
            assert estimate.high is None or estimate.high >= estimate.value


@every("all")
def test_two_estimators_share_no_state(name):
    first, second = fed(name, stream(50)), ESTIMATORS[name]()
    assert first.estimate(50.0).n > 0
    assert second.estimate(50.0).n == 0


# -- what is no sample, and no time -----------------------------------------------------------------------------------


@every("nan")
def test_a_sample_that_is_not_a_number_is_refused_and_leaves_no_trace(name):
    estimator = ESTIMATORS[name]()
    with pytest.raises(ValueError, match="nan"):
        estimator.update(math.nan, 1.0)
    assert estimator.estimate(1.0) == ESTIMATORS[name]().estimate(1.0)


@every("nan")
@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e308])
def test_an_endless_sample_is_refused_without_a_trace_or_taken_and_never_makes_the_value_undefined(name, value):
    estimator = fed(name, stream(20))
    before = estimator.estimate(20.0)
    try:
        estimator.update(value, 20.0)
    except ValueError:
        assert estimator.estimate(20.0) == before
    after = fed_on(estimator, stream(40)[20:]).estimate(40.0)
    assert not any(number is not None and math.isnan(number) for number in numbers(after))
    assert after.n > 0


def fed_on(estimator, rows):
    for value, now_s in rows:
        estimator.update(value, now_s)
    return estimator


@every("time")
@pytest.mark.parametrize("now_s", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_is_refused_or_harmless(name, now_s):
    estimator, other = fed(name, stream(20)), fed(name, stream(20))
    estimator.estimate(now_s)
    try:
        estimator.update(7.0, now_s)
    except ValueError:
        assert same(estimator.estimate(20.0), other.estimate(20.0))
    else:
        other.update(7.0, 20.0)
    if hasattr(estimator, "roll"):
        with pytest.raises(ValueError, match="not a time"):
            estimator.roll(now_s)
        for each in (estimator, other):
            each.roll(30.0)
            each.roll(40.0)
    assert same(estimator.estimate(40.0), other.estimate(40.0))


@every("all")
def test_time_that_runs_backwards_loses_no_evidence_and_no_bound(name):
    estimator = fed(name, stream(60))
    before = estimator.estimate(60.0)
    estimator.update(7.0, 3.0)
    if hasattr(estimator, "roll"):
        estimator.roll(60.0)
        estimator.roll(3.0)
    for at_s in (3.0, 60.0):
        after = estimator.estimate(at_s)
        assert after.n >= before.n - 1e-9
        assert (after.value is None) is (before.value is None)
    # The clock goes on from where it was: a later sample counts as one of now.
    estimator.update(7.0, 61.0)
    assert estimator.estimate(61.0).value is not None


# -- merging --------------------------------------------------------------------------------------------------------


@every("merge")
@settings(derandomize=True, max_examples=30)
@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 2)), max_size=40))
def test_merging_knows_no_order_and_no_grouping_and_an_empty_part_is_neutral(name, dealt):
    rows = [(value, float(at), part) for at, (value, part) in enumerate(dealt)]
    a, b, c = (fed(name, [(value, now_s) for value, now_s, part in rows if part == at]) for at in range(3))
    untouched = a.estimate(50.0)
    assert same(a.merged(b).estimate(50.0), b.merged(a).estimate(50.0))
    assert same(a.merged(ESTIMATORS[name]()).estimate(50.0), untouched)
    assert same(ESTIMATORS[name]().merged(a).estimate(50.0), untouched)
    if (name, "pooled") not in EXEMPT:
        pooled = fed(name, [(value, now_s) for value, now_s, _ in rows]).estimate(50.0)
        assert same(a.merged(b).merged(c).estimate(50.0), pooled)
        assert same(a.merged(b.merged(c)).estimate(50.0), pooled)
    assert a.estimate(50.0) == untouched


def test_windows_are_merged_tick_by_tick_from_the_newest():
    whole, old, young = (ESTIMATORS["quantile"]() for _ in range(3))
    for at, (value, now_s) in enumerate(stream(80)):
        whole.update(value, now_s)
        (young if now_s > 40.0 and at % 2 else old).update(value, now_s)
        if at % 20 == 19:
            for each in (whole, old, *((young,) if now_s > 40.0 else ())):
                each.roll(now_s)
    assert same(old.merged(young).estimate(80.0), whole.estimate(80.0))
    for each in (whole, merged := young.merged(old)):
        each.roll(100.0)
        each.roll(120.0)
    assert 0.0 < merged.estimate(120.0).n < old.merged(young).estimate(80.0).n
    assert same(merged.estimate(120.0), whole.estimate(120.0))


def test_different_quantities_are_not_merged():
    with pytest.raises(ValueError, match="not of one quantity"):
        WindowedQuantile(0.99).merged(WindowedQuantile(0.9))


# -- memory and restarts --------------------------------------------------------------------------------------------


@every("memory")
def test_memory_is_bounded_whatever_is_fed(name):
    estimator, sizes = ESTIMATORS[name](), []
    for at in range(1, 6001):
        # Each of a new model, application or conversation, where there are any; and now and then a tick.
        estimator.update((at * 37.7) % 100.0, 1000.0 + at)
        if at % 400 == 0 and hasattr(estimator, "roll"):
            estimator.roll(1000.0 + at)
        if at in (2000, 6000):
            sizes.append(len(pickle.dumps(estimator)))
    assert sizes[1] < 1.2 * sizes[0] + 200
    assert sizes[1] < 100_000


@every("snapshot")
@settings(derandomize=True, max_examples=30)
@given(rows=samples, later=samples)
def test_after_a_restart_it_goes_on_as_if_there_had_been_none(name, rows, later):
    estimator = fed(name, rows)
    if hasattr(estimator, "roll"):
        estimator.roll(5.0)
        fed_on(estimator, rows[:3])
    restored = type(estimator).restore(json.loads(json.dumps(estimator.snapshot(), allow_nan=False)))
    assert restored.estimate(1000.0) == estimator.estimate(1000.0)
    fed_on(restored, later)
    fed_on(estimator, later)
    if hasattr(estimator, "roll"):
        restored.roll(1000.0)
        estimator.roll(1000.0)
    assert restored.estimate(1000.0) == estimator.estimate(1000.0)
    assert restored.snapshot() == estimator.snapshot()


@every("snapshot")
def test_a_damaged_state_is_refused(name):
    estimator = fed(name, stream(30))
    state = estimator.snapshot()
    for key in state:
        for damaged in ({k: v for k, v in state.items() if k != key}, {**state, key: "?"}, {**state, key: [[None]]}):
            with pytest.raises(ValueError, match="no state of"):
                type(estimator).restore(damaged)


# -- coverage: each bound holds 95 % of the time, at worst two points less --------------------------------------------

Rows = Iterator[tuple[float, Estimate]]
RUNS, MANY = 400, 2000


def quantile_of_few(dice: np.random.Generator) -> Rows:
    for values in dice.lognormal(0.0, 0.5, (RUNS, 600)).tolist():
        window = WindowedQuantile(0.99)
        for value in values:
            window.update(value, 0.0)
        yield math.exp(0.5 * 2.3263479), window.estimate(0.0)


def quantile_with_turns_that_wait(dice: np.random.Generator) -> Rows:
    for values, ages in zip(dice.lognormal(0.0, 0.5, (RUNS, 400)), dice.exponential(30.0, (RUNS, 400)), strict=True):
        window = WindowedQuantile(0.9)
        for value in values[values <= ages].tolist():
            window.update(value, 0.0)
        yield math.exp(0.5 * 1.2815516), window.estimate(0.0, ages[values > ages].tolist())


def exceedance_of_single_turns(dice: np.random.Generator) -> Rows:
    for bad in dice.binomial(300, 0.02, MANY).tolist():
        yield 0.02, Exceedance(bad, 300).estimate(0.0)


def exceedance_of_conversations(dice: np.random.Generator, p: float, icc: float, conversations: int) -> Rows:
    spread = 1.0 / icc - 1.0
    turns = 1 + dice.geometric(1 / 8, (MANY, conversations))
    misses = dice.binomial(turns, dice.beta(p * spread, (1 - p) * spread, (MANY, conversations)))
    columns = (turns > 0, misses > 0, turns, misses, turns * turns, misses * turns, misses * misses)
    for sums in np.stack([column.sum(axis=1) for column in columns], axis=1).astype(float).tolist():
        known = Clusters(*sums)
        yield p, Exceedance(known.bad, known.valid, known.design_effect).estimate(0.0)


def histogram_on_vllms_edges(dice: np.random.Generator) -> Rows:
    edges = (*VLLM_EDGES, math.inf)
    for values in np.sort(dice.lognormal(math.log(0.4), 0.6, (RUNS, 400)), axis=1):
        counts = np.searchsorted(values, edges, side="right").astype(float)
        yield 0.4 * math.exp(0.6 * 1.2815516), Histogram(edges, tuple(counts.tolist())).estimate(0.9, 0.0)


def drift_of_the_table(dice: np.random.Generator) -> Rows:
    for values in dice.normal(0.1, 0.3, (RUNS, 300)).tolist():
        alarm = DriftAlarm()
        for value in values:
            alarm.update(value, 0.0)
        yield 0.1, alarm.estimate(0.0)


COVERAGE: dict[str, Callable[[np.random.Generator], Rows]] = {
    "quantile": quantile_of_few,
    "quantile, waiting": quantile_with_turns_that_wait,
    "exceedance": exceedance_of_single_turns,
    **{
        f"exceedance of {m} conversations, {p:.0%}, correlation {icc}": partial(
            exceedance_of_conversations, p=p, icc=icc, conversations=m
        )
        for p in (0.01, 0.05, 0.2)
        for icc in (0.1, 0.3)
        for m in (30, 100, 300)
    },
    "histogram": histogram_on_vllms_edges,
    "drift": drift_of_the_table,
}


def test_every_estimator_with_bounds_has_its_coverage_checked():
    assert {name for name in ESTIMATORS if (name, "coverage") not in EXEMPT} <= {*COVERAGE, "thinned quantile"}


@pytest.mark.parametrize("name", COVERAGE)
def test_each_bound_holds_as_often_as_it_says(name):
    held_low = held_high = resolved = runs = 0
    for truth, estimate in COVERAGE[name](np.random.default_rng(11)):
        runs += 1
        held_low += estimate.low is None or estimate.low <= truth
        held_high += estimate.high is None or estimate.high >= truth
        resolved += estimate.low is not None and estimate.high is not None
    assert resolved > 0.9 * runs  # or the others say nothing

    assert held_low / runs >= 0.93
    assert held_high / runs >= 0.93
