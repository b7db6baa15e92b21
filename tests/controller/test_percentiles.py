"""The percentile that is shown beside an SLO."""

import math
from dataclasses import replace

from controller.percentiles import Percentiles
from slos.objective import Match, Outcome, Signal, Slo
from tests.controller.records import record

TTFT = Slo("ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2))
TPOT = Slo("tpot", Signal.TPOT, 0.99, 0.04)
E2E = Slo("e2e", Signal.E2E, 0.5, 30.0)
SUCCESS = Slo("ok", Signal.SUCCESS, 0.999, None)


def test_it_is_the_slos_own_percentile_of_the_turns_that_it_covers_with_bounds():
    made = Percentiles((TTFT, TPOT, SUCCESS))
    made.fold([record(ttft_s=0.001 * at) for at in range(1, 1001)], 10.0)
    made.fold([record(ttft_s=9.0, turn=1)] * 100, 11.0)
    found = made.estimate("ttft", 12.0)
    assert found is not None and found.value == 0.99 and found.n == 1000
    assert found.low is not None and found.high is not None and found.low < 0.99 < found.high
    assert made.estimate("ok", 12.0) is None and made.estimate("strange", 12.0) is None


def test_failed_turns_are_infinitely_slow_and_the_whole_answer_has_its_own_time():
    made = Percentiles((TTFT, E2E))
    made.fold([record(ttft_s=0.5)] * 80 + [replace(record(ttft_s=0.5), outcome=Outcome.FAILED)] * 20, 0.0)
    slow, whole = made.estimate("ttft", 1.0), made.estimate("e2e", 1.0)
    assert slow is not None and slow.value == math.inf and slow.high is None
    assert whole is not None and whole.value == record(ttft_s=0.5).e2e_s


def test_five_minutes_are_remembered_and_no_longer():
    made = Percentiles((TTFT,))
    made.fold([record(ttft_s=1.0)] * 50, 0.0)
    seen = made.estimate("ttft", 260.0)
    assert seen is not None and seen.n == 50
    gone = made.estimate("ttft", 331.0)
    assert gone is not None and gone.n == 0 and gone.value is None
    made.fold([record(ttft_s=1.0)] * 50, 1e6)
    again = made.estimate("ttft", 1e6)
    assert again is not None and again.n == 50
