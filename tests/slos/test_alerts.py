"""When a human is told, by timelines: traffic in, messages out."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from slos.alerts import Alert, Change, Evidence, Gate, Held, State
from slos.counts import Count
from slos.ledger import CountWindow

EPSILON = 0.01
TICK_S, EVALUATE_S = 5.0, 30.0
BREACH, OUTSIDE, INSIDE, UNKNOWN = Evidence.BREACH, Evidence.OUTSIDE, Evidence.INSIDE, Evidence.UNKNOWN


@dataclass
class Told:
    """What a receiver got, and when (seconds)."""

    messages: list[tuple[float, Change]]
    states: list[State]

    @property
    def fired_s(self) -> list[float]:
        return [at_s for at_s, change in self.messages if change is Change.FIRED]

    @property
    def resolved_s(self) -> list[float]:
        return [at_s for at_s, change in self.messages if change is Change.RESOLVED]


def traffic(hours: float, rate_hz: float, slow: Callable[[float], float], seed: int, gate: Gate | None = None) -> Told:
    """Poisson turns of which a share slow(t) is bad, through window, gate and alert."""
    random, gate = np.random.default_rng(seed), gate or Gate()
    window, alert, told = CountWindow(), Alert(), Told([], [])
    valid = bad = 0
    for at in range(round(hours * 3600 / TICK_S)):
        now_s = at * TICK_S
        turns = int(random.poisson(rate_hz * TICK_S))
        valid, bad = valid + turns, bad + int(random.binomial(turns, slow(now_s)))
        window.add(Count(valid, bad), now_s)
        if now_s % EVALUATE_S == 0:
            before = alert.firing
            alert = alert.after(gate.judge(window.total(), EPSILON), now_s, gate)
            told.states.append(alert.state)
            if alert.firing is not before:
                told.messages.append((now_s, Change.FIRED if alert.firing else Change.RESOLVED))
    changes = [change for _, change in told.messages]
    assert all(one is not other for one, other in pairwise(changes)), "a message tells something new"
    assert not changes or changes[0] is Change.FIRED
    return told


def incident(begin_s: float, end_s: float, share: float, otherwise: float = 0.002) -> Callable[[float], float]:
    return lambda now_s: share if begin_s <= now_s < end_s else otherwise


# -- what one window says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "evidence"),
    [
        (Count(0, 0), UNKNOWN),
        (Count(49, 49), UNKNOWN),  # too few, however bad
        (Count(50, 0), INSIDE),
        (Count(50, 50), BREACH),
        (Count(50, 2), OUTSIDE),  # 4 % of 50: two turns prove nothing
        (Count(50, 4), OUTSIDE),  # p = .0016
        (Count(50, 5), BREACH),  # p = .00015
        (Count(600, 6), INSIDE),  # exactly what is allowed
        (Count(600, 7), OUTSIDE),
        (Count(600, 14), OUTSIDE),  # p = .0036
        (Count(600, 16), BREACH),  # p = .0005
        (Count(1_000_000, 10_400), BREACH),
    ],
)
def test_evidence_needs_enough_turns_and_odds(window: Count, evidence: Evidence):
    assert Gate().judge(window, EPSILON) is evidence


def test_three_bad_turns_are_needed_even_where_two_would_prove_it():
    assert Gate().judge(Count(100, 2), 0.0001) is OUTSIDE
    assert Gate().judge(Count(100, 3), 0.0001) is BREACH


@pytest.mark.parametrize(
    ("recent", "evidence"),
    [
        (Count(120, 8), BREACH),  # p = .00003
        (Count(120, 6), INSIDE),  # p = .001: proven at .999, and a tenth of that chance is asked for
        (Count(49, 49), INSIDE),
        (Count(100_000, 1_000), INSIDE),
    ],
)
def test_the_last_minute_alone_may_prove_a_breach_but_has_to_be_surer(recent: Count, evidence: Evidence):
    assert Gate().judge(Count(600, 6), EPSILON, recent) is evidence


def test_a_lower_confidence_is_satisfied_by_less():
    assert Gate(confidence=0.99).judge(Count(600, 14), EPSILON) is BREACH


# -- the machine, one evaluation a row ------------------------------------------------------------------------------

FIRED, RESOLVED = Change.FIRED, Change.RESOLVED
CLEARS = [(INSIDE, State.CLEARING, None)] * 10
TIMELINES: dict[str, list[tuple[Evidence, State, Change | None]]] = {
    "a breach must be seen twice": [
        (BREACH, State.PENDING, None),
        (BREACH, State.FIRING, FIRED),
        (BREACH, State.FIRING, None),
    ],
    "a breach seen once is forgotten": [
        (INSIDE, State.OK, None),
        (BREACH, State.PENDING, None),
        (OUTSIDE, State.OK, None),
        (BREACH, State.PENDING, None),
        (UNKNOWN, State.UNKNOWN, None),
        (BREACH, State.PENDING, None),
        (INSIDE, State.OK, None),
    ],
    "five minutes inside resolve": [
        (BREACH, State.PENDING, None),
        (BREACH, State.FIRING, FIRED),
        (OUTSIDE, State.FIRING, None),
        *CLEARS,
        (INSIDE, State.OK, RESOLVED),
        (INSIDE, State.OK, None),
    ],
    "too many bad turns begin the five minutes anew, proven or not": [
        (BREACH, State.PENDING, None),
        (BREACH, State.FIRING, FIRED),
        *CLEARS[:9],
        (OUTSIDE, State.FIRING, None),
        *CLEARS[:9],
        (BREACH, State.FIRING, None),
        *CLEARS,
        (INSIDE, State.OK, RESOLVED),
    ],
    "an idle service neither fires nor resolves": [
        (UNKNOWN, State.UNKNOWN, None),
        (BREACH, State.PENDING, None),
        (BREACH, State.FIRING, FIRED),
        *[(UNKNOWN, State.FIRING, None)] * 40,
        *CLEARS[:5],
        *[(UNKNOWN, State.CLEARING, None)] * 40,
        *CLEARS[:5],
        (INSIDE, State.OK, RESOLVED),
        (UNKNOWN, State.UNKNOWN, None),
    ],
}


@pytest.mark.parametrize("rows", TIMELINES.values(), ids=TIMELINES.keys())
def test_the_alert_goes_through_its_states(rows):
    alert, gate = Alert(), Gate()
    for at, (evidence, state, change) in enumerate(rows):
        before = alert.firing
        alert = alert.after(evidence, EVALUATE_S * at, gate)
        got = None if alert.firing is before else FIRED if alert.firing else RESOLVED
        assert (alert.state, got) == (state, change), f"row {at}"


def test_a_clock_that_stands_still_resolves_nothing():
    alert, gate = Alert(), Gate()
    for evidence in (BREACH, BREACH, *[INSIDE] * 100):
        alert = alert.after(evidence, 60.0, gate)
    assert alert.state is State.CLEARING


@pytest.mark.parametrize("wrong", [{"confidence": 1.0}, {"evaluations": 0}, {"min_valid": 0}, {"clear_s": -1.0}])
def test_a_gate_that_can_never_fire_or_resolve_is_refused(wrong):
    with pytest.raises(ValueError, match=r"confidence|never"):
        Gate(**wrong)


# -- traffic --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_hz", [0.5, 2.0, 10.0])
def test_a_healthy_service_tells_nobody_anything_in_half_a_day(rate_hz: float):
    assert traffic(12.0, rate_hz, lambda _: 0.005, seed=1).messages == []


# Five healthy minutes are in the window when the incident begins: at 2 a second 600 turns, of which some 16 must
# be bad, and 30 s of the incident bring only 12.
@pytest.mark.parametrize(("rate_hz", "evaluations"), [(2.0, 3), (10.0, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_twenty_percent_slow_fires_at_the_second_evaluation_that_has_enough_samples(rate_hz, evaluations, seed):
    told = traffic(1.5, rate_hz, incident(1800.0, 3600.0, 0.2), seed)
    assert len(told.fired_s) == 1
    assert 0.0 < told.fired_s[0] - 1800.0 <= evaluations * EVALUATE_S


def test_from_a_cold_start_it_fires_as_soon_as_there_are_fifty_turns():
    told = traffic(0.5, 0.5, lambda _: 0.5, seed=3)
    assert 100.0 <= told.fired_s[0] <= 100.0 + 2 * EVALUATE_S


@pytest.mark.parametrize("seed", range(4))
def test_one_incident_is_one_alert_and_one_recovery(seed: int):
    told = traffic(2.0, 2.0, incident(1800.0, 3600.0, 0.2), seed)
    assert [change for _, change in told.messages] == [FIRED, RESOLVED]
    # The window has to lose the incident (5 min, less what still passes as 1 %) and then stay inside for 5 min.
    assert 540.0 <= told.resolved_s[0] - 3600.0 <= 660.0


def test_traffic_that_stops_in_an_incident_leaves_the_alert_standing():
    random, window, alert, gate = np.random.default_rng(5), CountWindow(), Alert(), Gate()
    valid = bad = 0
    for at in range(240):
        if at < 60:
            valid, bad = valid + 60, bad + int(random.binomial(60, 0.2))
        window.add(Count(valid, bad), at * EVALUATE_S)
        alert = alert.after(gate.judge(window.total(), EPSILON), at * EVALUATE_S, gate)
    assert alert.state is State.FIRING and alert.evidence is UNKNOWN


@pytest.mark.parametrize(("rate_hz", "most"), [(2.0, 2), (10.0, 2)])
def test_false_alarms_of_a_service_just_inside_are_rare(rate_hz: float, most: int):
    days = [len(traffic(24.0, rate_hz, lambda _: 0.009, seed).fired_s) for seed in (11, 12)]
    assert max(days) <= most, f"notifications a day: {days}"


# -- held: so or not so -----------------------------------------------------------------------------------------------

T, F, U = True, False, None


@pytest.mark.parametrize(
    ("seen", "fires_at", "ends_at"),
    [
        ([T, T, T, T], 3, None),  # 60 s after the first
        ([F, T, T, F, T, T, T], 7, None),  # interrupted
        ([T, T, U, U, T, T], 5, None),  # what is not known takes no time
        ([T, T, T, F, F, F, F], 3, None),
        ([T, T, T, F, F, F, T, F, F, F, F, F, F], 3, 12),
    ],
)
def test_what_is_held_comes_on_after_a_minute_and_goes_after_two(seen, fires_at, ends_at):
    held, on = Held(), []
    for at, so in enumerate(seen):
        held = held.after(so, 30.0 * at, 60.0, 120.0)
        on.append(held.firing)
    expected = [
        fires_at is not None and fires_at <= at + 1 and (ends_at is None or at < ends_at - 1) for at in range(len(seen))
    ]
    assert on == expected


def test_without_a_wait_it_is_what_it_is():
    held = Held()
    for at, so in enumerate([T, F, T, U, F]):
        held = held.after(so, float(at), 0.0, 0.0)
        assert held.firing is (so if so is not None else True)
