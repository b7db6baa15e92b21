"""The guard around a tick: bounds, ways home, changes taken back; and what it must never do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cells import Tallies
from controller.commands import bounds, resume, weights
from controller.feasibility import Feasibility
from controller.guard import ULPS, Around, Guard, Guarded, guarded
from controller.laws.aimd import Aimd
from controller.laws.protocol import Action, Adjustment, PriceRange, Sides
from controller.safety import HOME_TICKS, Safety, State, Why
from controller.tick import ControlState, tick
from controller.watch import Misses
from router.policy import ANY_MODEL, Policy, Publication, TableKey, Weights
from tests.controller.records import MODEL, TPOT, TTFT, record
from tests.router.samples import tables

SLOS = (TTFT, TPOT)
BUSY = Around(busy=frozenset({MODEL}))
BAD = replace(BUSY, misses={MODEL: {"tpot": Misses(0.01, 50, 25)}})
FINE = replace(BUSY, misses={MODEL: {"tpot": Misses(0.01, 50, 0)}})


class Push:
    """A law that always wants to go one way, by so much."""

    def __init__(self, by: float) -> None:
        self.by = by

    def step(self, sigma: float, sides: Sides) -> tuple[Push, Adjustment]:
        return self, Adjustment(min(1.0, max(0.0, sigma + self.by)), Action.HOLD)

    @property
    def memory(self) -> Mapping[str, float]:
        return {}

    def remembering(self, memory: Mapping[str, float]) -> Push:
        return self


class Site:
    """One model under a guard, tick by tick."""

    def __init__(self, price: float = 0.4, law: object = None, model: str = MODEL) -> None:
        policy = Policy(1, {TableKey(ANY_MODEL, "2P_2D"): tables()}, Weights.from_price(0.4))
        if price != 0.4:
            policy = replace(policy, model_weights={model: Weights.from_price(price)})
        self.control = ControlState(Publication(1, {"main": policy}), law or Aimd())  # type: ignore[arg-type]
        self.guards: dict[str, Guard] = {}
        self.tallies = {model: Tallies(model, SLOS)}
        self.model, self.now_s = model, 0.0
        self.notes: list[str] = []

    @property
    def guard(self) -> Guard:
        return self.guards.get(self.model, Guard())

    @property
    def policy(self) -> Policy:
        return self.control.publication.arms["main"]

    @property
    def price(self) -> float:
        return self.policy.weights_for(self.model).price

    def tick(self, around: Around = BUSY, turns: int = 30, **answer: float) -> Guarded:
        for _ in range(turns):
            self.tallies[self.model].fold(record(model=self.model, **answer))  # type: ignore[arg-type]
        self.now_s += 5.0
        done = guarded(self.control, self.guards, self.tallies, (), self.now_s, around)
        self.control, self.guards = done.control, dict(done.guards)
        self.notes += [f"{note.action} {note.detail}" for note in done.notes]
        return done

    def order(self, command: object) -> None:
        self.guards[self.model] = command.guard  # type: ignore[attr-defined]
        if command.policy is not None:  # type: ignore[attr-defined]
            version = self.control.publication.version + 1
            self.control = replace(self.control, publication=Publication(version, {"main": command.policy}))  # type: ignore[attr-defined]

    @property
    def now(self) -> tuple[Guard, Policy, str]:
        return self.guard, self.policy, self.model


def test_while_nothing_is_wrong_a_guarded_tick_is_a_tick():
    site = Site()
    other, twin = site.control, Tallies(MODEL, SLOS)
    for at in range(1, 12):
        answer = {"tpot_s": 0.08} if at < 6 else {"ttft_s": 5.0}
        for _ in range(30):
            twin.fold(record(**answer))  # type: ignore[arg-type]
        other, outputs = tick(other, {MODEL: twin}, (), 5.0 * at)
        done = site.tick(BUSY, 30, **answer)
        assert done.control == other and done.outputs == outputs
    assert site.notes == ["state offline (starting) -> active (running)"]


def test_each_transition_is_noted_once_with_its_reasons():
    site = Site()
    for around in (*[BUSY] * 2, *[replace(BUSY, pinned=True)] * 2, *[BUSY] * 5):
        site.tick(around)
    assert site.notes == [
        "state offline (starting) -> active (running)",
        "state active (running) -> pinned (pinned)",
        "state pinned (pinned) -> hold (settling)",
        "state hold (settling) -> active (running)",
    ]


def test_no_law_leaves_the_bounds_of_its_model():
    for by in (0.05, -0.05):
        site = Site(law=Push(by))
        site.tick()
        site.order(bounds(*site.now, 0.2, 0.9, PriceRange()))
        for _ in range(60):
            site.tick()
            assert 0.2 * (1 - ULPS) <= site.price <= 0.9 * (1 + ULPS)
        assert site.price == pytest.approx(0.2 if by > 0 else 0.9) and site.guard.clips == 0


def test_a_price_outside_its_bounds_is_clipped_and_counted():
    site = Site(price=3.0)
    site.tick()
    site.order(bounds(*site.now, 0.2, 0.9, PriceRange()))
    done = site.tick()
    assert site.price == pytest.approx(0.9) and done.outputs.publication is not None
    assert site.guard.clips == 1 and site.notes[-1] == "clip price 3 -> 0.9, for the bounds"
    site.tick()
    assert site.guard.clips == 1, "rounding is no reason to do it again"


def test_missing_samples_freeze_the_price_and_then_send_it_home_inside_the_bounds():
    site = Site(price=2.0)
    for _ in range(3):
        site.tick()
    site.order(bounds(*site.now, 0.5, None, PriceRange()))
    prices = []
    for _ in range(30):
        site.tick(turns=0)
        prices.append(site.price)
    assert prices[:12] == [pytest.approx(2.0)] * 12 and site.guard.safety.reason is Why.STALE
    assert prices[12] < 2.0 and prices[12 + HOME_TICKS - 1 :] == [pytest.approx(0.5)] * (18 - HOME_TICKS + 1)
    version = site.control.publication.version
    assert version == 1 + HOME_TICKS or version == HOME_TICKS, "one publication a step, none at home"


def test_a_change_that_goes_far_over_is_taken_back_to_the_last_bit():
    site = Site(price=0.3)
    site.tick(FINE)
    before = site.policy.model_weights
    site.order(weights(*site.now, Weights.from_price(4.0), False))
    assert site.price == pytest.approx(4.0)
    site.tick(BAD)
    assert site.price == pytest.approx(4.0), "these turns were decided before"
    site.tick(BAD)
    assert site.policy.model_weights == before and site.guard.safety.reason is Why.REVERTED
    assert [note.split()[0] for note in site.notes[-2:]] == ["revert", "state"]
    for _ in range(4):
        site.tick(BAD, tpot_s=0.02)
    assert site.guard.safety.state is State.ACTIVE and site.price == pytest.approx(0.3)


def test_so_are_bounds_held_weights_and_weights_where_there_were_none():
    site = Site()
    site.tick(FINE)
    site.order(weights(*site.now, Weights(1.0, 0.0), True))
    for _ in range(2):
        site.tick(BAD)
    assert not site.policy.model_weights and not site.guard.held
    site = Site()
    site.tick(FINE)
    site.order(bounds(*site.now, 2.0, 3.0, PriceRange()))
    for _ in range(2):
        site.tick(BAD)
    assert site.guard.bounds == PriceRange() and not site.policy.model_weights


def test_a_change_is_not_blamed_for_what_was_so_before_nor_after_a_minute():
    site = Site()
    for _ in range(3):
        site.tick(BAD)
    site.order(weights(*site.now, Weights.from_price(4.0), True))
    for _ in range(3):
        site.tick(BAD)
    assert site.price == pytest.approx(4.0)
    site = Site()
    site.tick(FINE)
    site.order(weights(*site.now, Weights.from_price(4.0), True))
    for _ in range(14):
        site.tick(FINE)
    site.tick(BAD)
    assert site.price == pytest.approx(4.0) and site.guard.watch is None


def test_a_second_change_within_the_minute_goes_back_to_before_the_first():
    site = Site(price=0.3)
    site.tick(FINE)
    for price in (3.0, 4.0):
        site.order(weights(*site.now, Weights.from_price(price), False))
        site.tick(FINE)
    site.tick(BAD)
    assert site.price == pytest.approx(0.3)


def test_held_weights_stay_whatever_they_are_until_resume():
    for wanted in (Weights(1.0, 0.0), Weights(0.0, 1.0), Weights.from_price(20.0)):
        site = Site(law=Push(0.05))
        site.tick()
        site.order(weights(*site.now, wanted, True))
        for _ in range(20):
            site.tick()
        assert site.policy.weights_for(MODEL) == wanted and site.guard.safety.reason is Why.SET_BY_HAND
        site.order(resume(*site.now))
        site.tick()
        assert site.price == pytest.approx(0.02 if wanted.price < 1 else 5.0), "the law goes on from the nearest bound"


def test_weights_without_hold_have_to_be_a_price_that_a_law_can_go_on_from():
    site = Site()
    for wanted in (Weights(1.0, 0.0), Weights(0.0, 1.0), Weights.from_price(20.0)):
        with pytest.raises(ValueError, match="hold it, or widen the bounds first"):
            weights(*site.now, wanted, False)
    with pytest.raises(ValueError, match=r"not within 0\.02\.\.5"):
        bounds(*site.now, 0.001, None, PriceRange())
    with pytest.raises(ValueError, match="low < high"):
        bounds(*site.now, 3.0, 0.5, PriceRange())


def test_half_steps_are_half_steps():
    site = Site(law=Push(0.01))
    site.tick()
    site.guards[MODEL] = replace(site.guard, safety=replace(site.guard.safety, damped=10))
    before = site.price
    site.tick()
    assert log(before / site.price) == pytest.approx(0.005 * log(250))


def test_models_are_guarded_one_by_one():
    site = Site(law=Push(0.01))
    site.tallies["other"] = Tallies("other", SLOS)
    site.guards["other"] = Guard(held=True)
    done = site.tick()
    assert list(done.outputs.models) == [MODEL, "other"] and done.control.ticks == 1
    assert site.price < 0.4 and site.policy.weights_for("other").price == 0.4
    assert done.outputs.models["other"].feasibility == Feasibility(), "nobody judges what nobody moves"


def test_a_model_that_no_table_knows_is_offline():
    site = Site()
    bare = replace(site.policy, tables={TableKey("another", "2P_2D"): tables()})
    site.control = replace(site.control, publication=Publication(1, {"main": bare}))
    site.tick(tpot_s=0.09)
    assert site.guard.safety.reason is Why.NO_TABLE and site.price == 0.4


AROUND = st.builds(
    Around,
    routers=st.booleans(),
    pinned=st.booleans(),
    stalled=st.booleans(),
    heard=st.booleans(),
    observing=st.booleans(),
    busy=st.just(frozenset({MODEL})),
    misses=st.sampled_from((BAD.misses, FINE.misses, {})),
)
STEPS = st.tuples(AROUND, st.sampled_from((0, 30)), st.sampled_from((0.02, 0.09)), st.sampled_from((0.5, 5.0)))


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=30), st.floats(0.02, 5.0), st.sampled_from((0.05, -0.05, 0.3)))
def test_a_guarded_price_stays_in_its_bounds_and_nothing_is_published_under_a_pin_or_in_the_shadow(
    steps: Iterable[tuple[Around, int, float, float]], price: float, by: float
):
    site = Site(price, law=Push(by))
    site.guards[MODEL] = Guard(Safety(), PriceRange(0.1, 1.0))
    for around, turns, tpot_s, ttft_s in steps:
        done = site.tick(around, turns, tpot_s=tpot_s, ttft_s=ttft_s)
        quiet = site.guard.safety.state in (State.PINNED, State.SHADOW, State.OFFLINE, State.HOLD)
        assert not quiet or done.outputs.publication is None
        if site.guard.safety.state in (State.ACTIVE, State.FALLBACK_HOME):
            assert 0.1 * (1 - ULPS) <= site.price <= 1.0 * (1 + ULPS)
        assert 0 < site.price < inf
