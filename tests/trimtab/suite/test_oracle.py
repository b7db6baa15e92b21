"""The oracle takes the best constant of each phase, and gap recovery is a share of the way to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.score import PhaseScore, RunScore
from trimtab.suite.oracle import MIN_GAP, gap_recovery, oracle

SHARE = st.floats(0, 1)


def scored(*phases: float | None) -> RunScore:
    return RunScore(tuple(PhaseScore(None, None, True, attainment, 100, None) for attainment in phases))


def test_each_phase_has_the_constant_with_the_best_mean_over_the_seeds():
    found = oracle({"low": [scored(0.9, 0.5), scored(0.8, 0.7)], "high": [scored(0.6, 0.9), scored(0.7, 0.9)]})
    assert found is not None
    assert [phase.policy for phase in found.phases] == ["low", "high"]
    assert found.attainment == pytest.approx((0.85 + 0.9) / 2)


def test_a_phase_without_later_turns_does_not_count():
    found = oracle({"a": [scored(None, 0.8)], "b": [scored(None, 0.6)]})
    assert found is not None and found.attainment == pytest.approx(0.8)


def test_nothing_was_run_is_no_oracle():
    assert oracle({}) is None


@given(st.lists(st.tuples(SHARE, SHARE, SHARE), min_size=1, max_size=6))
def test_no_constant_beats_the_oracle(attainments):
    scores = {f"price_{at}": [scored(*each)] for at, each in enumerate(attainments)}
    found = oracle(scores)
    assert found is not None
    assert all(runs[0].attainment <= found.attainment + 1e-12 for runs in scores.values())


def test_recovery_by_hand():
    assert gap_recovery(0.95, 0.80, 1.0) == pytest.approx(0.75)
    assert gap_recovery(0.70, 0.80, 1.0) == pytest.approx(-0.5)


@given(SHARE, SHARE)
def test_the_static_table_recovers_nothing_and_the_oracle_all_of_it(static, best):
    if best - static < MIN_GAP:
        assert gap_recovery(best, static, best) is None
    else:
        assert gap_recovery(static, static, best) == 0
        assert gap_recovery(best, static, best) == pytest.approx(1)
