"""Step times and link times by hand, against the published numbers, and profiles that make no sense."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from emulator.profiles import (
    KIB,
    LLAMA_3_1_8B_H100,
    LLAMA_3_1_70B_H100_TP4,
    PROFILES,
    StepTime,
    injected_delay_ms,
    wire_ms,
)

STEP_8B = StepTime(LLAMA_3_1_8B_H100)
STEP_70B = StepTime(LLAMA_3_1_70B_H100_TP4)

# -- the link: the paper's Equation 2 (B.6) --------------------------------------------------------------------


@pytest.mark.parametrize(("gb_s", "published_ms"), [(150, 4.5), (25, 27), (10, 67)])
def test_the_bytes_of_the_p90_context_take_the_published_times(gb_s, published_ms):
    assert wire_ms(5115, 128 * KIB, gb_s) == pytest.approx(published_ms, rel=0.01)


def test_the_p90_context_is_670_megabytes():
    assert wire_ms(5115, 128 * KIB, 1) * 1e6 == pytest.approx(670e6, rel=0.001)


@pytest.mark.parametrize("gb_s", [50, 25, 10])
def test_the_injected_delay_is_what_the_slower_link_adds(gb_s):
    bytes_ = 5115 * 131072
    want_ms = (bytes_ / (gb_s * 1e9) - bytes_ / 150e9) * 1e3
    assert injected_delay_ms(5115, 128 * KIB, gb_s) == pytest.approx(want_ms)


def test_a_link_as_fast_as_nvlink_or_faster_adds_nothing():
    assert injected_delay_ms(5115, 128 * KIB, 150) == 0
    assert injected_delay_ms(5115, 128 * KIB, 400) == 0
    assert injected_delay_ms(0, 128 * KIB, 10) == 0


# -- the step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "ms"),
    [(1, 6.4), (128, 7.2), (256, 10.2), (512, 13.2), (1024, 22.8), (2048, 43.5), (4096, 89.0)],
)
def test_the_8b_table_goes_through_its_points(tokens, ms):
    assert STEP_8B.linear_ms(tokens) == pytest.approx(ms)


@pytest.mark.parametrize(
    ("tokens", "ms"),
    [
        (0, 6.4),
        (192, 8.32),
        (768, 20.49),
        (1536, 36.01),
        (8192, 89.0 + 4096 * 45.5 / 2048),
        (16_384, 89.0 + 12_288 * 45.5 / 2048),
        (30_000, 89.0 + 25_904 * 45.5 / 2048),
    ],
)
def test_the_8b_table_is_straight_between_its_points_and_beyond_them(tokens, ms):
    assert STEP_8B.linear_ms(tokens) == pytest.approx(ms)


@pytest.mark.parametrize("tokens", [1, 64, 157])
def test_a_small_70b_step_costs_the_weights(tokens):
    assert STEP_70B.linear_ms(tokens) == pytest.approx(16.0)


@pytest.mark.parametrize("tokens", [158, 200, 512, 1024, 4096, 8192, 20_000])
def test_a_large_70b_step_costs_70_microseconds_a_token(tokens):
    assert STEP_70B.linear_ms(tokens) == pytest.approx(5 + 0.07 * tokens, abs=0.02)


def test_a_mixed_step_by_hand():
    # 3 decodes over 3,000 tokens, a chunk of 500 on 1,000 cached and one of 9 on none, 3 ms of stall.
    want_ms = (
        13.2  # 512 tokens
        + 3000 * 131072 / 2.8e9
        + (500 * 1250 + 9 * 4.5) * 4 * 4096 * 32 / 4.0e11
        + 1.3
        + 0.06 * 5
        + 3.0
    )
    assert STEP_8B.mixed_ms(3, 3000, [(500, 1000), (9, 0)], 3.0) == pytest.approx(want_ms)


def test_a_decode_step_by_hand():
    want_ms = 7.2 + 1.3 + 0.06 * 128
    assert STEP_8B.decode_base_ms(128) == pytest.approx(want_ms)
    assert STEP_8B.mixed_ms(128, 50_000, [], 0) == pytest.approx(want_ms + 50_000 * STEP_8B.kv_read)


def test_two_engines_share_one_expanded_table():
    assert StepTime(LLAMA_3_1_8B_H100)._dense is STEP_8B._dense


# -- Figure 2 --------------------------------------------------------------------------------------------------


def slowdown(new: int, cached: int) -> float:
    """Of the step of 200 sequences with 2,048 tokens each, by one prompt chunk beside it."""
    alone_ms = STEP_8B.mixed_ms(200, 200 * 2048, [], 0)
    return STEP_8B.mixed_ms(200, 200 * 2048, [(new, cached)], 0) / alone_ms - 1


def test_a_full_prefill_in_every_step_slows_a_batch_of_200_by_nearly_half():
    assert slowdown(1024, 0) == pytest.approx(0.435, abs=0.03)


def test_a_small_append_hardly_slows_a_batch_of_200():
    assert 0 < slowdown(64, 2048) < 0.02  # published: 1-2 %
    assert slowdown(64, 2048) < slowdown(1024, 0) / 10


def test_uncached_tokens_are_what_costs_whatever_the_name_of_the_prefill():
    assert slowdown(1024, 2048) > slowdown(1024, 0)


# -- profiles --------------------------------------------------------------------------------------------------


def test_profiles_are_listed_under_their_names_and_say_where_they_come_from():
    assert all(name == profile.name and len(profile.provenance) > 20 for name, profile in PROFILES.items())


def test_another_bandwidth_changes_the_link_alone():
    slow = LLAMA_3_1_8B_H100.with_bandwidth(10)
    assert slow.link.bandwidth_gb_s == 10
    assert slow.with_bandwidth(LLAMA_3_1_8B_H100.link.bandwidth_gb_s) == LLAMA_3_1_8B_H100


@pytest.mark.parametrize("gb_s", [0, -1, math.nan, math.inf])
def test_a_bandwidth_that_is_no_speed_is_refused(gb_s):
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        LLAMA_3_1_8B_H100.with_bandwidth(gb_s)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"linear_ms": ((1, 6.4),)}, "two or more points"),
        ({"linear_ms": ()}, "two or more points"),
        ({"linear_ms": ((1, 6.4), (1, 7.0))}, "rising token counts"),
        ({"linear_ms": ((128, 6.4), (1, 7.0))}, "rising token counts"),
        ({"linear_ms": ((-5, 6.4), (1, 7.0))}, "rising token counts"),
        ({"linear_ms": ((1, 0.0), (128, 7.0))}, "positive times"),
        ({"linear_ms": ((1, math.nan), (128, 7.0))}, "positive times"),
        ({"linear_ms": ((1, 7.0), (128, 6.0))}, "must not fall"),
        ({"front_ms": -1.0}, "0 ms or more"),
        ({"per_sequence_ms": math.nan}, "0 ms or more"),
        ({"kv_capacity_tokens": 0}, "sizes must be 1 or more"),
        ({"block_tokens": 0}, "sizes must be 1 or more"),
        ({"max_sequences": 0}, "sizes must be 1 or more"),
        ({"token_budget": 512}, "token_budget must not be below max_sequences"),
        ({"lease_s": 0.0}, "lease_s must be positive"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused_by_name(change, why):
    with pytest.raises(ValueError, match=f"llama-3.1-8b-h100: .*{why}"):
        replace(LLAMA_3_1_8B_H100, **change)


@pytest.mark.parametrize("change", [{"fixed_ms": -1.0}, {"hop_ms": math.inf}, {"receive_stall_ms": math.nan}])
def test_a_link_with_impossible_times_is_refused(change):
    with pytest.raises(ValueError, match="link: times must be 0 ms or more"):
        replace(LLAMA_3_1_8B_H100.link, **change)
