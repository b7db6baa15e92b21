"""Rows from records: the same for the simulator's and for engines', and true where the router had to guess."""

from dataclasses import replace

import pytest

from emulator.profiles import LLAMA_3_1_8B_H100
from router.record import TurnRecord
from router.turn import NodeId
from slos.objective import Outcome
from trimtab import phase1
from trimtab.cells import Window
from trimtab.rows import ArmRun, arm, lacked, step_row, ttft_rows
from trimtab.workloads import Workload


@pytest.fixture(scope="module")
def run() -> ArmRun:
    """An arm of virtual time, x = 1."""
    workload = Workload((128, 128), "mid_paste")
    return phase1._run(LLAMA_3_1_8B_H100, "1P_2D", workload, 4.0, 1, 0, Window(60, 30.0))


def of_turn(run: ArmRun, turn: int) -> TurnRecord:
    return next(record for record in run.records if record.turn == turn)


def misjudged(record: TurnRecord, by: int) -> TurnRecord:
    """The same turn as a router knows it that took the newest message for `by` tokens longer."""
    f = record.features
    return replace(
        record,
        features=replace(f, n_in=f.n_in + by, uncached_d=f.uncached_d + by, uncached_p=f.uncached_p + by),
    )


@pytest.mark.parametrize("by_engine", [False, True])
@pytest.mark.parametrize("by", [0, 40, -40])
def test_what_a_turn_lacked_does_not_depend_on_what_the_router_took_its_message_for(run, by, by_engine):
    for turn in (1, 2):
        record = of_turn(run, turn)
        assert lacked(misjudged(record, by), by_engine) == lacked(record, False)


def test_what_the_engine_says_it_cached_counts_where_it_says_so(run):
    local = replace(of_turn(run, 2), cached_tokens=0)
    assert local.went_local
    assert lacked(local, True)[0] == local.prompt_tokens
    assert lacked(local, False)[0] < local.prompt_tokens
    assert lacked(replace(local, cached_tokens=None), True) == lacked(local, False)


def test_what_p_cached_is_no_news_of_d(run):
    first = replace(of_turn(run, 1), cached_tokens=64)
    assert not first.went_local
    uncached_d, uncached_p, prompt = lacked(first, True)
    assert (uncached_d, uncached_p) == (prompt, prompt - 64)


def moved(run: ArmRun, by_s: float) -> ArmRun:
    """The same arm at another time of the day."""
    records = [replace(r, accepted_s=r.accepted_s + by_s, ended_s=r.ended_s + by_s) for r in run.records]
    unfinished = [replace(u, accepted_s=u.accepted_s + by_s) for u in run.unfinished]
    return replace(run, records=records, unfinished=unfinished, start_s=run.start_s + by_s, end_s=run.end_s + by_s)


def test_rows_do_not_depend_on_when_the_arm_began(run):
    later = moved(run, 1000.0)
    assert arm(later) == arm(run) and ttft_rows(later, 20) == ttft_rows(run, 20)
    one, two = step_row(run), step_row(later)
    assert one is not None and two is not None
    for name in ("batch", "context", "append_hz", "tpot_ms"):
        assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-6)


def test_turns_that_ended_after_the_cut_count_for_the_batch_and_not_for_the_cell(run):
    cut = len(run.records) * 2 // 3
    early = replace(run, records=run.records[:cut], drained=run.records[cut:])
    whole, parted = step_row(run), step_row(early)
    assert parted == whole
    assert arm(early).n < arm(run).n


def test_failed_and_repeated_turns_are_no_ttft_rows(run):
    rows = ttft_rows(run, 1000)
    spoilt = [
        replace(r, attempts=2) if at % 2 else replace(r, outcome=Outcome.FAILED) for at, r in enumerate(run.records)
    ]
    assert rows and ttft_rows(replace(run, records=spoilt), 1000) == []


def test_rows_are_spread_over_the_arm(run):
    few, many = ttft_rows(run, 8), ttft_rows(run, 1000)
    assert len(few) == 8 < len(many) and few[0] == many[0]
    assert few[1] == many[len(many) // 8]


def test_nodes_do_not_matter_but_their_number_does(run):
    elsewhere = [replace(r, placement=replace(r.placement, decode=NodeId("D9"))) for r in run.records]
    assert step_row(replace(run, records=elsewhere)) == step_row(run)
    alone = step_row(replace(run, decode_nodes=1))
    both = step_row(run)
    assert alone is not None and both is not None
    assert alone.batch - 1 == pytest.approx(2 * (both.batch - 1))


def test_a_backlog_on_p_spoils_a_local_turn_only_where_turns_are_cheap(run):
    busy_p = [replace(r, features=replace(r.features, p_backlog_ms=50.0, d_backlog_ms=0.0)) for r in run.records]
    busy_d = [replace(r, features=replace(r.features, p_backlog_ms=0.0, d_backlog_ms=50.0)) for r in run.records]
    assert ttft_rows(replace(run, records=busy_p), 1000) == []
    live = ttft_rows(replace(run, records=busy_p, by_engine=True), 1000)
    assert live and all(row.local for row in live)
    assert ttft_rows(replace(run, records=busy_d, by_engine=True), 1000) == []
