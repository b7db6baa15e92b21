"""A backlog: what was sent and not answered, less the time that the oldest piece has had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.load import Backlog, NodeLoad


def backlog(*pieces: tuple[str, float]) -> Backlog:
    made = Backlog()
    for name, ms in pieces:
        made.add(name, ms, 0.0)
    return made


def test_nothing_outstanding_is_no_wait():
    assert Backlog().ms(10.0) == 0.0
    assert len(Backlog()) == 0


def test_a_piece_counts_in_full_when_it_is_sent_and_runs_off_as_time_passes():
    one = backlog(("a", 500.0))
    assert one.ms(0.0) == 500.0
    assert one.ms(0.2) == pytest.approx(300.0)
    assert one.ms(0.5) == 0.0


def test_a_piece_that_takes_longer_than_predicted_waits_at_zero_and_eats_nothing_of_the_next():
    two = backlog(("a", 100.0), ("b", 400.0))
    assert two.ms(0.1) == pytest.approx(400.0)
    assert two.ms(5.0) == pytest.approx(400.0)


def test_the_next_piece_starts_when_the_head_is_answered():
    two = backlog(("a", 100.0), ("b", 400.0))
    two.remove("a", 2.0)
    assert two.ms(2.0) == pytest.approx(400.0)
    assert two.ms(2.3) == pytest.approx(100.0)


def test_a_piece_given_up_from_behind_takes_its_own_time_away_and_not_the_heads():
    two = backlog(("a", 1000.0), ("b", 1000.0))
    two.remove("b", 0.9)
    assert two.ms(0.9) == pytest.approx(100.0)


def test_an_unknown_piece_is_ignored():
    one = backlog(("a", 1000.0))
    one.remove("b", 0.9)
    one.remove("b", 0.9)
    assert one.ms(0.9) == pytest.approx(100.0)
    assert len(one) == 1


def test_after_an_idle_time_the_clock_starts_with_the_new_piece():
    one = backlog(("a", 100.0))
    one.remove("a", 0.1)
    one.add("b", 100.0, 60.0)
    assert one.ms(60.0) == 100.0


def test_a_server_that_is_gone_has_no_backlog_and_late_answers_do_no_harm():
    two = backlog(("a", 100.0), ("b", 400.0))
    two.clear()
    assert (len(two), two.ms(0.0)) == (0, 0.0)
    two.remove("a", 1.0)
    two.add("c", 50.0, 2.0)
    assert two.ms(2.0) == 50.0


def test_time_that_runs_backwards_adds_nothing():
    one = Backlog()
    one.add("a", 100.0, 10.0)
    assert one.ms(9.0) == 100.0


def test_a_node_starts_without_load():
    fresh = NodeLoad()
    assert (fresh.sequences, fresh.kv_tokens, len(fresh.prefill), len(fresh.link)) == (0, 0, 0, 0)
    assert NodeLoad().prefill is not fresh.prefill


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "remove", "clear"]), st.integers(0, 5), st.floats(0, 1e5), st.floats(0, 3)),
        max_size=60,
    )
)
def test_a_backlog_is_between_zero_and_the_sum_of_its_pieces_and_zero_when_empty(steps):
    backlog, pieces, now_s = Backlog(), {}, 0.0
    for number, (step, name, ms, wait_s) in enumerate(steps):
        now_s += wait_s
        if step == "add":
            pieces[f"{name}/{number}"] = ms
            backlog.add(f"{name}/{number}", ms, now_s)
        elif step == "remove":
            gone = next((piece for piece in pieces if piece.startswith(f"{name}/")), "unknown")
            pieces.pop(gone, None)
            backlog.remove(gone, now_s)
        elif name == 0:
            pieces.clear()
            backlog.clear()
        assert len(backlog) == len(pieces)
        waits = list(pieces.values())
        least_ms = sum(waits[1:])
        assert 0.0 <= backlog.ms(now_s) <= sum(waits) + 1e-6
        assert backlog.ms(now_s) >= least_ms - 1e-6
        assert backlog.ms(now_s + 1e6) == pytest.approx(least_ms, abs=1e-6)
        if not pieces:
            assert backlog.ms(now_s) == 0.0
