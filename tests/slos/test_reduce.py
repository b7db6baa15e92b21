"""From several SLOs to the two that drive a law."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from slos.objective import Condition, Match, Signal, Slo
from slos.reduce import Binding, Driving, SloReading, binding, driving

TTFT = Slo("ttft", Signal.TTFT, 0.99, 2.0)
TTFT_P50 = Slo("ttft-p50", Signal.TTFT, 0.5, 0.5)
TPOT = Slo("tpot", Signal.TPOT, 0.99, 0.04)
ITL = Slo("itl", Signal.ITL, 0.95, 0.03)
E2E = Slo("e2e", Signal.E2E, 0.95, 30.0)
SUCCESS = Slo("answers", Signal.SUCCESS, 0.999, None)


def test_token_times_can_drive_and_the_rest_is_only_judged():
    slos = (E2E, TTFT, ITL, SUCCESS, TPOT, TTFT_P50)
    assert driving(slos, "m") == Driving(ttft=(TTFT, TTFT_P50), tpot=(ITL, TPOT), judged_only=(E2E, SUCCESS))


def test_slos_of_other_models_are_in_no_list():
    theirs = Slo("theirs", Signal.TTFT, 0.99, 1.0, Match(("qwen*",)))
    assert driving((theirs,), "llama-8b") == Driving((), (), ())
    assert driving((theirs,), "qwen-7b").ttft == (theirs,)


def test_an_slo_over_turns_that_do_not_stream_cannot_drive():
    whole = Slo("whole", Signal.TTFT, 0.99, 1.0, Match(streaming=False))
    assert driving((whole,), "m") == Driving((), (), (whole,))


def test_the_worst_of_a_side_is_the_one_furthest_over_its_own_threshold():
    mild, bad = SloReading(TTFT, 3.0), SloReading(TTFT_P50, 1.0)
    assert binding([mild, bad]).ttft == bad


def test_itl_and_tpot_compete_for_one_side():
    tpot, itl = SloReading(TPOT, 0.03), SloReading(ITL, 0.029)
    assert binding([tpot, itl]) == Binding(ttft=None, tpot=itl)


def test_an_slo_without_evidence_does_not_drive():
    fine = SloReading(TTFT_P50, 0.1)
    assert binding([SloReading(TTFT, None), fine]).ttft == fine
    assert binding([SloReading(TTFT, None), SloReading(TTFT_P50, math.nan)]).ttft is None


def test_of_equally_bad_readings_the_first_declared_drives():
    first, second = SloReading(TTFT, 2.0), SloReading(TTFT_P50, 0.5)
    assert binding([first, second]).ttft == first


def test_end_to_end_time_and_success_never_drive():
    assert binding([SloReading(E2E, 900.0), SloReading(SUCCESS, 1.0)]) == Binding(None, None)


readings = st.lists(
    st.builds(
        SloReading,
        st.sampled_from([TTFT, TTFT_P50, TPOT, ITL, E2E, SUCCESS]),
        st.none() | st.floats(0.0, 100.0),
    )
)


@settings(derandomize=True)
@given(readings)
def test_no_reading_of_a_side_is_worse_than_the_one_that_drives_it(rows):
    bound = binding(rows)
    for row in rows:
        driver = bound.ttft if row.slo.signal is Signal.TTFT else bound.tpot
        if row.slo.signal in (Signal.TTFT, Signal.TPOT, Signal.ITL) and row.severity is not None:
            assert driver is not None
            assert driver.severity is not None
            assert driver.severity >= row.severity


def test_goodput_and_deadlines_of_requests_are_judged_and_never_drive():
    own = Slo("own", Signal.TTFT, 0.99, None, Match(asked=True))
    goodput = Slo("good", Signal.GOODPUT, 0.9, None, conditions=(Condition(Signal.TTFT, 1.0),))
    drives = driving((own, goodput), "m")
    assert (drives.ttft, drives.tpot, drives.judged_only) == ((), (), (own, goodput))
