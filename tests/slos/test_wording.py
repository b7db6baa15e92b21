"""The sentence that wakes somebody up."""

import pytest

from slos.counts import Count
from slos.objective import Condition, Match, Signal, Slo
from slos.wording import MAX_DOING, breach, duration, percent, recovery

LATER = Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2))
DOING = "the controller holds its price (p = 0.4)"


def test_a_breach_says_what_users_suffer_the_counts_what_is_allowed_and_what_is_done():
    assert breach(LATER, Count(1240, 76), 300.0, DOING) == (
        "later-ttft: users waited over 2 s for the first token in 6.13 % of 1,240 later turns (76) in the last 5 min, "
        "where 1 % is allowed; the controller holds its price (p = 0.4)"
    )


def test_a_recovery_says_how_long_it_took_and_where_it_stands():
    assert recovery(LATER, Count(1180, 5), 300.0, 1380.0, DOING) == (
        "later-ttft is kept again after 23 min: users waited over 2 s for the first token in 0.42 % of 1,180 later "
        "turns (5) in the last 5 min, and 1 % is allowed; the controller holds its price (p = 0.4)"
    )


@pytest.mark.parametrize(
    ("slo", "part"),
    [
        (Slo("a", Signal.TPOT, 0.99, 0.038), "answers came slower than 38 ms a token in 10 % of 100 turns (10)"),
        (Slo("a", Signal.ITL, 0.95, 0.05), "answers came slower than 50 ms a token"),
        (Slo("a", Signal.E2E, 0.95, 90.0), "users waited over 90 s for the whole answer"),
        (Slo("a", Signal.SUCCESS, 0.999, None), "users got an error in 10 % of 100 turns (10)"),
        (Slo("a", Signal.TTFT, 0.9, 1.5, Match(("llama-*", "qwen"))), "100 turns of llama-* or qwen (10)"),
        (Slo("a", Signal.TTFT, 0.9, 1.5, Match(turn_max=1)), "100 first turns (10)"),
        (Slo("a", Signal.TTFT, 0.9, 1.5, Match(turn_min=3)), "100 turns from 3 on (10)"),
        (Slo("a", Signal.TTFT, 0.9, 1.5, Match(turn_min=3, turn_max=3)), "100 turns number 3 (10)"),
        (Slo("a", Signal.TTFT, 0.9, 1.5, Match(turn_min=2, turn_max=5)), "100 turns 2 to 5 (10)"),
    ],
)
def test_every_signal_and_match_has_its_words(slo: Slo, part: str):
    assert part in breach(slo, Count(100, 10), 300.0, DOING)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0613, "6.13 %"), (0.01, "1 %"), (0.001, "0.1 %"), (0.0005, "0.05 %"), (1.0, "100 %"), (0, "0 %")],
)
def test_percents_show_what_matters(share: float, text: str):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.038, "38 ms"), (2.0, "2 s"), (90.0, "90 s"), (300.0, "5 min"), (12_600.0, "3.5 h")]
)
def test_durations_have_their_unit(seconds: float, text: str):
    assert duration(seconds) == text


def test_an_empty_window_and_a_long_story_are_no_trouble():
    text = breach(LATER, Count(), 300.0, "x" * 5000)
    assert "0 % of 0 later turns" in text and len(text) < MAX_DOING + 250


def test_goodput_and_own_deadlines_are_told_by_what_was_not_got():
    goodput = Slo(
        "good",
        Signal.GOODPUT,
        0.97,
        None,
        conditions=(Condition(Signal.TTFT, 0.5), Condition(Signal.SUCCESS)),
    )
    assert "users did not get TTFT at most 500 ms and success in 10 % of 100 turns" in breach(
        goodput, Count(100, 10), 300.0, "x"
    )
    own = Slo("own", Signal.TTFT, 0.99, None, Match(asked=True))
    assert "users did not get TTFT within the deadline asked for" in breach(own, Count(100, 10), 300.0, "x")
