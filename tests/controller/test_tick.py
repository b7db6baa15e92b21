"""One tick: pure, careful without evidence, several SLOs and several models."""

from copy import deepcopy
from dataclasses import replace
from math import exp, log

import pytest

from controller.cells import Tallies
from controller.evidence import REACH
from controller.feasibility import CLEAR, RAISE, Relief
from controller.laws import LAWS
from controller.laws.protocol import Action
from controller.tick import ControlState, Rein, tick
from router.core import Waiting
from router.policy import Policy, Publication, Weights
from slos.objective import Match, Signal, Slo
from tests.controller.records import MODEL, TPOT, TTFT, record

SLOS = (TTFT, TPOT)


def state(price: float = 0.4, law: str | None = "aimd", **policy: object) -> ControlState:
    first = replace(Policy(1, {}, Weights.from_price(price)), **policy)  # type: ignore[arg-type]
    return ControlState(Publication(1, {"main": first}), None if law is None else LAWS[law]())


def tallied(ttft_s: float | None, tpot_s: float | None, model: str = MODEL, slos: tuple[Slo, ...] = SLOS) -> Tallies:
    tallies = Tallies(model, slos)
    for _ in range(100):
        tallies.fold(record(ttft_s=ttft_s, tpot_s=tpot_s, model=model))
    return tallies


def test_a_slow_tpot_raises_the_price():
    after, outputs = tick(state(), {MODEL: tallied(0.5, 0.080)}, (), 5.0)
    assert outputs.publication is not None and outputs.publication is after.publication
    price = outputs.publication.arms["main"].weights_for(MODEL).price
    sigma = log(5 / 0.4) / log(250)
    assert log(price / 0.4) == pytest.approx(0.04 * sigma * log(250))
    assert outputs.models[MODEL].action is Action.PROTECT_TPOT
    assert outputs.models[MODEL].price == pytest.approx(0.4), "the price that decided the turns which were read"


def test_a_slow_ttft_lowers_the_price():
    _, outputs = tick(state(), {MODEL: tallied(5.0, 0.020)}, (), 5.0)
    assert outputs.publication is not None
    price = outputs.publication.arms["main"].weights_for(MODEL).price
    assert log(price / 0.4) == pytest.approx(-0.02 * log(250))


def test_both_inside_publish_nothing():
    before = state()
    after, outputs = tick(before, {MODEL: tallied(0.5, 0.020)}, (), 5.0)
    assert outputs.publication is None and after.publication is before.publication
    assert outputs.models[MODEL].action is Action.HOLD and after.ticks == 1


def test_no_samples_at_all_publish_nothing():
    before = state()
    after, outputs = tick(before, {MODEL: Tallies(MODEL, SLOS)}, (), 5.0)
    assert outputs.publication is None and after.publication is before.publication
    assert outputs.models[MODEL].action is Action.NO_EVIDENCE
    assert [reading.value_s for reading in outputs.models[MODEL].readings] == [None, None]


def test_no_model_is_a_tick_too():
    after, outputs = tick(state(), {}, (), 5.0)
    assert after.ticks == 1 and outputs.publication is None and not outputs.models


def test_the_same_inputs_give_the_same_outputs_and_the_state_is_not_changed():
    before, tallies = state(), tallied(0.5, 0.080)
    waiting = [Waiting(MODEL, 2, True, 9.0)]
    kept = deepcopy(before)
    twin = deepcopy(tallies)
    first = tick(before, {MODEL: tallies}, waiting, 5.0)
    assert before == kept and waiting == [Waiting(MODEL, 2, True, 9.0)]
    assert tick(before, {MODEL: twin}, waiting, 5.0) == first
    assert tick(before, {MODEL: tallies}, waiting, 5.0) == first, "a repeated tick of the same time"


def test_versions_rise_by_one_with_each_publication():
    control, tallies = state(), tallied(0.5, 0.080)
    versions = []
    for at in range(1, 4):
        control, outputs = tick(control, {MODEL: tallies}, (), 5.0 * at)
        assert outputs.publication is not None
        versions.append((outputs.publication.version, outputs.publication.arms["main"].version))
    assert versions == [(2, 2), (3, 3), (4, 4)]
    assert control.publication.arms["main"].provenance == "tick 2 at 15 s: m: protect_tpot"


def test_of_several_slos_of_a_side_the_worst_drives():
    strict = Slo("strict-tpot", Signal.TPOT, 0.5, 0.010)
    itl = Slo("itl", Signal.ITL, 0.99, 1.0)
    _, outputs = tick(state(), {MODEL: tallied(2.2, 0.020, slos=(TTFT, TPOT, itl, strict))}, (), 5.0)
    model = outputs.models[MODEL]
    assert model.binding.tpot is not None and model.binding.tpot.slo is strict
    assert model.action is Action.PROTECT_TPOT and len(model.readings) == 4


def test_two_models_move_on_their_own():
    theirs = (
        Slo("b-ttft", Signal.TTFT, 0.99, 2.0, Match(("b",))),
        Slo("b-tpot", Signal.TPOT, 0.99, 0.04, Match(("b",))),
    )
    slos = (*SLOS, *theirs)
    before = state(model_weights={"b": Weights.from_price(1.0)})
    tallies = {"a": tallied(0.5, 0.080, "a", slos), "b": tallied(5.0, 0.020, "b", slos), "c": tallied(0.5, 0.01, "c")}
    _, outputs = tick(before, tallies, (), 5.0)
    assert outputs.publication is not None
    policy = outputs.publication.arms["main"]
    assert policy.weights_for("a").price > 0.4 and policy.weights_for("b").price < 1.0
    assert policy.weights_for("c").price == pytest.approx(0.4)
    assert policy.provenance == "tick 0 at 5 s: a: protect_tpot; b: protect_ttft"
    alone, _ = tick(before, {"a": tallied(0.5, 0.080, "a", slos)}, (), 5.0)
    assert alone.publication.arms["main"].weights_for("a") == policy.weights_for("a")


def test_without_a_law_it_observes():
    before = state(law=None)
    after, outputs = tick(before, {MODEL: tallied(5.0, 0.080)}, (), 5.0)
    model = outputs.models[MODEL]
    assert outputs.publication is None and after.publication is before.publication
    assert model.action is Action.HOLD and model.binding.ttft is not None and model.feasibility.relief is None
    assert [reading.value_s for reading in model.readings] == [5.0, 0.080]


def test_a_pinned_policy_stays_pinned():
    before = state(pin_x=0.5)
    after, outputs = tick(before, {MODEL: tallied(0.5, 0.080)}, (), 5.0)
    assert outputs.publication is None and after.publication is before.publication


@pytest.mark.parametrize("weights", [Weights(1, 0), Weights(0, 1)])
@pytest.mark.parametrize(("ttft_s", "tpot_s"), [(5.0, 0.020), (0.5, 0.080)])
def test_weights_at_an_end_stay_there(weights, ttft_s, tpot_s):
    _, outputs = tick(state(weights=weights), {MODEL: tallied(ttft_s, tpot_s)}, (), 5.0)
    assert outputs.publication is None
    assert outputs.models[MODEL].price in (0.0, float("inf"))


@pytest.mark.parametrize(
    ("weights", "ttft_s", "tpot_s", "relief"),
    [(Weights(1, 0), 5.0, 0.020, Relief.PREFILL), (Weights(0, 1), 0.5, 0.080, Relief.DECODE)],
)
def test_weights_at_an_end_that_do_not_help_raise_the_flag(weights, ttft_s, tpot_s, relief):
    control = state(weights=weights)
    for at in range(1, RAISE + 1):
        control, outputs = tick(control, {MODEL: tallied(ttft_s, tpot_s)}, (), 5.0 * at)
    assert outputs.models[MODEL].feasibility.relief is relief


def test_waiting_turns_alone_are_evidence():
    late = [Waiting(MODEL, 2, True, 30.0)] * 40
    _, outputs = tick(state(), {MODEL: Tallies(MODEL, SLOS)}, late, 5.0)
    assert outputs.models[MODEL].action is Action.PROTECT_TTFT and outputs.publication is not None


def test_an_slo_that_nothing_can_hold_raises_the_flag_and_leaves_the_price_in_its_range():
    control = state()
    for at in range(1, 400):
        tallies = tallied(0.5, 0.080)
        control, outputs = tick(control, {MODEL: tallies}, (), 5.0 * at)
    assert outputs.models[MODEL].feasibility.relief is Relief.DECODE
    assert 0.02 <= outputs.models[MODEL].price <= 5.0
    for at in range(400, 500):
        control, outputs = tick(control, {MODEL: tallied(0.5, 0.020)}, (), 5.0 * at)
    assert outputs.models[MODEL].feasibility.relief is None


def test_each_model_has_a_flag_of_its_own():
    control = state()
    for at in range(1, RAISE + 1):
        tallies = {"a": tallied(5.0, 0.080, "a"), "b": tallied(0.5, 0.020, "b")}
        control, outputs = tick(control, tallies, (), 5.0 * at)
    assert outputs.models["a"].feasibility.relief is Relief.BOTH
    assert outputs.models["b"].feasibility.relief is None
    assert set(control.models) == {"a", "b"}


def test_a_price_that_somebody_else_moved_discounts_what_was_seen_before():
    after, _ = tick(state(law="z_integral"), {MODEL: tallied(0.5, 0.020)}, (), 5.0)
    seen = after.models[MODEL].evidence.counts[TTFT].valid
    idle, unasked = {MODEL: Tallies(MODEL, SLOS)}, {MODEL: Rein(gain=0.0)}
    policy = after.publication.arms["main"]
    moved = replace(policy, version=2, model_weights={MODEL: Weights.from_price(1.2)})
    by_hand = replace(after, publication=Publication(2, {"main": moved}))
    left, kept = (
        tick(each, idle, (), 10.0, reins=unasked)[0].models[MODEL].evidence.counts for each in (by_hand, after)
    )
    assert kept[TTFT].valid == seen
    assert left[TTFT].valid == pytest.approx(seen * exp(-(log(3) / log(250)) / REACH))


def test_a_law_that_is_not_asked_leaves_no_flag_standing():
    over, held = {MODEL: tallied(9.0, 0.2)}, {MODEL: Rein(gain=0.0)}
    control = state(law="z_integral")
    for at in range(RAISE + 2):
        control, outputs = tick(control, over, (), 5.0 * at)
    assert outputs.models[MODEL].feasibility.relief is Relief.BOTH
    for at in range(CLEAR):
        assert outputs.models[MODEL].feasibility.relief is Relief.BOTH
        control, outputs = tick(control, over, (), 100.0 + 5.0 * at, reins=held)
    assert outputs.models[MODEL].feasibility.relief is None
