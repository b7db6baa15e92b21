"""Turns under another policy: what is as it was stays as measured, and what differs follows from the latency model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller import replay as module
from controller.replay import Compared, Replay
from router.features import TurnFeatures
from router.latency import LatencyModel
from router.policy import Policy, TableKey, Tables, Weights
from router.record import TurnRecord
from router.table import LoadAwareTable
from router.turn import NodeId, Route
from slos.objective import Outcome
from tests.controller.records import FEATURES, MODEL, failed, record

LATENCY = LatencyModel(5.0, 0.001, 12.0, 8.0, 0.05, 1e-7, 0.05, 1e-5, 10.0, 0.01)
TABLES = {TableKey(MODEL, "2P_2D"): Tables(LoadAwareTable.filled(LATENCY), None, "emulated", "d")}
NEVER_LOCAL, ALWAYS_LOCAL = 1e6, 1e-6


def policy(price: float) -> Policy:
    return Policy(1, TABLES, Weights.from_price(price))


def turn(
    accepted_s: float,
    *,
    local: bool = False,
    ttft_s: float = 0.5,
    answered_s: float = 2.0,
    tokens: int = 101,
    attempts: int = 1,
    prompt_tokens: int = 3100,
    **features: object,
) -> TurnRecord:
    """A turn that decodes for `answered_s` at an even pace."""
    model = str(features.get("model", MODEL))
    made = record(ttft_s=ttft_s, tpot_s=answered_s / (tokens - 1), output_tokens=tokens, local=local, model=model)
    return replace(
        made,
        request_id=f"r{accepted_s}",
        accepted_s=accepted_s,
        ended_s=accepted_s + ttft_s + answered_s,
        e2e_s=ttft_s + answered_s,
        attempts=attempts,
        prompt_tokens=prompt_tokens,
        turn=int(str(features.get("turn", 2))),
        features=replace(FEATURES, **features),  # type: ignore[arg-type]
    )


def replayed(price: float, *records: TurnRecord, hold_s: float = 20.0) -> dict[str, Compared]:
    """All of them, given in the order of their ends as routers do."""
    replay = Replay(hold_s)
    found: list[Compared] = []
    for each in sorted(records, key=lambda r: r.ended_s):
        replay.take(each, each.ended_s)
        found += replay.settled(policy(price), each.ended_s)
    found += replay.settled(policy(price), 1e9)
    assert len(replay) == 0
    return {each.record.request_id: each for each in found}


def remote_ms(f: TurnFeatures) -> float:
    return LATENCY.remote_ms(f.uncached_p, f.uncached_d, f.prompt_tokens, f.d_batch)


def local_ms(f: TurnFeatures) -> float:
    return LATENCY.local_ms(f.uncached_d, f.prompt_tokens, f.d_batch)


@pytest.mark.parametrize(("price", "local"), [(NEVER_LOCAL, False), (ALWAYS_LOCAL, True)])
def test_where_the_other_policy_would_have_done_the_same_all_is_as_measured(price: float, local: bool) -> None:
    turns = [turn(i * 0.3, local=local, ttft_s=0.2 + i / 10, uncached_d=100 + i) for i in range(20)]
    for each in replayed(price, *turns).values():
        assert (each.ttft_s, each.tpot_s) == (each.record.ttft_s, each.record.tpot_s)
        assert not each.differs and each.as_record() == each.record


def test_a_turn_that_would_have_gone_local_waits_for_d_instead_of_p() -> None:
    was = turn(0.0, ttft_s=0.9, p_backlog_ms=400.0)
    would = replayed(ALWAYS_LOCAL, was)["r0.0"]
    predicted_ms = 400.0 + remote_ms(was.features)
    assert would.differs and would.route is Route.APPEND_LOCAL
    assert would.predicted == pytest.approx(900.0 / predicted_ms)
    assert would.ttft_s == pytest.approx(0.9 * local_ms(was.features) / predicted_ms)


def test_a_turn_that_would_have_gone_through_p_waits_for_p_instead_of_d() -> None:
    was = turn(0.0, local=True, ttft_s=0.2, d_backlog_ms=50.0)
    would = replayed(NEVER_LOCAL, was)["r0.0"]
    predicted_ms = 50.0 + local_ms(was.features)
    assert would.route is Route.PREFILL_TRANSFER
    assert would.ttft_s == pytest.approx(0.2 * remote_ms(was.features) / predicted_ms)


def test_a_measurement_far_off_the_prediction_does_not_go_along_with_it() -> None:
    was = turn(0.0, ttft_s=80.0, answered_s=1.0)
    would = replayed(ALWAYS_LOCAL, was)["r0.0"]
    assert would.ttft_s == pytest.approx(5.0 * local_ms(was.features) / 1e3)


def test_turns_that_leave_p_make_room_for_the_first_turns_that_stay() -> None:
    ahead = turn(0.0, uncached_p=3000, ttft_s=0.4)
    backlog_ms = LATENCY.prefill_ms(3000, 3100) - 1.0
    first = turn(0.001, turn=1, uncached_p=3100, p_backlog_ms=backlog_ms, ttft_s=0.6)
    would = replayed(ALWAYS_LOCAL, ahead, first)["r0.001"]
    assert would.decision is None and not would.differs, "no policy has a say in a first turn"
    assert would.ttft_s == pytest.approx(0.6 * remote_ms(first.features) / (backlog_ms + remote_ms(first.features)))


def test_a_turn_that_goes_to_p_goes_to_the_one_with_the_least_work_there() -> None:
    """With the first two gone, either P is idle."""
    turns = [turn(0.0, uncached_p=3000), turn(0.001, prefill=NodeId("P1"), uncached_p=3000)]
    busy = turn(0.002, turn=1, prefill=NodeId("P1"), uncached_p=3100, p_backlog_ms=170.0)
    freed = replayed(ALWAYS_LOCAL, *turns, busy)["r0.002"]
    assert freed.ttft_s is not None and busy.ttft_s is not None and freed.ttft_s < busy.ttft_s


def test_a_conversation_that_would_have_stayed_local_leaves_p_with_less_of_it() -> None:
    """The second turn would have been local, so P would lack what it brought: the third is dearer there, and goes
    local at a price at which it would not have gone if P had seen all."""
    second = turn(0.0, n_ctx=3000, n_in=3000, uncached_d=3000, uncached_p=3000, prompt_tokens=6000, tokens=101)
    third = turn(10.0, turn=3, n_ctx=6101, n_in=50, uncached_d=400, uncached_p=151, p_backlog_ms=0.0)
    alone, with_history = (LATENCY.saved_ms(400, lacks, 6151, 4) for lacks in (151, 3151))
    cost = LATENCY.cost(400, 6151, 4)
    price = (alone + with_history) / 2 / cost
    assert second.features.uncached_p and LATENCY.saved_ms(3000, 3000, 6000, 4) > 0
    # At that price the second turn goes through P by itself; a long queue there sends it to D.
    queued = replace(second, features=replace(second.features, p_backlog_ms=1e6))
    assert replayed(price, third)["r10.0"].route is Route.PREFILL_TRANSFER
    assert replayed(price, queued, third)["r10.0"].route is Route.APPEND_LOCAL


def test_a_local_prompt_stalls_the_turns_that_decode_on_its_d_meanwhile_and_no_others() -> None:
    beside = turn(0.0, turn=1, answered_s=5.0, tokens=251)
    elsewhere = turn(0.1, turn=1, answered_s=5.0, tokens=251, decode=NodeId("D1"))
    elsewhere = replace(elsewhere, placement=replace(elsewhere.placement, decode=NodeId("D1")))
    over = turn(-9.0, turn=1, answered_s=5.0, tokens=251)
    append = turn(2.0, uncached_d=2000, uncached_p=2900)
    found = replayed(ALWAYS_LOCAL, beside, elsewhere, over, append)
    stall_ms = LATENCY.stall_ms(2000, 3100, 4)
    assert beside.tpot_s is not None
    assert found["r0.0"].tpot_s == pytest.approx(beside.tpot_s + stall_ms / 1e3 / 250)
    assert found["r0.1"].tpot_s == elsewhere.tpot_s and found["r-9.0"].tpot_s == over.tpot_s
    assert found["r2.0"].tpot_s == append.tpot_s, "its own prompt is its TTFT"


def test_stalls_that_would_not_have_been_are_taken_off() -> None:
    beside = turn(0.0, turn=1, answered_s=5.0, tokens=251)
    append = turn(2.0, local=True, uncached_d=2000, ttft_s=0.15)
    would = replayed(NEVER_LOCAL, beside, append)["r0.0"]
    assert would.tpot_s == pytest.approx(beside.tpot_s - LATENCY.stall_ms(2000, 3100, 4) / 1e3 / 250)  # type: ignore[operator]


def test_turns_are_replayed_in_the_order_in_which_they_came_though_they_end_in_another() -> None:
    """The long answer began first, and its prompt is what the other turn queued behind."""
    long = turn(0.0, answered_s=12.0, uncached_p=3000)
    backlog_ms = LATENCY.prefill_ms(3000, 3100)
    short = turn(0.01, turn=1, answered_s=0.5, uncached_p=3100, p_backlog_ms=backlog_ms)
    in_order = replayed(ALWAYS_LOCAL, long, short)["r0.01"]
    too_early = replayed(ALWAYS_LOCAL, long, short, hold_s=0.0)["r0.01"]
    assert in_order.ttft_s is not None and too_early.ttft_s == short.ttft_s
    assert in_order.ttft_s < 0.5


def test_nothing_is_given_out_before_the_turns_that_began_before_its_end_are_there() -> None:
    replay = Replay(hold_s=20.0)
    replay.take(turn(0.0), 2.5)
    assert not list(replay.settled(policy(ALWAYS_LOCAL), 22.0))
    assert len(list(replay.settled(policy(ALWAYS_LOCAL), 23.0))) == 1


def test_a_turn_without_a_table_is_as_it_was_and_told() -> None:
    replay = Replay()
    was = turn(0.0, model="another")
    replay.take(was, 3.0)
    (found,) = replay.settled(policy(ALWAYS_LOCAL), 1e9)
    assert found.as_record() == was and found.decision is None and not found.has_table


def test_what_failed_or_was_tried_twice_is_no_matter_of_the_policy() -> None:
    gone = replace(failed(outcome=Outcome.FAILED), request_id="gone")
    again = turn(1.0, attempts=2, ttft_s=3.0)
    found = replayed(ALWAYS_LOCAL, gone, again)
    assert found["gone"].ttft_s is None
    assert found["r1.0"].ttft_s == 3.0 and found["r1.0"].decision is None


def test_replicas_and_turns_that_must_stay_are_not_decided() -> None:
    turns = [turn(0.0, replica=True, local=True), turn(1.0, local_only=True, local=True)]
    turns.append(turn(2.0, prefill=None, local=True))
    assert all(each.decision is None and not each.differs for each in replayed(NEVER_LOCAL, *turns).values())


def test_memory_is_bounded_however_many_turns_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 50)
    monkeypatch.setattr(module, "MAX_CONVERSATIONS", 10)
    monkeypatch.setattr(module, "MAX_STALLS", 30)
    replay, given = Replay(), 0
    for i in range(300):
        replay.take(turn(i / 1000, prompt_tokens=3000 + i, uncached_d=500), i / 1000)
        given += len(list(replay.settled(policy(ALWAYS_LOCAL), i / 1000)))
    assert len(replay) <= 100 and given == 300 - len(replay)
    assert len(replay._would.held) <= 10 and len(replay._was.held) <= 10
    assert 0 < len(replay._would.stalls[NodeId("D0")]) <= 30
