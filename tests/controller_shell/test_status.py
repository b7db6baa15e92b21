"""The headline and the promises, in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.feasibility import RAISE
from controller.loop import ControlLoop
from controller.pin import PinFile
from controller.status import headline, problems, seconds, status
from controller.table_drift import LEARN, LEAST_TURNS
from slos.objective import Match, Signal, Slo
from slos.promise import promise
from tests.controller_shell.reports import drive, loop_in, report, turns


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        (Slo("a", Signal.TTFT, 0.99, 2.0, Match(turn_min=2)), "99 % of later turns: TTFT at most 2 s"),
        (Slo("a", Signal.TPOT, 0.999, 0.04), "99.9 % of turns: TPOT at most 40 ms"),
        (Slo("a", Signal.SUCCESS, 0.995, None), "99.5 % of turns succeed"),
        (Slo("a", Signal.TTFT, 0.95, 1.0, Match(turn_max=1)), "95 % of first turns: TTFT at most 1 s"),
        (Slo("a", Signal.E2E, 0.9, 30.0, Match(("x", "y*"), 3, 5)), "90 % of turns 3 to 5 of x, y*: E2E at most 30 s"),
        (Slo("a", Signal.ITL, 0.9, 0.1, Match(streaming=True)), "90 % of streaming turns: ITL at most 100 ms"),
    ],
)
def test_an_slo_as_a_sentence(slo: Slo, told: str) -> None:
    assert promise(slo) == told


def test_times_for_people() -> None:
    assert [seconds(x) for x in (0.0385, 0.9999, 1.234, None, float("inf"))] == [
        "38.5 ms",
        "1 s",
        "1.23 s",
        "unknown",
        "never answered",
    ]


def test_the_headline_follows_the_state(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    assert headline(loop, clock()) == "No router has reported yet."
    loop.accept(report(1), clock())
    assert headline(loop, clock()) == "Waiting for the first turns."
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(5)), 2)
    assert headline(loop, clock()) == "Too few turns in the last ticks to say; price 0.4."
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(50)), 3)
    assert headline(loop, clock()) == "Both SLOs hold; price 0.4."
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(50, tpot_s=0.05)), 4)
    told = headline(loop, clock())
    assert told.startswith("P99 TPOT is over its SLO (50 ms > 40 ms); the price rises and less goes local; price 0.4")
    drive(loop, clock, 1, lambda seq: report(seq, pin_x=0.0), 5)
    assert headline(loop, clock()) == "Pinned: all later turns go through a prefill node (x=0). The price is held."
    clock.advance(20)
    assert headline(loop, clock()).startswith("No router reports any more")


def test_what_cannot_be_held_is_said_with_what_would_help(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    both = turns(100, ttft_s=9.0, tpot_s=0.2)
    drive(loop, clock, RAISE + 1, lambda seq: report(seq, records=both, version=loop.publication.version))
    assert headline(loop, clock()).startswith("No price holds both SLOs: lower the load, add prefill and decode")
    assert "cannot be held by routing" in " ".join(problems(loop, PinFile(), clock()))


def test_with_several_models_the_worst_one_is_named(tmp_path: Path) -> None:
    from dataclasses import replace

    loop, clock = loop_in(tmp_path)
    slow = tuple(replace(record, model="slow") for record in turns(50, ttft_s=3.0))
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(50) + slow))
    assert headline(loop, clock()).startswith("slow: P99 TTFT is over its SLO")


def test_without_a_table_the_headline_says_what_decides(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path, tables={}, documents={}, without_table_tokens=700)
    rule = "later turns go local if D lacks at most 700 tokens"
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(50)))
    assert headline(loop, clock()) == f"Both SLOs hold; {rule}."
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(50, tpot_s=0.05)), 2)
    assert headline(loop, clock()).endswith(f"no table knows this model, so no price decides its turns; {rule}.")


def test_a_side_without_an_slo_is_told(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path, slos=(Slo("tpot", Signal.TPOT, 0.99, 0.04),))
    drive(loop, clock, 1, lambda seq: report(seq, records=turns(50)))
    assert "no TTFT SLO is declared" in " ".join(problems(loop, PinFile(), clock()))


def test_a_table_that_no_longer_describes_the_fleet_is_a_warning_that_says_what_to_do(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, LEARN + 5, lambda seq: report(seq, records=turns(LEAST_TURNS)))
    (local, transferred) = model_of(loop)["table"]
    assert local["drifted"] is None and local["residual_log"] == local["reference_log"]
    assert transferred["residual_log"] is None
    drive(loop, clock, 20, lambda seq: report(seq, records=turns(LEAST_TURNS, ttft_s=1.0)), LEARN + 6)
    (told,) = [text for text in problems(loop, PinFile(), clock()) if "trimtab calibrate" in text]
    assert told.startswith("m: since 1970-01-01T00:2") and "local turns take" in told
    assert model_of(loop)["table"][0]["drifted"]["direction"] == "slower"


def model_of(loop: ControlLoop) -> dict[str, Any]:
    models = status(loop, PinFile(), "1")["models"]
    assert isinstance(models, dict)
    return dict(models["m"])
