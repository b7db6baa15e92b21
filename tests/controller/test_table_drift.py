"""Residuals of the table: which turns tell, when an alarm is raised, how long a drift stands, and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from controller.intake import MAX_MODELS
from controller.prediction import nodes_ms, ttft_ms
from controller.table_drift import ALIKE, LEARN, LEAST_TURNS, Drifted, TableDrift
from controller.table_words import drift_words, fit_document, raised_words
from estimators.drift import Drift
from router.policy import ANY_MODEL, Policy, TableKey, Weights
from router.record import TurnRecord
from router.turn import NodeId, Route
from tests.controller.records import FEATURES, MODEL, failed, record
from tests.router.samples import LATENCY, tables

POLICY = Policy(1, {TableKey(MODEL, "2P_2D"): tables()}, Weights.from_price(0.4))


def turn(residual: float, *, local: bool = True, **features: object) -> TurnRecord:
    """A turn that took exp(residual) times what the table predicts."""
    known = replace(FEATURES, **features)  # type: ignore[arg-type]
    made = record(ttft_s=ttft_ms(LATENCY, known, local) / 1e3 * exp(residual), local=local, model=known.model)
    return replace(made, features=known)


def run(
    drift: TableDrift,
    residuals: Iterable[float],
    *,
    local: bool = True,
    policy: Policy = POLICY,
    start: int = 0,
    turns: int = LEAST_TURNS,
) -> list[Drifted]:
    """A tick for each residual; the alarms."""
    raised: list[Drifted] = []
    for at, residual in enumerate(residuals, start):
        drift.take([turn(residual, local=local)] * turns, policy)
        raised += drift.tick(5.0 * at)
    return raised


def steady(ticks: int, mean: float = 0.0, seed: int = 1) -> list[float]:
    return np.random.default_rng(seed).normal(mean, 0.05, ticks).tolist()


def levels(drift: TableDrift) -> dict[Route, float | None]:
    return {fit.route: fit.level for fit in drift.fits()}


@pytest.mark.parametrize("local", [True, False])
def test_latencies_that_leave_the_table_raise_one_alarm_about_their_route(local):
    drift = TableDrift()
    assert run(drift, steady(200, 0.3), local=local) == []
    (raised,) = run(drift, steady(100, 0.3 + log(1.5)), local=local, start=200)
    assert raised.route is (Route.APPEND_LOCAL if local else Route.PREFILL_TRANSFER)
    assert (raised.model, raised.drift) == (MODEL, Drift.SLOWER) and raised.before == pytest.approx(0.3, abs=0.02)
    assert 1000.0 <= raised.at_s <= 1000.0 + 60.0, "half as slow again is seen within a minute"
    assert drift.drifted() == (raised,)


def test_a_table_that_is_off_by_a_constant_is_shown_and_no_drift():
    drift = TableDrift()
    assert run(drift, steady(600, log(3.0))) == []
    local, transferred = drift.fits()
    assert local.level == pytest.approx(log(3.0), abs=0.05) and local.reference == pytest.approx(log(3.0), abs=0.02)
    assert local.drifted is None and transferred.level is None


def test_a_few_percent_are_no_drift_however_long():
    drift = TableDrift()
    assert run(drift, steady(LEARN)) == []
    assert run(drift, steady(2000, 0.7 * ALIKE), start=LEARN) == []


def test_a_backlog_is_part_of_the_prediction_and_turns_behind_a_long_one_tell_of_queues():
    drift, own_ms = TableDrift(), nodes_ms(LATENCY, FEATURES, False)
    run(drift, [0.0] * LEARN, local=False)
    for at in range(200):
        short = turn(0.0, local=False, p_backlog_ms=0.3 * own_ms, link_backlog_ms=0.1 * own_ms)
        long = turn(1.0, local=False, p_backlog_ms=0.6 * own_ms)
        drift.take([short, long] * LEAST_TURNS, POLICY)
        assert drift.tick(1000.0 + at) == ()
    assert levels(drift)[Route.PREFILL_TRANSFER] == pytest.approx(0.0)


def test_turns_of_several_ticks_make_one_mean_where_a_tick_has_too_few():
    drift = TableDrift()
    run(drift, [0.5] * (LEAST_TURNS - 1), turns=1)
    assert levels(drift)[Route.APPEND_LOCAL] is None
    run(drift, [0.5], turns=1)
    assert levels(drift)[Route.APPEND_LOCAL] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "other",
    [
        record(1, ttft_s=9.0),
        failed(),
        record(ttft_s=9.0, streaming=False),
        replace(record(ttft_s=9.0), attempts=2),
        replace(record(ttft_s=9.0), features=replace(FEATURES, replica=True)),
        replace(record(ttft_s=9.0), features=replace(FEATURES, decode=NodeId("D1"))),
        replace(record(ttft_s=9.0, model="other"), features=replace(FEATURES, model="other")),
        record(ttft_s=0.0),
    ],
    ids=["first", "failed", "whole answer", "planned twice", "replica", "decoded elsewhere", "no table", "no time"],
)
def test_turns_of_which_the_table_says_nothing_tell_nothing_of_it(other):
    drift = TableDrift()
    drift.take([other] * 100, POLICY)
    drift.tick(5.0)
    assert all(fit.level is None for fit in drift.fits())


def test_a_drift_stands_until_the_latencies_are_back():
    drift = TableDrift()
    run(drift, steady(200))
    run(drift, steady(100, 0.6), start=200)
    (stands,) = drift.drifted()
    assert stands.drift is Drift.SLOWER and stands.before == pytest.approx(0.0, abs=0.02)
    assert drift.drifted() == (stands,), "learnt anew, and still not what it was"
    (back,) = run(drift, steady(40), start=300)
    assert back.drift is Drift.FASTER and back.before == pytest.approx(0.6, abs=0.05)
    (stands,) = drift.drifted()
    assert stands.at_s < back.at_s and stands.before == pytest.approx(0.0, abs=0.02), "until that is sure"
    assert run(drift, steady(LEARN + 40), start=340) == [] and drift.drifted() == ()


def test_new_tables_begin_anew_and_new_prices_do_not():
    drift = TableDrift()
    run(drift, steady(200))
    run(drift, steady(50, 0.8), start=200)
    other_price = replace(POLICY, weights=Weights.from_price(1.0))
    run(drift, [0.8], policy=other_price, start=250)
    assert drift.drifted()
    measured = replace(POLICY, tables={TableKey(MODEL, "2P_2D"): tables(digest="d2")})
    run(drift, [0.0], policy=measured, start=251)
    assert drift.drifted() == () and levels(drift)[Route.APPEND_LOCAL] == pytest.approx(0.0)


def test_the_same_tables_read_again_go_on():
    drift = TableDrift()
    run(drift, [0.4] * LEARN)
    run(drift, [0.4], policy=replace(POLICY, tables=dict(POLICY.tables)), start=LEARN)
    assert drift.fits()[0].reference == pytest.approx(0.4)


def test_a_restart_goes_on_with_what_was_learnt_and_what_stands():
    drift = TableDrift()
    run(drift, steady(200))
    run(drift, steady(30, 0.8), start=200)
    restored = TableDrift.from_json(drift.to_json())
    assert restored.drifted() == drift.drifted() != () and levels(restored) == levels(drift)
    assert restored.snapshot() == drift.snapshot()
    more = steady(200, 0.8, seed=2)
    assert run(restored, more, start=230) == run(drift, more, start=230)
    assert restored.snapshot() == drift.snapshot()


def test_what_is_kept_and_cannot_be_read_is_learnt_anew(caplog):
    drift = TableDrift()
    run(drift, steady(LEARN))
    kept = json.loads(drift.to_json())
    for text in ("", "no JSON", "[1]", '{"m": {}}', json.dumps({MODEL: {**kept[MODEL], "routes": {}}})):
        assert TableDrift.from_json(text).fits() == ()
    assert "learnt anew" in caplog.text


def test_what_was_learnt_by_another_measure_is_learnt_anew():
    drift = TableDrift()
    run(drift, steady(LEARN))
    kept = json.loads(drift.to_json())
    kept[MODEL]["routes"]["append_local"]["alarm"]["learn"] = LEARN + 1
    assert TableDrift.from_json(json.dumps(kept)).fits()[0].reference is None


def test_models_are_bounded_whatever_names_come():
    drift, anybody = TableDrift(), replace(POLICY, tables={TableKey(ANY_MODEL, "2P_2D"): tables()})
    for at in range(MAX_MODELS + 5):
        drift.take([turn(0.0, model=f"m{at}")], anybody)
    assert len({fit.model for fit in drift.fits()}) == MAX_MODELS


def test_alarms_are_counted_by_direction():
    drift = TableDrift()
    for at, level in enumerate((0.0, 0.8, 0.0, 0.8)):
        run(drift, steady(120, level), start=120 * at)
    assert dict(drift.fits()[0].raised) == {Drift.SLOWER: 2, Drift.FASTER: 1}


def test_it_is_said_in_words_and_as_json():
    drift = TableDrift()
    run(drift, [log(1.1)] * 100, local=False)
    (raised,) = run(drift, [log(2.2)] * 60, local=False, start=100)
    told = raised_words(raised)
    assert told.startswith("transferred turns have become slower, they took 1.10 times what the table predicts before")
    assert told.endswith("measure again (trimtab calibrate)")
    fit = drift.fits()[1]
    assert fit.level == pytest.approx(log(2.2), abs=0.01)
    now = f"{exp(fit.level or 0.0):.2f} times"
    assert drift_words(fit).startswith(f"transferred turns take {now} what the table predicts, and took 1.10 times")
    assert fit_document(fit, "then") == {
        "route": "prefill_transfer",
        "residual_log": pytest.approx(log(2.2), abs=0.01),
        "reference_log": None,
        "drifted": {"direction": "slower", "since": "then", "before_log": pytest.approx(log(1.1), abs=1e-4)},
    }
    assert drift_words(drift.fits()[0]) == ""
