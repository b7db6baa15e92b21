"""Drift of latencies away from the table: how often it is seen falsely, and how soon truly."""

import math

import numpy as np
import pytest

from estimators.drift import MEMORY, Drift, DriftAlarm, residual


def alarms(values) -> list[tuple[int, Drift]]:
    alarm, found = DriftAlarm(), []
    for at, value in enumerate(values.tolist()):
        raised = alarm.update(value, float(at))
        if raised is not None:
            found.append((at, raised.drift))
    assert alarm.alarms == len(found)
    return found


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (lambda dice, n: dice.normal(0.1, 0.3, n), 2),
        (lambda dice, n: 0.3 * dice.standard_t(4, n), 2),
        (lambda dice, n: dice.gumbel(0.0, 0.3, n), 4),
        (lambda dice, n: dice.exponential(0.3, n), 5),
    ],
    ids=["normal", "heavy tails", "skewed", "very skewed"],
)
def test_false_alarms_are_rare_in_a_hundred_thousand_turns(shape, most):
    assert len(alarms(shape(np.random.default_rng(4), 100_000))) <= most


@pytest.mark.parametrize(
    ("shift", "median", "slowest"), [(0.6, 65, 250), (1.2, 25, 80), (-1.2, 25, 80), (-3.0, 10, 25)]
)
def test_a_shift_in_deviations_is_seen_within_so_many_turns(shift, median, slowest):
    dice, delays = np.random.default_rng(6), []
    for _ in range(60):
        values = dice.normal(0.1, 0.3, 1000)
        values[600:] += 0.3 * shift
        found = [each for each in alarms(values) if each[0] >= 600]
        assert found and found[0][1] is (Drift.SLOWER if shift > 0 else Drift.FASTER)
        delays.append(found[0][0] - 600 + 1)
    assert np.median(delays) <= median
    assert max(delays) <= slowest


def test_a_table_that_is_off_by_a_constant_is_no_drift():
    assert alarms(np.random.default_rng(1).normal(2.0, 0.3, 20_000)) == []


def test_one_timeout_is_no_drift_and_many_are():
    alarm = DriftAlarm()
    for at, value in enumerate(np.random.default_rng(2).normal(0.0, 0.3, 1000).tolist()):
        alarm.update(value, float(at))
    before = alarm.estimate(1000.0).value
    assert alarm.update(math.inf, 1000.0) is None
    after = alarm.estimate(1000.0).value
    assert before is not None and after is not None and after - before < 0.01
    raised = [alarm.update(math.inf, 1001.0 + at) for at in range(10)]
    first = next(each for each in raised if each is not None)
    assert first.drift is Drift.SLOWER and first.at_s <= 1007.0 and first.after > 1000
    assert alarm.last == first


def test_after_an_alarm_the_new_level_is_learnt():
    dice = np.random.default_rng(3)
    found = alarms(np.concatenate([dice.normal(0.0, 0.3, 500), dice.normal(0.6, 0.3, 20_000)]))
    assert len(found) == 1 and 500 <= found[0][0] < 530


def test_an_alarm_says_what_the_level_was_before_and_no_drift_is_learnt_before_it_is_told():
    dice, alarm = np.random.default_rng(7), DriftAlarm(learn=30)
    values = np.concatenate([dice.normal(0.2, 0.1, 40), dice.normal(0.28, 0.1, 400)])
    raised = [found for at, value in enumerate(values.tolist()) if (found := alarm.update(value, float(at)))]
    assert len(raised) == 1 and raised[0].drift is Drift.SLOWER
    assert raised[0].before == pytest.approx(0.2, abs=0.05)


def test_shifts_too_small_to_matter_are_left_out():
    dice = np.random.default_rng(8)
    values = np.concatenate([dice.normal(0.0, 0.02, 300), dice.normal(0.04, 0.02, 3000)]).tolist()
    plain, blunt = DriftAlarm(), DriftAlarm(least_sd=0.2)
    for at, value in enumerate(values):
        plain.update(value, float(at))
        blunt.update(value, float(at))
    assert (plain.alarms, blunt.alarms) == (1, 0)


def test_differences_below_a_percent_are_none_however_steady_the_latencies():
    assert alarms(np.where(np.arange(3000) < 1000, 0.0, 0.002)) == []


def test_the_bias_of_the_table_is_shown_once_learnt_and_never_surer_than_its_memory():
    alarm = DriftAlarm(learn=100)
    for at, value in enumerate(np.random.default_rng(5).normal(0.2, 0.1, 9000).tolist()):
        if at == 99:
            assert alarm.learning and alarm.estimate(0.0).value is None
        alarm.update(value, float(at))
    shown = alarm.estimate(9000.0)
    assert shown.value == pytest.approx(0.2, abs=0.01) and shown.n == MEMORY


def test_a_residual_is_the_log_of_measured_over_predicted():
    assert residual(0.2, 0.1) == pytest.approx(math.log(2.0))
    assert residual(math.inf, 0.1) == math.inf
    for measured_s, predicted_s in ((0.0, 0.1), (0.1, 0.0), (math.nan, 0.1), (0.1, math.nan), (0.1, math.inf)):
        with pytest.raises(ValueError, match="no residual"):
            residual(measured_s, predicted_s)


@pytest.mark.parametrize("now_s", [math.nan, math.inf])
def test_a_time_that_is_none_is_refused(now_s):
    with pytest.raises(ValueError, match="residual"):
        DriftAlarm().update(0.1, now_s)


@pytest.mark.parametrize(
    "bad", [{"learn": 1}, {"delta": -0.1}, {"delta": math.nan}, {"bar": 0.0}, {"bar": math.inf}, {"least_sd": 0.0}]
)
def test_an_alarm_that_cannot_work_cannot_be_made(bad):
    with pytest.raises(ValueError, match="no drift alarm"):
        DriftAlarm(**bad)
