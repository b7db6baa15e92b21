"""`control.signal: engine`: the law runs on the engines' readings, the routers' stay in view."""

import pytest

from controller.cells import Tallies
from controller.laws.aimd import Aimd
from controller.laws.protocol import Action
from controller.tick import ControlState, Outputs, tick
from router.policy import Policy, Publication, Weights
from slos.objective import Signal, Slo
from slos.reduce import SloReading

TTFT = Slo("ttft", Signal.TTFT, 0.99, 2.0)
TPOT = Slo("tpot", Signal.TPOT, 0.99, 0.040)
START = ControlState(Publication(1, {"main": Policy(1, {}, Weights.from_price(0.4))}), Aimd())


def after(engine: dict[str, list[SloReading]] | None) -> Outputs:
    return tick(START, {"m": Tallies("m", (TTFT, TPOT))}, (), 5.0, engine)[1]


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "action"),
    [
        (1.0, 0.060, Action.PROTECT_TPOT),
        (3.0, 0.030, Action.PROTECT_TTFT),
        (3.0, 0.070, Action.PROTECT_TPOT),
        (1.0, 0.030, Action.HOLD),
        (None, None, Action.NO_EVIDENCE),
        (3.0, None, Action.PROTECT_TTFT),
    ],
)
def test_the_law_acts_on_the_engines_readings(ttft_s, tpot_s, action):
    outputs = after({"m": [SloReading(TTFT, ttft_s), SloReading(TPOT, tpot_s)]})
    assert outputs.models["m"].action is action
    assert (outputs.publication is None) is (action in (Action.HOLD, Action.NO_EVIDENCE))


def test_the_routers_readings_stay_in_the_output():
    output = after({"m": [SloReading(TPOT, 0.060)]}).models["m"]
    assert [(row.slo, row.value_s) for row in output.readings] == [(TTFT, None), (TPOT, None)]
    assert output.binding.tpot == SloReading(TPOT, 0.060)


def test_a_model_without_engine_readings_holds():
    assert after({}).models["m"].action is Action.NO_EVIDENCE


def test_without_the_argument_nothing_changes():
    assert after(None) == tick(START, {"m": Tallies("m", (TTFT, TPOT))}, (), 5.0)[1]
