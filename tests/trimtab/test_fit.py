"""The fit finds the constants that made the rows, also under noise, and refuses too few rows."""

from dataclasses import fields, replace
from math import exp, log

import numpy as np
import pytest

from router.latency import LatencyModel
from trimtab.fit import MIN_ROWS, FitError, fit
from trimtab.rows import StepRow, TtftRow

BIG = LatencyModel(21.0, 0.012, 17.0, 6.0, 0.072, 1.9e-6, 0.065, 2.9e-5, 17.0, 2.1e-3)
SMALL = LatencyModel(15.0, 0.010, 7.5, 3.0, 0.020, 1.4e-6, 0.080, 4.5e-5, 12.0, 3.0e-3)


def ttft_rows(model: LatencyModel, count: int = 240, noise: float = 0.0, seed: int = 0) -> list[TtftRow]:
    rng = np.random.default_rng(seed)
    rows = []
    for at in range(count):
        prompt = round(exp(rng.uniform(log(64), log(30_000))))
        d, p = (min(prompt, round(exp(rng.uniform(0, log(8000))))) for _ in range(2))
        batch, local = int(rng.integers(0, 40)), at % 2 == 0
        ttft_ms = model.local_ms(d, prompt, batch) if local else model.remote_ms(p, d, prompt, batch)
        rows.append(TtftRow(local, d, p, prompt, batch, ttft_ms * exp(noise * rng.standard_normal())))
    return rows


def step_rows(model: LatencyModel, count: int = 60, noise: float = 0.0, seed: int = 1) -> list[StepRow]:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        batch = rng.uniform(1, 60)
        context, hz = batch * rng.uniform(300, 5000), rng.uniform(0, 4)
        d, prompt = rng.uniform(16, 1024), rng.uniform(1100, 6000)
        tpot_ms = model.tpot_ms(batch, context, hz, d, prompt) * exp(noise * rng.standard_normal())
        rows.append(StepRow(batch, context, hz, d, prompt, tpot_ms))
    return rows


@pytest.mark.parametrize("model", [BIG, SMALL], ids=["large model", "small model"])
def test_the_constants_behind_exact_rows_are_recovered(model):
    found = fit(ttft_rows(model), step_rows(model))
    for constant in fields(LatencyModel):
        assert getattr(found.model, constant.name) == pytest.approx(getattr(model, constant.name), rel=0.02)
    assert max(found.errors[name] for name in ("ttft_local", "ttft_transferred", "tpot")) < 1e-3


@pytest.mark.parametrize("model", [BIG, SMALL], ids=["large model", "small model"])
def test_under_noise_the_predictions_stay_within_a_few_percent(model):
    found = fit(ttft_rows(model, noise=0.03), step_rows(model, noise=0.03)).model
    for row in ttft_rows(model, seed=7):
        args = row.uncached_d, row.prompt, row.batch
        assert found.local_ms(*args) == pytest.approx(model.local_ms(*args), rel=0.06)
        remote = row.uncached_p, *args
        assert found.remote_ms(*remote) == pytest.approx(model.remote_ms(*remote), rel=0.06)


def test_a_few_wild_rows_do_not_move_the_fit():
    rows = ttft_rows(BIG)
    wild = [replace(row, ttft_ms=row.ttft_ms * 20) if at % 40 == 1 else row for at, row in enumerate(rows)]
    found = fit(wild, step_rows(BIG)).model
    assert found.token_ms == pytest.approx(BIG.token_ms, rel=0.05)
    assert found.front_ms == pytest.approx(BIG.front_ms, rel=0.05)


def test_the_reported_error_is_that_of_rows_the_fit_has_not_seen():
    rows = ttft_rows(BIG)
    spoilt = [replace(row, ttft_ms=row.ttft_ms * 1.5) if at % 3 == 0 else row for at, row in enumerate(rows)]
    found = fit(spoilt, step_rows(BIG))
    assert found.model.token_ms == pytest.approx(BIG.token_ms, rel=1e-3)
    assert found.errors["ttft_local"] == pytest.approx(1 / 3, abs=0.001)
    assert found.errors["tpot"] < 0.001


def test_the_number_of_rows_is_reported():
    errors = fit(ttft_rows(BIG), step_rows(BIG)).errors
    assert (errors["ttft_rows"], errors["step_rows"]) == (240.0, 60.0)


def test_the_same_rows_give_the_same_constants():
    rows = ttft_rows(BIG, noise=0.03), step_rows(BIG, noise=0.03)
    assert fit(*rows) == fit(*rows)


@pytest.mark.parametrize(("local", "name"), [(True, "local"), (False, "transferred")])
def test_too_few_turns_of_a_route_are_refused(local, name):
    rows = ttft_rows(BIG)
    kept = [row for row in rows if row.local is not local] + [row for row in rows if row.local is local][: MIN_ROWS - 1]
    with pytest.raises(FitError, match=rf"29 {name} turns without a backlog; 30 are needed: measure at lower QPS"):
        fit(kept, step_rows(BIG))


def test_too_few_steady_runs_are_refused():
    with pytest.raises(FitError, match="4 runs with a steady batch; 5 are needed: measure at higher QPS"):
        fit(ttft_rows(BIG), step_rows(BIG, count=4))


def test_no_rows_at_all_are_refused():
    with pytest.raises(FitError, match="0 local turns"):
        fit([], [])
