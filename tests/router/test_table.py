"""The load-aware table: what its cells hold, what lies between and beyond them, and what the weights make of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision import decide
from router.policy import Policy, Weights
from router.table import DEFAULT_AXES, Axes, LoadAwareTable, continuous_score
from router.turn import Reason, Route
from tests.router.samples import AXES, LATENCY, TABLE, features, policy
from trimtab.shipped import as_tables, shipped

LARGE = LoadAwareTable.filled(LATENCY)
SHIPPED = {f"{artefact.origin.model} {artefact.origin.topology}": artefact for artefact in shipped()}
every_artefact = pytest.mark.parametrize("artefact", SHIPPED.values(), ids=SHIPPED.keys())


def at(uncached_d: float, uncached_p: float, prompt: float, batch: float):
    """A turn without backlogs at that point of the table."""
    return features(
        uncached_d=uncached_d,
        uncached_p=uncached_p,
        n_ctx=prompt - 1,
        n_in=1,
        d_batch=batch,
        d_kv_capacity_tokens=10**9,
    )


def points(axes: Axes):
    return product(axes.uncached_d, axes.uncached_p, axes.prompt, axes.batch)


@pytest.mark.parametrize(("table", "axes"), [(TABLE, AXES), (LARGE, DEFAULT_AXES)])
def test_at_every_centre_the_table_is_the_model_to_a_hundredth(table: LoadAwareTable, axes: Axes):
    for d, p, prompt, batch in points(axes):
        saved_ms, cost, _ = table.score(at(d, p, prompt, batch))
        assert saved_ms == pytest.approx(LATENCY.saved_ms(d, p, prompt, batch), abs=0.00501)
        assert cost == pytest.approx(LATENCY.cost(d, prompt, batch), abs=0.00501)


@every_artefact
def test_every_shipped_cell_is_found_at_its_own_centre(artefact):
    table, axes = artefact.table, artefact.table.axes
    for index, (d, p, prompt, batch) in enumerate(points(axes)):
        assert table.score(at(d, p, prompt, batch)).saved_ms == pytest.approx(table.saved_ms[index], rel=1e-9, abs=1e-9)
    for index, (d, prompt, batch) in enumerate(product(axes.uncached_d, axes.prompt, axes.batch)):
        assert table.score(at(d, 1, prompt, batch)).cost == pytest.approx(table.cost[index], rel=1e-9, abs=1e-9)


def test_halfway_between_centres_is_halfway_between_their_values():
    for low, high in (((100, 100, 500, 8), (1000, 100, 500, 8)), ((100, 100, 500, 8), (100, 1000, 500, 8))):
        a, b = TABLE.score(at(*low)), TABLE.score(at(*high))
        middle = TABLE.score(at(*((x + y) / 2 for x, y in zip(low, high, strict=True))))
        assert middle.saved_ms == pytest.approx((a.saved_ms + b.saved_ms) / 2)
        assert middle.cost == pytest.approx((a.cost + b.cost) / 2)


def test_above_the_last_centre_the_last_line_goes_on():
    beyond = {"uncached_d": 19_000, "uncached_p": 19_000, "prompt": 95_000, "batch": 120}
    last = {"uncached_d": 10_000, "uncached_p": 10_000, "prompt": 50_000, "batch": 64}
    before = {"uncached_d": 1000, "uncached_p": 1000, "prompt": 5000, "batch": 8}
    for axis in beyond:
        a, b, c = (TABLE.score(at(**{**last, axis: where[axis]})) for where in (before, last, beyond))
        assert c.saved_ms - b.saved_ms == pytest.approx(b.saved_ms - a.saved_ms, rel=1e-6)
        assert c.cost - b.cost == pytest.approx(b.cost - a.cost, rel=1e-6)


def test_below_the_first_centre_the_first_value_holds():
    first = TABLE.score(at(1, 1, 500, 0))
    below = TABLE.score(at(0, 0, 1, 0))
    assert (below.saved_ms, below.cost) == (first.saved_ms, first.cost)


def test_a_cost_that_falls_beyond_the_last_centre_stops_at_zero():
    falling = replace(TABLE, cost=tuple(range(len(TABLE.cost), 0, -1)))
    assert falling.score(at(10**9, 1, 500, 0)).cost == 0.0


@pytest.mark.parametrize(
    ("changes", "added"),
    [({"p_backlog_ms": 70.0}, 70.0), ({"link_backlog_ms": 9.0}, 9.0), ({"d_backlog_ms": 55.0}, -55.0)],
)
def test_backlogs_add_exactly_and_leave_the_cost_alone(changes, added):
    idle, busy = TABLE.score(features()), TABLE.score(features(**changes))
    assert busy.saved_ms == pytest.approx(idle.saved_ms + added)
    assert (busy.cost, busy.cell) == (idle.cost, idle.cell)


def test_a_cell_is_named_by_its_nearest_centres():
    assert TABLE.score(at(1, 1, 500, 0)).cell == "d0p0c0b0"
    assert TABLE.score(at(540, 560, 30_000, 36)).cell == "d1p2c2b2"
    assert TABLE.score(at(10**6, 10**6, 10**6, 10**3)).cell == "d3p3c2b2"


rising = st.integers(0, 70_000)


@given(where=st.tuples(rising, rising, st.integers(1, 140_000), st.integers(0, 200)))
def test_within_the_centres_a_value_lies_between_those_of_the_cells_corners(where):
    sides = (DEFAULT_AXES.uncached_d, DEFAULT_AXES.uncached_p, DEFAULT_AXES.prompt, DEFAULT_AXES.batch)
    inside = [min(max(value, centres[0]), centres[-1]) for value, centres in zip(where, sides, strict=True)]
    found = LARGE.score(at(*inside))
    corners = [LARGE.score(at(*corner)) for corner in product(*map(neighbours, sides, inside))]
    assert min(c.saved_ms for c in corners) - 1e-6 <= found.saved_ms <= max(c.saved_ms for c in corners) + 1e-6
    assert min(c.cost for c in corners) - 1e-6 <= found.cost <= max(c.cost for c in corners) + 1e-6


def neighbours(centres: tuple[float, ...], value: float) -> set[float]:
    return {max(c for c in centres if c <= value), min(c for c in centres if c >= value)}


def test_the_continuous_score_is_the_model_itself_with_the_backlogs_added():
    turn = features(p_backlog_ms=40.0, d_backlog_ms=15.0)
    saved_ms, cost, cell = continuous_score(LATENCY)(turn)
    assert saved_ms == pytest.approx(LATENCY.saved_ms(100, 1000, 4100, 8) + 25.0)
    assert (cost, cell) == (LATENCY.cost(100, 4100, 8), "model")


@pytest.mark.parametrize("axis", ["uncached_d", "uncached_p", "prompt", "batch"])
@pytest.mark.parametrize(
    "centres", [(), (1,), (1, 1), (2, 1), (1, nan), (nan, 1), (1, inf), (-1, 1), (1, 2, 2, 3), (1, 2, inf)]
)
def test_an_axis_that_does_not_rise_is_refused_by_name(axis: str, centres: tuple[float, ...]):
    with pytest.raises(ValueError, match=f"axis {axis} needs"):
        replace(AXES, **{axis: centres})


@pytest.mark.parametrize("name", ["saved_ms", "cost"])
def test_cells_that_are_too_few_too_many_or_no_numbers_are_refused_by_name(name: str):
    values = getattr(TABLE, name)
    bad: Any
    for bad in (values[:-1], (*values, 1.0), ()):
        with pytest.raises(ValueError, match=f"{name} has {len(bad)} cells"):
            replace(TABLE, **{name: bad})
    for value in (nan, inf, -inf, 1e300):
        bad = (value, *values[1:])
        with pytest.raises(ValueError, match=f"{name} holds values"):
            replace(TABLE, **{name: bad})


def test_an_append_that_costs_less_than_nothing_is_refused():
    with pytest.raises(ValueError, match="cost must not be negative"):
        replace(TABLE, cost=(-0.01, *TABLE.cost[1:]))


def test_two_centres_and_an_append_that_costs_nothing_are_enough_for_a_table():
    least = LoadAwareTable(Axes((0, 9), (0, 9), (0, 9), (0, 9)), LATENCY, (1.0,) * 16, (0.0,) * 8)
    assert least.score(at(5, 5, 5, 5)).cost == 0.0


@every_artefact
def test_at_the_ends_of_the_weights_every_shipped_trade_off_cell_goes_one_way(artefact):
    key, found = artefact.key, as_tables([artefact])
    tpot_only, ttft_only = (Policy(1, found, Weights(*pair)) for pair in ((0, 1), (1, 0)))
    axes, table = artefact.table.axes, artefact.table
    cost_of = dict(zip(product(axes.uncached_d, axes.prompt, axes.batch), table.cost, strict=True))
    trade_offs = 0
    for (d, p, prompt, batch), saved_ms in zip(points(axes), table.saved_ms, strict=True):
        if saved_ms <= 0 or cost_of[d, prompt, batch] <= 0:
            continue
        trade_offs += 1
        turn = replace(at(d, p, prompt, batch), model=key.model, topology=key.topology)
        for weights, route in ((tpot_only, Route.PREFILL_TRANSFER), (ttft_only, Route.APPEND_LOCAL)):
            decision = decide(weights, turn, 0.5)
            assert (decision.route, decision.reason) == (route, Reason.SCORE), (d, p, prompt, batch)
    assert trade_offs > 1000


@given(
    where=st.tuples(rising, rising, st.integers(1, 140_000), st.integers(0, 200)),
    backlog_ms=st.floats(0, 1e4),
    prices=st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 1e3)),
)
def test_what_is_local_at_a_price_is_local_at_every_lower_one(where, backlog_ms, prices):
    turn = replace(at(*where), p_backlog_ms=backlog_ms)
    low, high = (decide(policy(price), turn, 0.5).route for price in sorted(prices))
    assert low is Route.APPEND_LOCAL or high is Route.PREFILL_TRANSFER
