"""Days and incidents in virtual time through what judges and tells in production; benchmarks/alerts.py runs more."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from controller.rehearsal import Message, notifications, rehearse
from slos.alerts import Change
from slos.objective import Signal, Slo
from slos.policy import DAY_S

pytestmark = pytest.mark.simulation
SLO = Slo("ttft", Signal.TTFT, 0.99, 2.0)


def an_incident(share: float, rate_hz: float, seed: int) -> tuple[float, list[Message]]:
    """(when it began, messages): an hour of it within four."""
    random = np.random.default_rng(seed)
    begun_s = 3_600.0 + random.uniform(0.0, 60.0)

    def bad(at_s: np.ndarray) -> np.ndarray:
        return np.where((at_s - 2.5 >= begun_s) & (at_s - 2.5 < begun_s + 3_600.0), share, 0.002)

    return begun_s, rehearse(SLO, 4 * 3_600.0, rate_hz, bad, random)


@pytest.mark.parametrize(("rate_hz", "at_most"), [(2.0, 2.0), (10.0, 1.0)])
def test_a_service_just_inside_its_promise_wakes_nobody_often(rate_hz: float, at_most: float):
    days = 4
    messages = rehearse(SLO, days * DAY_S, rate_hz, lambda at_s: np.full(at_s.shape, 0.009), np.random.default_rng(1))
    assert notifications(messages) / days <= at_most


def test_one_in_five_slow_is_told_within_a_minute_and_once():
    after = []
    for seed in range(9):
        begun_s, messages = an_incident(0.2, 2.0, seed)
        assert [message.change for message in messages] == [Change.FIRED, Change.RESOLVED]
        after.append(messages[0].at_s - begun_s)
    assert statistics.median(after) <= 60.0


@pytest.mark.parametrize("share", [0.05, 1.0])
def test_one_incident_is_one_notification_whatever_families_see_it(share: float):
    _, messages = an_incident(share, 5.0, 3)
    assert notifications(messages) == 1 and messages[0].severity == "page"


def test_a_slow_burn_that_no_slice_proves_is_a_ticket():
    # 1.4 % slow where 1 % is allowed, and 30 turns a slice: nothing is proven, and every day a twentieth of the budget
    # goes that should have been a twenty-eighth.
    random = np.random.default_rng(5)
    messages = rehearse(SLO, 3 * DAY_S, 0.1, lambda at_s: np.full(at_s.shape, 0.014), random)
    assert {message.severity for message in messages} == {"ticket"}
    assert notifications(messages) <= 1 + 3 * 6  # told again every four hours
