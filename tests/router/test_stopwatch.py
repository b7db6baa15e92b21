"""TTFT, TPOT and end-to-end time, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.stopwatch import Stopwatch, TurnTiming


def watched(*tokens_s: float, accepted_s: float = 100.0) -> Stopwatch:
    watch = Stopwatch(accepted_s)
    for at_s in tokens_s:
        watch.token(at_s)
    return watch


def test_ttft_runs_from_accepted_to_the_first_content():
    assert watched(100.5, 101.0, 102.0).read(103.0, 10).ttft_s == pytest.approx(0.5)


def test_tpot_is_last_less_first_over_one_less_than_the_tokens():
    assert watched(100.5, 101.0, 102.0).read(103.0, 11).tpot_s == pytest.approx(0.15)


def test_end_to_end_runs_to_the_end_and_not_to_the_last_token():
    assert watched(100.5, 102.0).read(103.0, 11).e2e_s == pytest.approx(3.0)


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_single_token_has_no_tpot(tokens: int):
    timing = watched(100.5).read(101.0, tokens)
    assert timing.ttft_s == pytest.approx(0.5)
    assert timing.tpot_s is None


def test_without_content_only_the_end_is_known():
    assert watched().read(104.0, 50) == TurnTiming(None, None, 4.0)


@given(
    gaps_s=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20),
    tokens=st.integers(2, 500),
    rest_s=st.floats(0.0, 5.0),
)
def test_ttft_and_the_tokens_after_it_fit_into_the_whole(gaps_s, tokens, rest_s):
    now_s, watch = 0.0, Stopwatch(0.0)
    for gap_s in gaps_s:
        now_s += gap_s
        watch.token(now_s)
    timing = watch.read(now_s + rest_s, tokens)
    assert timing.ttft_s is not None and timing.tpot_s is not None
    assert 0.0 <= timing.ttft_s + timing.tpot_s * (tokens - 1) <= timing.e2e_s + 1e-9
