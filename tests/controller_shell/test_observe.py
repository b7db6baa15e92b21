"""Observe mode in a running loop: the law in shadow moves, what is published does not, and the estimate is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controller.loop import ControlLoop
from controller.observe import Shadow
from controller.observe_status import SPECS, join
from controller.pin import PinFile
from controller.safety import State
from controller.status import status
from router.record import TurnRecord
from router.wire import publication_to_wire
from slos.policy import Declaration
from tests.controller.records import TPOT, TTFT
from tests.controller.test_replay import TABLES, turn
from tests.controller_shell.reports import Clock, drive, loop_in, report

DOCUMENTS = {"d": "{}"}


def slow_p(at_s: float) -> tuple[TurnRecord, ...]:
    """Turns that wait for P, where D could have taken them for little."""
    return tuple(turn(at_s + i / 10, ttft_s=3.0, p_backlog_ms=2000.0, uncached_d=64) for i in range(40))


def observing(folder: Path) -> tuple[ControlLoop, Clock, Shadow, CollectorRegistry]:
    loop, clock = loop_in(folder, tables=TABLES, documents=DOCUMENTS, pin_x=0.0, observe=True)
    registry = CollectorRegistry()
    return loop, clock, join(loop, registry.register), registry


def fed(loop: ControlLoop, clock: Clock, ticks: int = 12) -> None:
    drive(loop, clock, ticks, lambda seq: report(seq, records=slow_p(clock())))


def test_what_is_published_is_to_the_byte_what_the_pin_publishes(tmp_path: Path) -> None:
    loop, clock, shadow, _ = observing(tmp_path / "a")
    pinned, at = loop_in(tmp_path / "b", tables=TABLES, documents=DOCUMENTS, pin_x=0.0)
    fed(loop, clock)
    fed(pinned, at)
    assert shadow.observed("m", clock()).differing > 100, "the law in shadow would have done something else"
    told, wanted = (json.dumps(publication_to_wire(each.publication, DOCUMENTS)) for each in (loop, pinned))
    assert told == wanted
    assert loop.publications == pinned.publications == 1
    assert loop.policy.pin_x == 0.0 and loop.safety.state is State.SHADOW


def test_the_status_tells_both_sides_and_that_one_is_an_estimate(tmp_path: Path) -> None:
    loop, clock, _, _ = observing(tmp_path)
    fed(loop, clock)
    document = json.loads(json.dumps(status(loop, PinFile(), "x"), allow_nan=False))
    observed = document["observe"]
    assert observed["label"].startswith("estimate") and observed["acts_as"] == {"pin_x": 0.0}
    model = observed["models"]["m"]
    assert model["ttft"]["acted"]["value_s"] == 3.0 > model["ttft"]["shadow"]["value_s"]
    ttft = next(each for each in model["slos"] if each["slo"] == TTFT.name)
    assert ttft["missed"]["acted"] == ttft["turns"] > 0 == ttft["missed"]["shadow"]
    assert model["differing_share"] == 1.0
    assert "(estimate)" in model["headline"] and "another way" in model["headline"]
    assert "overloaded" in [each["caution"] for each in model["cautions"]]
    assert "nothing that the law comes to is acted upon" in document["headline"]


def test_before_any_turn_there_is_a_section_and_no_model(tmp_path: Path) -> None:
    loop, clock, _, _ = observing(tmp_path)
    loop.tick(clock.advance(5.0))
    assert status(loop, PinFile(), "x")["observe"]["models"] == {}  # type: ignore[index]


def test_metrics_tell_the_price_in_shadow_and_both_sides(tmp_path: Path) -> None:
    loop, clock, shadow, registry = observing(tmp_path)
    fed(loop, clock)
    names = {sample.name for family in registry.collect() for sample in family.samples}
    assert names == {spec.name + ("_total" if spec.kind == "counter" else "") for spec in SPECS}
    page = generate_latest(registry).decode()
    assert 'trimtab_observe_exceedance_ratio{model="m",policy="acted",slo="later-ttft"} 1.0' in page
    assert 'trimtab_observe_exceedance_ratio{model="m",policy="shadow",slo="later-ttft"} 0.0' in page
    price = registry.get_sample_value("trimtab_observe_price", {"model": "m"})
    assert price == pytest.approx(shadow.policy.weights_for("m").price)


def test_a_shadow_that_goes_wrong_costs_no_report_and_no_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, clock, shadow, _ = observing(tmp_path)

    def wrong(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(shadow, "take", wrong)
    monkeypatch.setattr(shadow, "tick", wrong)
    fed(loop, clock, 2)
    assert loop.ticks == 2 and loop.observer_errors == 4
    assert loop.intake.tallies["m"].turns == 80


def test_a_report_that_comes_twice_is_compared_once(tmp_path: Path) -> None:
    loop, clock, shadow, _ = observing(tmp_path)
    for _ in range(2):
        loop.accept(report(1, records=slow_p(clock())), clock())
    loop.tick(clock.advance(60.0))
    assert shadow.observed("m", clock()).turns == 40


def test_other_slos_are_followed(tmp_path: Path) -> None:
    loop, clock, shadow, _ = observing(tmp_path)
    fed(loop, clock, 2)
    loop.redeclare(Declaration((replace(TPOT, name="other"),)))
    fed(loop, clock, 12)
    assert [each.slo.name for each in shadow.observed("m", clock()).misses] == ["other"]


def test_observing_needs_something_to_act_as(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set pin_x"):
        loop_in(tmp_path, observe=True)
