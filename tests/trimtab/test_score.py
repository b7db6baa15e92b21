"""How a run is judged, on records made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from emulator.workload import AGENT, Phase
from router.record import TurnRecord
from slos.objective import Outcome
from tests.controller.records import failed, record
from trimtab.scenarios import Scenario, promises
from trimtab.score import PhaseScore, RunScore, score
from trimtab.simulate import Unfinished

PHASES = (Phase("one", 100, ((AGENT, 1.0),)), Phase("two", 100, ((AGENT, 1.0),)))
SCENARIO = Scenario("S", "S", "llama-3.1-70b-h100-tp4", "2P_2D", PHASES, promises(2.0, 0.040), settle_s=30.0)


def at(accepted_s: float, turn: int = 2, **what: object) -> TurnRecord:
    return record(turn, accepted_s=accepted_s, **what)  # type: ignore[arg-type]


def judged(
    records: list[TurnRecord], unfinished: Sequence[Unfinished] = (), refused: Sequence[tuple[float, int]] = ()
) -> RunScore:
    return score(SCENARIO, records, unfinished, refused)


def first(*records: TurnRecord) -> PhaseScore:
    return judged(list(records)).phases[0]


def test_turns_accepted_within_the_settle_time_are_not_judged():
    slow = [at(accepted_s, ttft_s=9.0) for accepted_s in (29.9, 100.0, 129.9)]
    found = judged([*slow, at(30.0), at(99.9), at(130.0)])
    assert [phase.later_turns for phase in found.phases] == [2, 1]
    assert found.attainment == 1.0 and found.holds_all


def test_the_first_phase_may_settle_for_longer():
    scenario = replace(SCENARIO, first_settle_s=50.0)
    found = score(scenario, [at(49.9, ttft_s=9.0), at(50.0), at(129.9, ttft_s=9.0), at(130.0)], [], [])
    assert found.attainment == 1.0 and [phase.later_turns for phase in found.phases] == [1, 1]


def test_a_turn_belongs_to_the_phase_in_which_it_was_accepted():
    found = judged([at(99.0, ttft_s=9.0, waited_s=60.0), at(150.0)])
    assert [phase.attainment for phase in found.phases] == [0.0, 1.0]


def test_turns_accepted_after_the_last_phase_are_not_judged():
    assert judged([at(40.0), at(200.0, ttft_s=9.0)]).attainment == 1.0


def test_attainment_is_the_share_of_later_turns_that_meet_both_slos():
    phase = first(at(40.0), at(41.0, ttft_s=2.1), at(42.0, tpot_s=0.041), at(43.0, ttft_s=2.1, tpot_s=0.041))
    assert phase.attainment == 0.25 and phase.later_turns == 4


def test_exactly_at_the_slo_is_met():
    phase = first(at(40.0, ttft_s=2.0, tpot_s=0.040))
    assert phase.attainment == 1.0 and phase.hold


def test_first_turns_count_for_tpot_alone():
    phase = first(at(40.0, turn=1, ttft_s=60.0, tpot_s=0.5), at(41.0))
    assert phase.p99_ttft_ms == 500.0 and phase.p99_tpot_ms == 500.0
    assert phase.later_turns == 1 and phase.attainment == 1.0 and not phase.hold


def test_a_tpot_over_fewer_than_eight_tokens_is_no_evidence():
    phase = first(at(40.0, tpot_s=0.5, output_tokens=7), at(41.0, tpot_s=0.020, output_tokens=8))
    assert phase.p99_tpot_ms == 20.0 and phase.attainment == 1.0
    assert first(at(40.0, tpot_s=0.5, output_tokens=8)).attainment == 0.0


def test_failed_turns_are_misses():
    phase = first(at(40.0), failed(accepted_s=41.0), failed(outcome=Outcome.TIMED_OUT, accepted_s=42.0))
    assert phase.attainment == pytest.approx(1 / 3) and phase.p99_ttft_ms == inf and not phase.hold


def test_a_stream_that_broke_is_a_miss_however_fast_it_began():
    broken = at(40.0, ttft_s=0.1, output_tokens=0, tpot_s=None, outcome=Outcome.FAILED)
    assert first(broken).attainment == 0.0


def test_a_failed_first_turn_is_no_later_turn():
    phase = first(at(40.0), failed(1, accepted_s=41.0))
    assert phase.attainment == 1.0 and phase.later_turns == 1


def test_turns_still_waiting_past_the_slo_at_the_end_are_misses():
    phase = judged([at(150.0)], [Unfinished(2, 150.0, None)]).phases[1]
    assert phase.attainment == 0.5 and phase.p99_ttft_ms == 50_000.0 and not phase.hold


def test_turns_that_the_end_cuts_off_before_the_slo_are_no_evidence():
    phase = judged([at(150.0)], [Unfinished(2, 198.5, None), Unfinished(2, 198.0, None)]).phases[1]
    assert phase.attainment == 1.0 and phase.later_turns == 1 and phase.p99_ttft_ms == 500.0


def test_an_unfinished_turn_with_a_late_first_token_is_a_miss_and_with_an_early_one_only_a_ttft():
    phase = judged([at(150.0)], [Unfinished(3, 151.0, 2.5), Unfinished(3, 152.0, 1.0)]).phases[1]
    assert phase.attainment == 0.5 and phase.later_turns == 2 and phase.p99_ttft_ms == 2500.0


def test_an_early_first_token_of_an_unfinished_turn_is_a_ttft_sample():
    phase = judged([at(40.0)], [Unfinished(3, 152.0, 1.0)]).phases[1]
    assert phase.p99_ttft_ms == 1000.0 and phase.attainment is None


def test_unfinished_turns_of_the_settle_time_and_first_turns_are_not_judged():
    found = judged([at(150.0)], [Unfinished(2, 129.0, None), Unfinished(1, 150.0, None)])
    assert found.phases[1].attainment == 1.0


def test_refused_later_turns_are_misses():
    phase = judged([at(40.0)], refused=[(50.0, 2), (51.0, 3), (52.0, 1), (20.0, 2)]).phases[0]
    assert phase.attainment == pytest.approx(1 / 3) and phase.later_turns == 3
    assert phase.p99_ttft_ms == inf and not phase.hold


def test_the_attainment_of_a_run_is_the_plain_mean_over_phases():
    records = [at(40.0 + n / 10) for n in range(99)] + [at(60.0, ttft_s=3.0)] + [at(150.0), at(151.0, ttft_s=3.0)]
    assert judged(records).attainment == pytest.approx((0.99 + 0.5) / 2)


def test_a_phase_without_later_turns_is_left_out_of_the_mean():
    found = judged([at(150.0), at(151.0, ttft_s=3.0)])
    assert found.phases[0].attainment is None and found.phases[0].local_share is None
    assert found.attainment == 0.5


def test_hold_is_both_percentiles_inside():
    many = [at(40.0 + n / 10) for n in range(99)]
    assert first(*many, at(60.0, ttft_s=9.0, tpot_s=9.0)).hold, "one in a hundred may be slow"
    assert not first(*many, at(60.0, ttft_s=9.0), at(60.1, ttft_s=9.0)).hold
    assert not first(*many, at(60.0, tpot_s=9.0), at(60.1, tpot_s=9.0)).hold


def test_every_phase_has_to_hold():
    good, bad = first(at(40.0)), first(at(40.0, ttft_s=3.0))
    assert RunScore((good, good)).holds_all and not RunScore((good, bad)).holds_all


def test_the_local_share_counts_realised_routes_of_later_turns():
    phase = first(at(40.0), at(41.0), at(42.0), at(43.0, local=False), at(44.0, turn=1, local=False))
    assert phase.local_share == 0.75


def test_other_promises_judge_otherwise():
    loose = replace(SCENARIO, slos=promises(10.0, 1.0))
    assert score(loose, [at(40.0, ttft_s=9.0, tpot_s=0.9)], [], []).attainment == 1.0


# -- goodput and failures ----------------------------------------------------------------------------------------------


def test_goodput_is_answers_in_time_per_judged_second_first_turns_included():
    good = [at(40.0 + n) for n in range(5)] + [at(50.0, turn=1, ttft_s=9.0)]
    late = [at(60.0, ttft_s=2.5), at(61.0, tpot_s=0.050), at(62.0, turn=1, tpot_s=0.050)]
    found = judged([*good, *late])
    assert found.phases[0].goodput_hz == pytest.approx(6 / 70), "70 of 100 s are judged; a first turn has no TTFT SLO"
    assert found.phases[1].goodput_hz == 0.0
    assert found.goodput_hz == pytest.approx(6 / 70 / 2)


def test_failures_are_turns_that_failed_or_were_refused_in_judged_time():
    records = [failed(2, accepted_s=40.0), failed(1, accepted_s=41.0), failed(2, accepted_s=10.0), at(50.0)]
    found = judged(records, refused=[(45.0, 1), (46.0, 3), (5.0, 2), (150.0, 2)])
    assert [phase.failures for phase in found.phases] == [4, 1]
    assert found.failures == 5
