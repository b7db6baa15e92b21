"""The loop: ticks publish, pins and stalls hold, restarts move nothing, pollers wake up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from controller.loop import ControlLoop, TooManyPollers
from controller.safety import State, Why
from controller.store import Store
from controller.table_drift import LEARN, LEAST_TURNS
from controller.tick import Outputs
from estimators.drift import Drift
from router.policy import Weights
from slos.counts import Count
from slos.objective import Signal, Slo
from slos.policy import Declaration
from slos.reduce import SloReading
from slos.revisions import revision
from tests.controller.records import TPOT
from tests.controller_shell.reports import SLOS, Clock, drive, loop_in, report, turns

SLOW_D = turns(100, tpot_s=0.08)
SLOW_P = turns(100, ttft_s=4.0)


def price(loop: ControlLoop) -> float:
    return loop.policy.weights_for("m").price


def test_a_tick_over_the_tpot_slo_publishes_a_higher_price_and_one_over_the_ttft_slo_a_lower_one(
    tmp_path: Path,
) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 3, lambda seq: report(seq, records=SLOW_D, version=loop.publication.version))
    assert price(loop) > 0.4 and loop.publication.version == 4
    high = price(loop)
    drive(loop, clock, 8, lambda seq: report(seq, records=SLOW_P, version=loop.publication.version), 4)
    assert price(loop) < high
    assert loop.safety.state is State.ACTIVE
    assert loop.policy.version == loop.publication.version


def test_inside_both_slos_nothing_is_published(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 5, lambda seq: report(seq, records=turns()))
    assert loop.publication.version == 1 and price(loop) == pytest.approx(0.4)


def test_without_a_law_the_readings_are_shown_and_the_price_stays(tmp_path: Path) -> None:
    for changes in ({"law": None}, {"mode": "paper"}, {"mode": "paper", "law": None}):
        loop, clock = loop_in(tmp_path, **changes)
        drive(loop, clock, 3, lambda seq: report(seq, records=SLOW_D))
        assert loop.safety.state is State.SHADOW
        assert price(loop) == pytest.approx(0.4)
        binding = loop.outputs["m"].binding
        assert binding.tpot is not None and binding.tpot.value_s == 0.08


def test_a_pin_holds_the_price_and_the_law_starts_on_fresh_readings_after_it(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 2, lambda seq: report(seq, records=turns()))
    drive(loop, clock, 10, lambda seq: report(seq, records=SLOW_D, pin_x=1.0), 3)
    states = [loop.safety.state]
    assert price(loop) == pytest.approx(0.4)
    for seq in range(13, 18):
        drive(loop, clock, 1, lambda s: report(s, records=turns()), seq)
        states.append(loop.safety.state)
    assert states == [State.PINNED, *[State.HOLD] * 3, *[State.ACTIVE] * 2]
    assert price(loop) == pytest.approx(0.4), "what was measured under the pin must not move the price"


def test_one_pinned_router_of_two_holds_the_price(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    for seq in range(1, 5):
        loop.accept(report(seq, router="a", pin_x=0.0), clock())
        drive(loop, clock, 1, lambda s: report(s, router="b", records=SLOW_D), seq)
    assert loop.safety.state is State.PINNED and price(loop) == pytest.approx(0.4)


def test_the_pin_of_a_router_that_fell_silent_does_not_hold_for_ever(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    loop.accept(report(1, router="gone", pin_x=0.0), clock())
    drive(loop, clock, 8, lambda seq: report(seq, records=turns(), router="b"))
    assert loop.safety.state is State.ACTIVE


def test_a_configured_pin_is_published_and_holds(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path, pin_x=0.0)
    drive(loop, clock, 3, lambda seq: report(seq, records=SLOW_D))
    assert loop.policy.pin_x == 0.0 and loop.safety.state is State.PINNED and loop.publication.version == 1


def test_no_router_means_hold(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    clock.advance(5)
    loop.tick(clock())
    assert loop.safety.state is State.OFFLINE
    drive(loop, clock, 2, lambda seq: report(seq, records=SLOW_D))
    moved = price(loop)
    for _ in range(6):
        clock.advance(5)
        loop.tick(clock())
    assert loop.safety.state is State.OFFLINE
    assert abs(price(loop) / moved - 1) < 0.5


def test_ticks_that_come_twice_count_once(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    loop.accept(report(1, records=SLOW_D), clock())
    assert loop.tick(clock.advance(5)) is not None
    assert loop.tick(clock.advance(0.5)) is None
    assert loop.ticks == 1


def test_after_a_stall_there_is_one_tick_and_the_price_is_held_for_a_window(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 2, lambda seq: report(seq, records=turns()))
    clock.advance(60)
    assert loop.late(clock())
    loop.accept(report(3, records=SLOW_D), clock())
    loop.tick(clock())
    assert not loop.late(clock())
    assert loop.safety.reason is Why.STALLED and loop.stalls == 1 and price(loop) == pytest.approx(0.4)


def test_a_restart_continues_at_the_same_price_with_a_higher_version(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 4, lambda seq: report(seq, records=SLOW_D, version=loop.publication.version))
    loop.store.flush(clock())
    loop.store.close(clock())
    again, _ = loop_in(tmp_path, clock)
    assert again.continued
    assert again.policy.weights_for("m") == loop.policy.weights_for("m")
    assert again.publication.version == loop.publication.version + 1
    assert again.policy.version == again.publication.version
    assert "prices of version" in again.policy.provenance


def test_a_changed_rule_without_a_table_is_in_force_after_a_restart_and_the_prices_stay(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    assert loop.policy.without_table_tokens == 1536
    drive(loop, clock, 4, lambda seq: report(seq, records=SLOW_D, version=loop.publication.version))
    assert loop.policy.without_table_tokens == 1536, "a law that moves the price keeps the rest"
    loop.store.close(clock())
    again, _ = loop_in(tmp_path, clock, without_table_tokens=0)
    assert again.continued and again.publication.version == loop.publication.version + 1
    assert again.policy.without_table_tokens == 0
    assert again.policy.weights_for("m") == loop.policy.weights_for("m")


def test_counts_go_on_after_a_restart(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    loop.accept(report(1, counts={"tpot": Count(100, 3)}), clock())
    loop.save_counts()
    loop.store.close(clock())
    again, _ = loop_in(tmp_path, clock)
    again.accept(report(2, counts={"tpot": Count(120, 4)}), clock())
    assert again.intake.counts()["tpot"] == Count(120, 4)


def test_a_router_ahead_of_this_process_is_overtaken_at_its_own_prices(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    loop.accept(report(1, version=57, prices={"m": 0.123, "": 9.0}), clock())
    assert loop.publication.version == 58 and loop.policy.version == 58
    assert price(loop) == pytest.approx(0.123)
    assert loop.policy.weights.price == pytest.approx(0.4), "the default is the configuration's"
    loop.accept(report(2, version=58, prices={"m": 0.123}), clock())
    assert loop.publication.version == 58 and loop.jumps == 1


def test_a_publication_that_was_not_stored_before_a_crash_is_taken_back_from_the_router(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    loop.accept(report(1, version=1, prices={"m": 0.3}), clock())
    assert loop.publication.version == 2 and price(loop) == pytest.approx(0.3)
    # Once met, a router's word on prices no longer counts: what it acts on came from here.
    loop.accept(report(2, version=2, prices={"m": 0.2}), clock())
    assert loop.publication.version == 2 and price(loop) == pytest.approx(0.3)


def test_a_router_that_agrees_or_says_nothing_of_prices_changes_nothing(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path, start_price=8.0)  # outside of what the law may set: an operator's choice
    loop.accept(report(1, version=1, prices={"m": 8.0}), clock())
    loop.accept(report(1, router="b", version=1), clock())
    assert loop.publication.version == 1


def test_a_stored_price_of_another_mode_is_not_taken_up(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 2, lambda seq: report(seq, records=SLOW_D))
    loop.store.close(clock())
    again, _ = loop_in(tmp_path, clock, mode="paper", start_price=1.0)
    assert again.policy.weights_for("m") == Weights(1.0, 1.0)
    assert again.publication.version > loop.publication.version - 1


def test_a_poller_gets_what_is_newer_at_once_and_waits_for_what_is_not(tmp_path: Path) -> None:
    async def scene() -> None:
        loop, clock = loop_in(tmp_path)
        assert await loop.newer(0, 5.0) is loop.publication
        assert await loop.newer(1, 0.02) is None
        waiting = [asyncio.create_task(loop.newer(1, 5.0)) for _ in range(3)]
        await asyncio.sleep(0)
        assert loop.pollers == 3
        loop.accept(report(1, records=SLOW_D), clock())
        loop.tick(clock.advance(5))
        found = await asyncio.wait_for(asyncio.gather(*waiting), 1.0)
        assert [p.version if p else None for p in found] == [2, 2, 2]
        assert loop.pollers == 0

    asyncio.run(scene())


def test_pollers_are_let_go_at_the_end_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        loop, _ = loop_in(tmp_path)
        monkeypatch.setattr("controller.loop.MAX_POLLERS", 1)
        waiting = asyncio.create_task(loop.newer(1, 5.0))
        await asyncio.sleep(0)
        with pytest.raises(TooManyPollers):
            await loop.newer(1, 5.0)
        loop.close()
        assert await asyncio.wait_for(waiting, 1.0) is None

    asyncio.run(scene())


def test_observers_see_every_tick_and_cannot_stop_it(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    seen: list[tuple[float, Outputs, Count]] = []
    loop.observers.append(lambda now_s, outputs, counts: 1 / 0)  # type: ignore[arg-type]
    loop.observers.append(lambda now_s, outputs, counts: seen.append((now_s, outputs, counts["tpot"])))
    drive(loop, clock, 2, lambda seq: report(seq, records=turns(), counts={"tpot": Count(100 * seq, 0)}))
    assert [(now_s, count.valid) for now_s, _, count in seen] == [(1005.0, 100), (1010.0, 200)]
    assert seen[0][1].models["m"].price == pytest.approx(0.4)
    assert loop.observer_errors == 2


def test_readings_of_the_engines_drive_the_law_where_they_are_asked_for(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    loop.engine = lambda: {"m": [SloReading(TPOT, 0.09)]}
    drive(loop, clock, 1, lambda seq: report(seq, records=turns()))
    assert price(loop) > 0.4


def test_every_tick_leaves_a_row_per_model_with_the_turns_of_that_tick(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(60) + turns(40, local=False)))
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(10)), 2)
    first, second = loop.store.series(0.0)
    assert (first.turns, first.later_turns, first.local_turns) == (100, 100, 60)
    assert (second.turns, second.local_turns) == (10, 10)
    assert first.ttft_s == 0.5 and first.ttft_slo_s == 2.0 and first.tpot_slo_s == 0.04
    assert first.price == pytest.approx(0.4) and first.state == "active"


def test_a_store_that_cannot_write_does_not_stop_ticks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store._db.close()
    clock = Clock()
    loop, _ = loop_in(tmp_path, clock, store)
    drive(loop, clock, 3, lambda seq: report(seq, records=SLOW_D))
    assert not store.flush(clock())
    assert loop.publication.version == 4 and store.problem


def test_another_declaration_takes_the_place_of_the_old_one_between_two_ticks(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 4, lambda seq: report(seq, records=turns(30), counts={"tpot": Count(30 * seq, seq)}))
    slower = replace(SLOS[1], threshold_s=9.0)
    more = Slo("more", Signal.SUCCESS, 0.99, None)
    told: list[Declaration] = []

    def wrong(declaration: Declaration) -> None:
        raise RuntimeError("an observer")

    loop.redeclared += [wrong, told.append]
    loop.redeclare(Declaration((SLOS[0], slower, more)))
    assert told == [Declaration((SLOS[0], slower, more))]
    assert loop.observer_errors == 1
    assert loop.intake.counts() == {"later-ttft": Count(), "tpot": Count(), "more": Count()}
    loop.accept(report(5, records=turns(30), counts={"more": Count(3, 1)}), clock())
    clock.advance(loop.config.tick_s)
    outputs = loop.tick(clock())
    assert outputs is not None
    readings = {each.slo.name: each for each in outputs.models["m"].readings}
    assert readings["later-ttft"].value_s is not None, "its window went on"
    assert readings["tpot"].slo.threshold_s == 9.0
    loop.save_counts()
    loop.store.flush(clock())
    assert loop.store.restore((SLOS[0], slower, more)).counts["more"] == Count(3, 1)


def test_the_ledger_follows_a_reload_and_a_meaning_that_comes_back_goes_on_where_it_was(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    tight = replace(SLOS[0], threshold_s=0.5)

    def after(seq: int, count: Count, meant: Slo) -> Count:
        """All slices of the first SLO, after one more report."""
        drive(
            loop,
            clock,
            1,
            lambda n: report(n, counts={meant.name: count}, revisions={meant.name: revision(meant)}),
            seq,
        )
        return sum((each for _, each in loop.ledgers.history(meant.name).rows()), Count())

    assert after(1, Count(10, 1), SLOS[0]) == Count(), "a boot older than this process: where counting starts"
    assert after(2, Count(30, 3), SLOS[0]) == Count(20, 2)
    loop.redeclare(Declaration((tight, SLOS[1])))
    assert after(3, Count(5, 5), tight) == Count(5, 5), "another budget"
    loop.redeclare(Declaration(SLOS))
    assert after(4, Count(40, 3), SLOS[0]) == Count(30, 2), "its own slices, and the ten turns since"


def test_latencies_that_leave_the_table_are_on_record_and_move_no_price(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path, law=None)
    drive(loop, clock, LEARN + 5, lambda seq: report(seq, records=turns(LEAST_TURNS)))
    assert loop.table_drift.drifted() == ()
    slow = turns(LEAST_TURNS, ttft_s=1.0)
    drive(loop, clock, 20, lambda seq: report(seq, records=slow), LEARN + 6)
    (drifted,) = loop.table_drift.drifted()
    assert (drifted.model, drifted.drift) == ("m", Drift.SLOWER) and drifted.at_s <= clock()
    (row,) = [row for row in loop.store.audits() if row.action == "table_drift"]
    assert "m: local turns have become slower" in row.detail and "trimtab calibrate" in row.detail
    assert loop.publication.version == 1
    loop.store.close(clock())
    again, _ = loop_in(tmp_path, clock, law=None)
    assert again.table_drift.drifted() == (drifted,), "a restart forgets neither the drift nor what was learnt"
