"""The record of an ended turn: what SLOs are judged on, and the route that was realised."""

from __future__ import annotations

import pytest

from router.decision import Decision
from router.placement import Placement
from router.record import TurnRecord
from router.turn import Reason, Route
from slos.objective import Match, Measured, Outcome, Signal, Slo, Verdict, judge
from tests.router.samples import D0, MODEL, P0, features


def record(realised: Route = Route.APPEND_LOCAL, decided: Route = Route.APPEND_LOCAL, **changes) -> TurnRecord:
    values = {
        "request_id": "r1",
        "model": MODEL,
        "turn": 2,
        "streaming": True,
        "accepted_s": 10.0,
        "ended_s": 15.0,
        "features": features(),
        "decision": Decision(decided, Reason.SCORE, 1.0, 1),
        "placement": Placement(None if realised is Route.APPEND_LOCAL else P0, D0, realised),
        "attempts": 1,
        "ttft_s": 0.5,
        "tpot_s": 0.03,
        "e2e_s": 5.0,
        "output_tokens": 150,
        "prompt_tokens": 4100,
        "cached_tokens": 4000,
        "outcome": Outcome.COMPLETED,
    }
    return TurnRecord(**{**values, **changes})


def test_the_realised_route_says_whether_it_went_local_not_the_decided_one():
    assert record(realised=Route.APPEND_LOCAL, decided=Route.PREFILL_TRANSFER).went_local
    assert not record(realised=Route.PREFILL_TRANSFER, decided=Route.APPEND_LOCAL).went_local


def test_it_waited_as_long_as_it_took():
    assert record().waited_s == 5.0


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.GOOD),
        ({"ttft_s": 2.1}, Verdict.BAD),
        ({"turn": 1}, Verdict.EXCLUDED),
        ({"streaming": False}, Verdict.EXCLUDED),
        ({"outcome": Outcome.FAILED}, Verdict.BAD),
        ({"outcome": Outcome.CLIENT_GONE, "ttft_s": None}, Verdict.BAD),
        ({"outcome": Outcome.CLIENT_GONE, "ttft_s": None, "e2e_s": 1.0}, Verdict.EXCLUDED),
    ],
)
def test_an_slo_judges_it_as_it_is(changes, verdict: Verdict):
    measured: Measured = record(**changes)
    assert judge(Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2)), measured) is verdict
