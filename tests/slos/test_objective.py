"""The verdict of one SLO on one turn."""

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slos.objective import STREAMED, Condition, Match, Measured, Outcome, Signal, Slo, Verdict, judge
from slos.terms import NO_TERMS, Terms

GOOD, BAD, EXCLUDED = Verdict.GOOD, Verdict.BAD, Verdict.EXCLUDED
SUCCESS = Slo("answers", Signal.SUCCESS, 0.999, None)
LATENCIES = [Slo(signal, signal, 0.99, 1.0) for signal in Signal if signal not in (Signal.SUCCESS, Signal.GOODPUT)]


@dataclass(frozen=True, slots=True)
class Turn:
    model: str = "llama-8b"
    turn: int = 2
    streaming: bool = True
    ttft_s: float | None = 0.5
    tpot_s: float | None = 0.5
    e2e_s: float | None = 0.5
    output_tokens: int = 100
    outcome: Outcome = Outcome.COMPLETED
    waited_s: float = 0.5
    terms: Terms = NO_TERMS


SLOW = Turn(ttft_s=2.0, tpot_s=2.0, e2e_s=2.0, waited_s=2.0)
UNSERVED = Turn(ttft_s=None, tpot_s=None, e2e_s=None, output_tokens=0)


def slo(signal: Signal) -> Slo:
    return Slo("x", signal, 0.99, 1.0)


def ended(outcome: Outcome) -> Measured:
    return replace(UNSERVED, outcome=outcome, waited_s=5.0)


@pytest.mark.parametrize("latency", LATENCIES)
def test_a_turn_within_the_threshold_is_good_and_a_slower_one_is_bad(latency: Slo):
    assert judge(latency, Turn()) is GOOD
    assert judge(latency, SLOW) is BAD


@pytest.mark.parametrize("latency", LATENCIES)
def test_a_latency_equal_to_the_threshold_is_good(latency: Slo):
    assert judge(latency, Turn(ttft_s=1.0, tpot_s=1.0, e2e_s=1.0)) is GOOD


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_a_turn_that_failed_is_bad_however_fast_its_tokens_came(latency: Slo, outcome: Outcome):
    assert judge(latency, Turn(outcome=outcome)) is BAD
    assert judge(latency, ended(outcome)) is BAD
    assert judge(SUCCESS, ended(outcome)) is BAD


@pytest.mark.parametrize("latency", LATENCIES)
def test_a_rejected_turn_spends_the_budget_of_success_and_of_no_latency(latency: Slo):
    assert judge(latency, ended(Outcome.REJECTED)) is EXCLUDED
    assert judge(SUCCESS, ended(Outcome.REJECTED)) is BAD


@pytest.mark.parametrize("any_slo", [*LATENCIES, SUCCESS])
def test_what_the_client_did_wrong_counts_nowhere(any_slo: Slo):
    assert judge(any_slo, ended(Outcome.CLIENT_ERROR)) is EXCLUDED


def test_a_client_that_left_says_nothing_about_success():
    assert judge(SUCCESS, ended(Outcome.CLIENT_GONE)) is EXCLUDED


@pytest.mark.parametrize(("waited_s", "verdict"), [(0.99, EXCLUDED), (1.0, BAD), (30.0, BAD)])
@pytest.mark.parametrize("signal", [Signal.TTFT, Signal.E2E])
def test_a_client_that_left_before_the_first_token_is_bad_once_it_had_waited_as_long_as_promised(
    signal: Signal, waited_s: float, verdict: Verdict
):
    assert judge(slo(signal), replace(UNSERVED, outcome=Outcome.CLIENT_GONE, waited_s=waited_s)) is verdict


def test_a_client_that_left_during_the_stream_is_judged_by_what_it_got():
    gone = Turn(outcome=Outcome.CLIENT_GONE, ttft_s=0.2, tpot_s=3.0, e2e_s=None, waited_s=0.9)
    assert judge(slo(Signal.TTFT), gone) is GOOD
    assert judge(slo(Signal.TPOT), gone) is BAD
    assert judge(slo(Signal.E2E), gone) is EXCLUDED
    assert judge(slo(Signal.E2E), replace(gone, e2e_s=0.9, waited_s=4.0)) is BAD


def test_a_reply_without_any_token_is_judged_by_how_long_it_took():
    assert judge(slo(Signal.TTFT), replace(UNSERVED, waited_s=0.1)) is EXCLUDED
    assert judge(slo(Signal.TTFT), replace(UNSERVED, waited_s=9.0)) is BAD


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("signal", sorted(STREAMED))
def test_a_turn_that_does_not_stream_has_no_token_times_whatever_became_of_it(signal: Signal, outcome: Outcome):
    assert judge(slo(signal), replace(SLOW, streaming=False, outcome=outcome)) is EXCLUDED


def test_a_turn_that_does_not_stream_counts_for_end_to_end_time_and_success():
    whole = Turn(streaming=False, ttft_s=None, tpot_s=None)
    assert judge(slo(Signal.E2E), whole) is GOOD
    assert judge(SUCCESS, whole) is GOOD


@pytest.mark.parametrize("signal", [Signal.TPOT, Signal.ITL])
def test_time_per_token_needs_two_tokens(signal: Signal):
    assert judge(slo(signal), replace(SLOW, output_tokens=1)) is EXCLUDED
    assert judge(slo(signal), replace(SLOW, output_tokens=2)) is BAD
    assert judge(slo(signal), replace(SLOW, tpot_s=None)) is EXCLUDED


@pytest.mark.parametrize("latency", LATENCIES)
def test_a_latency_that_is_not_a_number_is_bad_and_so_is_seen(latency: Slo):
    assert judge(latency, Turn(ttft_s=math.nan, tpot_s=math.nan, e2e_s=math.nan)) is BAD


def test_a_match_is_by_model_glob_turn_range_and_streaming():
    match = Match(("llama-*", "meta/*"), turn_min=2, turn_max=5, streaming=True)
    assert match.covers("llama-8b", 2, True)
    assert match.covers("meta/a/b", 5, True)
    assert not match.covers("Llama-8b", 2, True)
    assert not match.covers("llama-8b", 1, True)
    assert not match.covers("llama-8b", 6, True)
    assert not match.covers("llama-8b", 2, False)
    assert Match().covers("anything", 1, False)


@pytest.mark.parametrize("match", [Match(("qwen*",)), Match(turn_min=3), Match(turn_max=1), Match(streaming=False)])
def test_a_turn_outside_the_match_is_excluded_even_when_it_failed(match: Match):
    outside = replace(ended(Outcome.FAILED), turn=2)  # type: ignore[type-var]
    assert judge(replace(SUCCESS, match=match), outside) is EXCLUDED


@pytest.mark.parametrize(("objective", "epsilon"), [(0.99, 0.01), (0.999, 0.001), (0.5, 0.5), (0.9999, 0.0001)])
def test_epsilon_is_exactly_what_the_objective_leaves(objective: float, epsilon: float):
    assert replace(SUCCESS, objective=objective).epsilon == epsilon


def test_moving_an_slo_to_another_line_does_not_change_it():
    assert replace(SUCCESS, line=3) == replace(SUCCESS, line=9)


@pytest.mark.parametrize(
    ("signal", "objective", "threshold_s"),
    [
        (Signal.SUCCESS, 0.99, 1.0),
        (Signal.TTFT, 0.99, None),
        (Signal.TTFT, 0.99, 0.0),
        (Signal.TTFT, 0.99, math.inf),
        (Signal.TTFT, 0.99, math.nan),
        (Signal.TTFT, 1.0, 1.0),
        (Signal.TTFT, 99.0, 1.0),
        (Signal.SUCCESS, 0.0, None),
    ],
)
def test_an_slo_that_promises_nothing_cannot_be_made(signal: Signal, objective: float, threshold_s: float | None):
    with pytest.raises(ValueError, match="bad-one"):
        Slo("bad-one", signal, objective, threshold_s)


seconds = st.none() | st.floats(min_value=0.0, max_value=1e6)
any_turn = st.builds(
    Turn,
    model=st.sampled_from(["llama-8b", "qwen"]),
    turn=st.integers(1, 9),
    streaming=st.booleans(),
    ttft_s=seconds,
    tpot_s=seconds,
    e2e_s=seconds,
    output_tokens=st.integers(0, 9),
    outcome=st.sampled_from(Outcome),
    waited_s=st.floats(min_value=0.0, max_value=1e6),
)


@settings(derandomize=True)
@given(any_turn, st.sampled_from([*LATENCIES, SUCCESS]))
def test_every_turn_gets_a_verdict_from_every_slo(turn: Turn, any_slo: Slo):
    assert judge(any_slo, turn) in Verdict


@settings(derandomize=True)
@given(any_turn, st.sampled_from(LATENCIES), st.floats(min_value=1.0, max_value=100.0))
def test_a_looser_threshold_never_makes_a_turn_bad(turn: Turn, latency: Slo, factor: float):
    looser = replace(latency, threshold_s=(latency.threshold_s or 0.0) * factor)
    if judge(looser, turn) is BAD:
        assert judge(latency, turn) is BAD


# -- goodput ---------------------------------------------------------------------------------------------------------

GOODPUT = Slo(
    "good-turns",
    Signal.GOODPUT,
    0.97,
    None,
    conditions=(Condition(Signal.TTFT, 1.0), Condition(Signal.TPOT, 1.0), Condition(Signal.SUCCESS)),
)
LATENCY_ONLY = replace(GOODPUT, conditions=GOODPUT.conditions[:2])


@pytest.mark.parametrize(
    ("turn", "verdict"),
    [
        (Turn(), GOOD),
        (Turn(ttft_s=2.0), BAD),
        (Turn(tpot_s=2.0), BAD),
        (Turn(tpot_s=None, output_tokens=1), EXCLUDED),
        (Turn(ttft_s=2.0, tpot_s=None, output_tokens=1), BAD),
        (Turn(streaming=False), EXCLUDED),
        (Turn(streaming=False, outcome=Outcome.FAILED), BAD),
        (Turn(outcome=Outcome.FAILED), BAD),
        (Turn(outcome=Outcome.TIMED_OUT), BAD),
        (replace(UNSERVED, outcome=Outcome.REJECTED), BAD),
        (Turn(outcome=Outcome.CLIENT_ERROR), EXCLUDED),
        (Turn(outcome=Outcome.CLIENT_GONE), EXCLUDED),
        (Turn(outcome=Outcome.CLIENT_GONE, tpot_s=2.0), BAD),
        (replace(UNSERVED, outcome=Outcome.CLIENT_GONE, waited_s=0.9), EXCLUDED),
        (replace(UNSERVED, outcome=Outcome.CLIENT_GONE, waited_s=1.0), BAD),
    ],
)
def test_goodput_is_bad_by_one_bad_condition_else_unknown_by_one_unknown(turn: Turn, verdict: Verdict):
    assert judge(GOODPUT, turn) is verdict


def test_a_rejected_turn_spends_no_goodput_that_does_not_promise_success():
    assert judge(LATENCY_ONLY, ended(Outcome.REJECTED)) is EXCLUDED


@pytest.mark.parametrize(
    "changes",
    [
        {"conditions": ()},
        {"conditions": (Condition(Signal.GOODPUT),)},
        {"conditions": (Condition(Signal.TTFT, 0.0),)},
        {"conditions": (Condition(Signal.SUCCESS, 1.0),)},
        {"conditions": (Condition(Signal.TTFT),)},
    ],
)
def test_goodput_of_conditions_that_promise_nothing_is_refused(changes):
    with pytest.raises(ValueError, match="good-turns"):
        replace(GOODPUT, **changes)


# -- what a request says of itself ------------------------------------------------------------------------------------

SOON = Terms(ttft_s=0.2)
ASKED = Slo("asked", Signal.TTFT, 0.99, None, Match(asked=True))


def test_a_turn_with_its_own_deadline_is_judged_by_it_and_by_no_other_of_that_signal():
    assert judge(slo(Signal.TTFT), Turn(terms=SOON)) is EXCLUDED
    assert judge(ASKED, Turn(terms=SOON)) is BAD
    assert judge(ASKED, Turn(ttft_s=0.2, terms=SOON)) is GOOD
    assert judge(ASKED, Turn()) is EXCLUDED


@pytest.mark.parametrize("signal", [Signal.TPOT, Signal.ITL, Signal.E2E])
def test_a_deadline_of_one_signal_leaves_the_others_to_what_is_declared(signal: Signal):
    assert judge(slo(signal), Turn(terms=SOON)) is GOOD
    assert judge(SUCCESS, Turn(terms=SOON)) is GOOD


def test_a_deadline_on_tokens_is_one_of_tpot_and_of_itl():
    slow = Turn(terms=Terms(tpot_s=0.1))
    for signal in (Signal.TPOT, Signal.ITL):
        assert judge(slo(signal), slow) is EXCLUDED
        assert judge(Slo("own", signal, 0.99, None, Match(asked=True)), slow) is BAD


def test_goodput_by_own_deadlines_needs_those_that_were_set():
    own = replace(LATENCY_ONLY, match=Match(asked=True), conditions=(Condition(Signal.TTFT), Condition(Signal.TPOT)))
    assert judge(own, Turn(terms=SOON)) is BAD
    assert judge(own, Turn(terms=Terms(ttft_s=0.6))) is GOOD, "no deadline for its tokens was set"
    assert judge(own, Turn(terms=Terms(ttft_s=0.6, tpot_s=0.1))) is BAD
    assert judge(own, Turn()) is EXCLUDED
    assert judge(GOODPUT, Turn(terms=SOON)) is EXCLUDED


@pytest.mark.parametrize(
    ("asked", "plain", "own"), [(None, GOOD, GOOD), (True, EXCLUDED, GOOD), (False, GOOD, EXCLUDED)]
)
def test_success_may_be_of_turns_that_set_a_deadline_or_of_the_others(asked, plain: Verdict, own: Verdict):
    answers = replace(SUCCESS, match=Match(asked=asked))
    assert judge(answers, Turn()) is plain
    assert judge(answers, Turn(terms=SOON)) is own


def test_a_client_that_left_had_waited_as_long_as_it_had_asked_for():
    left = replace(UNSERVED, outcome=Outcome.CLIENT_GONE, terms=SOON)
    assert judge(ASKED, replace(left, waited_s=0.2)) is BAD
    assert judge(ASKED, replace(left, waited_s=0.1)) is EXCLUDED


def test_a_threshold_of_its_own_needs_turns_that_have_one():
    with pytest.raises(ValueError, match="need not ask"):
        Slo("x", Signal.TTFT, 0.99, None)
    with pytest.raises(ValueError, match="need not ask"):
        Slo("x", Signal.E2E, 0.99, None, Match(asked=True))


def test_classes_and_tenants_are_allow_lists():
    gold = replace(SUCCESS, match=Match(classes=("gold", "silver"), tenants=("assistants",)))
    assert judge(gold, Turn(terms=Terms("gold", "assistants"))) is GOOD
    assert judge(gold, Turn(terms=Terms("silver", "assistants"))) is GOOD
    for terms in (
        Terms(),
        Terms("gold"),
        Terms("gold", "batch"),
        Terms("", "assistants"),
        Terms("bronze", "assistants"),
    ):
        assert judge(gold, Turn(terms=terms)) is EXCLUDED
