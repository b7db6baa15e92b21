"""When a human is told, by timelines: traffic in, messages out."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from slos.alerts import Alert, Change, Evidence, Gate, State
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
            alert, change = alert.after(gate.judge(window.total(), EPSILON), now_s, gate)
            told.states.append(alert.state)
            if change is not None:
                told.messages.append((now_s, change))
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
        alert, got = alert.after(evidence, EVALUATE_S * at, gate)
        assert (alert.state, got) == (state, change), f"row {at}"


def test_a_clock_that_stands_still_resolves_nothing():
    alert, gate = Alert(), Gate()
    for evidence in (BREACH, BREACH, *[INSIDE] * 100):
        alert, _ = alert.after(evidence, 60.0, gate)
    assert alert.state is State.CLEARING


@pytest.mark.parametrize(
    "wrong", [{"confidence": 1.0}, {"evaluations": 0}, {"min_valid": 0}, {"clear_s": -1.0}, {"max_cycles": 0}]
)
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
        alert, change = alert.after(gate.judge(window.total(), EPSILON), at * EVALUATE_S, gate)
        assert change is not Change.RESOLVED
    assert alert.state is State.FIRING and alert.evidence is UNKNOWN


@pytest.mark.parametrize("period_s", [240.0, 660.0, 900.0, 1800.0])
def test_a_service_that_flaps_gives_at_most_four_pairs_of_messages_an_hour(period_s: float):
    told = traffic(6.0, 5.0, lambda now_s: 0.2 if now_s % (2 * period_s) < period_s else 0.0, seed=2)
    assert told.fired_s
    for at_s in told.fired_s:
        assert sum(at_s <= other_s < at_s + 3600.0 for other_s in told.fired_s) <= 4


def test_fast_cycles_are_held_until_the_hour_has_passed():
    gate = Gate(clear_s=60.0)
    alert, fired_s, resolved_s, held = Alert(), [], [], False
    for at in range(960):  # 8 h: a minute broken, two minutes inside
        now_s = at * EVALUATE_S
        alert, change = alert.after(BREACH if at % 6 < 2 else INSIDE, now_s, gate)
        held |= alert.flapping
        fired_s += [now_s] if change is FIRED else []
        resolved_s += [now_s] if change is RESOLVED else []
    assert held
    assert len(resolved_s) in (len(fired_s), len(fired_s) - 1)
    assert max(sum(at_s <= other_s < at_s + 3600.0 for other_s in fired_s) for at_s in fired_s) <= 4


@pytest.mark.parametrize(("rate_hz", "most"), [(2.0, 2), (10.0, 2)])
def test_false_alarms_of_a_service_just_inside_are_rare(rate_hz: float, most: int):
    days = [len(traffic(24.0, rate_hz, lambda _: 0.009, seed).fired_s) for seed in (11, 12)]
    assert max(days) <= most, f"notifications a day: {days}"
