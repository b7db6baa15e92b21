"""The guard around a tick: the same code in the control process and in the simulator.

    before the tick   every model's signs -> its safety state -> the rein: whether the law is asked, how much of its
                      step counts, and its bounds
    the tick          `tick`
    after it          a price outside its bounds is clipped, a fallback goes its way home, a failed change is taken back

What a law wants is cut to the model's bounds before it is proposed, so no law leaves them. Bounds lie within the
controller's own range of prices (`Envelope`), whose coordinate laws move on. Weights set by hand and held are bound by
nothing. Under a pin, in SHADOW and OFFLINE nothing is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from router.core import Waiting
from router.policy import ANY_MODEL, Policy, Weights
from slos.reduce import SloReading

from .cells import Tallies
from .laws.protocol import Law, PriceRange
from .moves import balance
from .proposal import ordered
from .publish import published
from .safety import Safety, Signs, Why
from .tick import ControlState, Outputs, Rein, Steering, tick
from .watch import KEPT, BySlo, Watch, added

ULPS = 1e-9
"""Relative; a price has been through a logarithm and two weights."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What is kept of one model beside its price."""

    safety: Safety = field(default_factory=Safety)
    bounds: PriceRange = field(default_factory=PriceRange)
    held: bool = False
    """An operator set the weights to stay."""
    clips: int = 0
    """Prices that were outside the bounds."""
    turns: int = 0
    """Of the model's tally at the last tick."""
    balance: float | None = None
    past: BySlo = field(default_factory=dict)
    """Misses of the last ticks, discounted."""
    watch: Watch | None = None
    changed: bool = False
    """An operator changed the price since the last tick."""

    def clipped(self, price: float) -> float:
        """The nearest price inside the bounds."""
        return min(self.bounds.high, max(self.bounds.low, price))

    def outside(self, price: float) -> bool:
        """More than rounding explains."""
        return not self.bounds.low * (1 - ULPS) <= price <= self.bounds.high * (1 + ULPS)


Guards = Mapping[str, Guard]


@dataclass(frozen=True, slots=True)
class Around:
    """What is so around a tick, of all models."""

    routers: bool = True
    pinned: bool = False
    stalled: bool = False
    heard: bool = True
    """A report came since the last tick."""
    observing: bool = False
    busy: frozenset[str] = frozenset()
    """Models that have turns in flight."""
    misses: Mapping[str, BySlo] = field(default_factory=dict)
    """By model, what was judged since the last tick."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the audit."""

    model: str
    action: str
    detail: str


@dataclass(frozen=True, slots=True)
class Guarded:
    """A tick and what the guard made of it."""

    control: ControlState
    guards: Guards
    outputs: Outputs
    notes: tuple[Note, ...] = ()


def guarded(
    control: ControlState,
    guards: Guards,
    tallies: Mapping[str, Tallies],
    waiting: Iterable[Waiting],
    now_s: float,
    around: Around,
    engine: Mapping[str, Sequence[SloReading]] | None = None,
) -> Guarded:
    """One guarded tick."""
    law, before = control.law, control.publication
    policy, at_tick = before.arms["main"], control.ticks
    found = {model: _judged(guards.get(model, Guard()), policy, tally, law, around) for model, tally in tallies.items()}
    reins = {
        model: _rein(guard, policy.weights_for(model).price, control.envelope.prices) for model, guard in found.items()
    }
    control, seen = tick(_known(control, guards), tallies, waiting, now_s, engine, reins)
    outputs = seen.models
    after: dict[str, Guard] = dict(guards)
    wanted: dict[str, Weights | None] = {}
    notes: list[Note] = []
    for model, guard in found.items():
        guard = replace(guard, balance=balance(outputs[model].binding))
        correction = _correction(guard, control.publication.arms["main"].weights_for(model).price)
        if correction is not None:
            guard, wanted[model] = correction.guard, correction.weights
            notes += [Note(model, *correction.note)] if correction.note else []
        notes += _turned(model, guards.get(model, Guard()).safety, guard.safety)
        after[model] = guard
    publication = control.publication
    corrected = ordered(publication.arms["main"], wanted, f"tick {at_tick} at {now_s:g} s: guard")
    if corrected is not None:
        publication = published(publication, corrected)
    control = replace(control, publication=publication)
    told = Outputs(None if publication is before else publication, outputs)
    return Guarded(control, after, told, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Correction:
    """A model's price has to be another one, whatever its law wants."""

    guard: Guard
    weights: Weights | None
    """None: the default ones."""
    note: tuple[str, str] | None = None
    """Action and detail."""


def _correction(guard: Guard, price: float) -> _Correction | None:
    """After the tick: a failed change goes back, a fallback one step on, a stray price into its bounds."""
    target, back = guard.safety.target_price, guard.watch
    if guard.safety.reason is Why.REVERTED and back is not None:
        restored = replace(guard, bounds=back.bounds, held=back.held, watch=None)
        why = f"{back.what}: taken back, for far more turns missed their SLO"
        return _Correction(restored, back.weights, ("revert", why))
    if target is not None:
        target = guard.clipped(target)
        near = abs(target - price) <= ULPS * price
        return None if near else _Correction(guard, Weights.from_price(target))
    if guard.safety.may_move and guard.outside(price):
        inside = guard.clipped(price)
        why = f"price {price:.6g} -> {inside:.6g}, for the bounds"
        return _Correction(replace(guard, clips=guard.clips + 1), Weights.from_price(inside), ("clip", why))
    return None


def _judged(guard: Guard, policy: Policy, tally: Tallies, law: Law | None, around: Around) -> Guard:
    """One model before the tick: its state, and what is watched."""
    model, misses = tally.model, around.misses.get(tally.model, {})
    steered = law is not None and around.routers and not (around.pinned or around.observing)
    watch = guard.watch.after(misses) if guard.watch is not None and steered else None
    failed = watch is not None and watch.failed
    signs = Signs(
        price=policy.weights_for(model).price,
        home_price=policy.weights.price,
        turns=max(0, tally.turns - guard.turns),
        in_flight=model in around.busy,
        balance=guard.balance,
        heard=around.heard,
        routers=around.routers,
        table=any(key.model in (model, ANY_MODEL) for key in policy.tables),
        law=law is not None,
        observing=around.observing,
        pinned=around.pinned or policy.pin_x is not None,
        held=guard.held,
        stalled=around.stalled,
        changed=guard.changed,
        reverted=failed,
    )
    return replace(
        guard,
        safety=guard.safety.after(signs),
        turns=tally.turns,
        past=added(guard.past, misses, KEPT) if misses else guard.past,
        watch=watch,
        changed=False,
    )


def _rein(guard: Guard, price: float, prices: PriceRange) -> Rein:
    """How far the law may go: not at all, or within the bounds. A price outside them is clipped first, and moved from
    there."""
    if not guard.safety.may_move or guard.outside(price):
        return Rein(gain=0.0)
    return Rein(guard.safety.gain, prices.sigma(guard.bounds.high), prices.sigma(guard.bounds.low))


def _known(control: ControlState, guards: Guards) -> ControlState:
    """Laws take a price that an operator has set for one that is right."""
    models = dict(control.models)
    for model, guard in guards.items():
        price = control.publication.arms["main"].weights_for(model).price
        before = models.get(model, Steering())
        law = before.law or control.law
        if guard.changed and law is not None and 0 < price < inf:
            memory = {"home": control.envelope.prices.sigma(price), "proven": 1.0}
            models[model] = replace(before, law=law.remembering(memory))
    return replace(control, models=models)


def _turned(model: str, before: Safety, now: Safety) -> list[Note]:
    """The transition, if it is one."""
    if (before.state, before.reason) == (now.state, now.reason):
        return []
    return [Note(model, "state", f"{before.state} ({before.reason}) -> {now.state} ({now.reason})")]
