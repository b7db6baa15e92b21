"""The latency model against its formula, by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.latency import STALL_FLOOR_MS, LatencyModel
from tests.router.samples import LATENCY

models = st.builds(
    LatencyModel,
    front_ms=st.floats(0, 50),
    tokenise_ms_per_token=st.floats(0, 0.1),
    floor_ms=st.floats(0.1, 50),
    base_ms=st.floats(0, 20),
    token_ms=st.floats(0, 1),
    attention_ms_per_token2=st.floats(0, 1e-4),
    sequence_ms=st.floats(0, 1),
    kv_read_ms_per_token=st.floats(0, 1e-3),
    handoff_ms=st.floats(0, 100),
    transfer_ms_per_token=st.floats(0, 0.1),
)


def test_a_small_step_costs_the_floor_and_a_large_one_its_tokens():
    assert LATENCY.gemm_ms(0) == 5.0
    assert LATENCY.gemm_ms(80) == 5.0
    assert LATENCY.gemm_ms(100) == pytest.approx(6.0)  # 1 + .05 x 100


def test_attention_is_that_of_the_last_tokens_over_all_before_them():
    assert LATENCY.attention_ms(1000, 1000) == pytest.approx(0.5)  # 1e-6 x 1000 x 500
    assert LATENCY.attention_ms(100, 4000) == pytest.approx(0.395)  # 1e-6 x 100 x 3950


def test_a_prompt_on_an_idle_node_by_hand():
    assert LATENCY.prefill_ms(1000, 4000) == pytest.approx(51.0 + 3.5)


def test_a_decode_step_by_hand():
    assert LATENCY.decode_step_ms(8, 32_000) == pytest.approx(5.0 + 0.8 + 0.32)


def test_the_time_on_the_link_is_that_of_the_missing_tokens():
    assert LATENCY.transfer_ms(1500) == pytest.approx(3.0)


def test_a_local_turn_by_hand():
    # front 10 + tokenise 1 + half a step (5.8 + .32)/2 + gemm(108) 6.4 + 9 sequences .9 + KV read .32 + attention .395
    assert LATENCY.local_ms(100, 4000, 8) == pytest.approx(10 + 1 + 3.06 + 6.4 + 0.9 + 0.32 + 0.395)


def test_a_local_turn_on_an_idle_node_waits_for_no_step():
    assert LATENCY.local_ms(100, 4000, 0) == pytest.approx(10 + 1 + 6.0 + 0.1 + 0.395)


def test_a_transferred_turn_by_hand():
    step = 5.0 + 0.9 + 1e-5 * 9 * 4000
    assert LATENCY.remote_ms(1000, 100, 4000, 8) == pytest.approx(10 + 10 + 54.5 + 20 + 0.2 + 1.5 * step)


def test_a_transferred_turn_to_an_idle_node_takes_one_step_there():
    step = 5.0 + 0.1 + 1e-5 * 4000
    assert LATENCY.remote_ms(1000, 100, 4000, 0) == pytest.approx(10 + 10 + 54.5 + 20 + 0.2 + step)


def test_the_saving_is_the_difference_of_the_two():
    saved = LATENCY.remote_ms(1000, 100, 4000, 8) - LATENCY.local_ms(100, 4000, 8)
    assert LATENCY.saved_ms(100, 1000, 4000, 8) == pytest.approx(saved)
    assert LATENCY.saved_ms(4000, 1, 4000, 8) < 0


def test_a_stall_is_what_the_append_adds_to_a_step_and_the_cost_counts_itself():
    stall = (6.4 - 5.0) + 0.1 + 0.395
    assert LATENCY.stall_ms(100, 4000, 8) == pytest.approx(stall)
    assert LATENCY.cost(100, 4000, 8) == pytest.approx(9 * stall)


def test_no_append_is_free():
    free = replace(LATENCY, sequence_ms=0.0, token_ms=0.0, attention_ms_per_token2=0.0)
    assert free.stall_ms(1, 4000, 8) == STALL_FLOOR_MS == 0.3
    assert free.cost(1, 4000, 8) == pytest.approx(2.7)


def test_appends_beside_it_make_a_step_longer_by_the_time_they_take():
    stall_ms, step_ms = LATENCY.stall_ms(1000, 4000, 8), LATENCY.decode_step_ms(8, 32_000)
    assert LATENCY.tpot_ms(8, 32_000, 0.0, 1000, 4000) == pytest.approx(step_ms)
    assert LATENCY.tpot_ms(8, 32_000, 4.0, 1000, 4000) == pytest.approx(step_ms / (1 - 0.004 * stall_ms))


def test_a_node_that_does_nothing_but_append_still_decodes_at_a_twentieth():
    assert LATENCY.tpot_ms(8, 32_000, 1e6, 1000, 4000) == pytest.approx(20 * LATENCY.decode_step_ms(8, 32_000))


@pytest.mark.parametrize("constant", [field.name for field in fields(LatencyModel)])
@pytest.mark.parametrize("value", [-0.001, float("nan"), float("inf"), float("-inf")])
def test_a_constant_that_is_no_time_is_refused_by_name(constant: str, value: float):
    with pytest.raises(ValueError, match=constant):
        replace(LATENCY, **{constant: value})


@given(
    model=models,
    prompt=st.integers(1, 200_000),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    batch=st.integers(0, 256),
)
def test_more_uncached_tokens_never_cost_less(model, prompt, shares, batch):
    little, much = sorted(max(1, round(share * prompt)) for share in shares)
    for time_of in (
        lambda u: model.prefill_ms(u, prompt),
        lambda u: model.local_ms(u, prompt, batch),
        lambda u: model.remote_ms(u, 1, prompt, batch),
        lambda u: model.remote_ms(1, u, prompt, batch),
        lambda u: model.stall_ms(u, prompt, batch),
        lambda u: model.cost(u, prompt, batch),
        lambda u: model.tpot_ms(batch, batch * prompt, 2.0, u, prompt),
    ):
        assert time_of(little) <= time_of(much) * (1 + 1e-12)
        assert time_of(little) >= 0.0


@given(model=models, prompt=st.integers(1, 200_000), batch=st.integers(0, 256), uncached=st.integers(1, 200_000))
def test_a_stall_is_at_least_its_floor_and_every_sequence_pays_it(model, prompt, batch, uncached):
    assert model.stall_ms(uncached, prompt, batch) >= STALL_FLOOR_MS
    assert model.cost(uncached, prompt, batch) == pytest.approx(model.stall_ms(uncached, prompt, batch) * (batch + 1))
