"""The guard around a tick: the same code in the control process and in the simulator.

    before the tick   every model's signs -> its safety state -> whether the law is asked, how much of its step counts
    the tick          `tick`, for models that may not move without a law
    after it          a price outside its bounds is clipped, a fallback goes its way home, a failed change is taken back

What a law wants is cut to the model's bounds before it is proposed, so no law leaves them. Bounds lie within the
controller's own range of prices (`Envelope`), whose coordinate laws move on. Weights set by hand and held are bound by
nothing. Under a pin, in SHADOW and OFFLINE nothing is published.

Models are ticked in groups that share a law: one `tick` as a rule, two where one of several models is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from router.core import Waiting
from router.policy import ANY_MODEL, Policy, Weights
from slos.reduce import Binding, SloReading

from .cells import Tallies
from .laws.protocol import Adjustment, Law, PriceRange
from .moves import balance
from .proposal import ordered
from .publish import published
from .safety import Safety, Signs, Why
from .tick import ControlState, ModelOutput, Outputs, tick
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


@dataclass(frozen=True, slots=True)
class Steered:
    """A law within limits: so much of its step, and no further than the bounds."""

    law: Law
    gain: float
    sigmas: tuple[float, float]

    def step(self, sigma: float, binding: Binding) -> Adjustment:
        """One tick of the law. What does not move is not cut: that is the clip's business, and counted."""
        adjustment = self.law.step(sigma, binding)
        if adjustment.sigma == sigma:
            return adjustment
        whole = self.gain == 1.0
        wanted = adjustment.sigma if whole else sigma + self.gain * (adjustment.sigma - sigma)
        low, high = self.sigmas
        return replace(adjustment, sigma=min(high, max(low, wanted)))


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
    late, law, before = list(waiting), control.law, control.publication
    policy, at_tick = before.arms["main"], control.ticks
    found = {model: _judged(guards.get(model, Guard()), policy, tally, law, around) for model, tally in tallies.items()}
    outputs: dict[str, ModelOutput] = {}
    for steered, models in _groups(found, policy, law, control.envelope.prices):
        group = {model: tallies[model] for model in models}
        ticked, seen = tick(replace(control, law=steered), group, late, now_s, engine)
        control, outputs = replace(ticked, law=law, ticks=at_tick), {**outputs, **seen.models}
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
    control = replace(control, publication=publication, ticks=at_tick + 1)
    told = Outputs(None if publication is before else publication, {model: outputs[model] for model in tallies})
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


def _groups(found: Guards, policy: Policy, law: Law | None, prices: PriceRange) -> list[tuple[Law | None, list[str]]]:
    """Models by the law that they are ticked with; one group without models, for a tick is a tick. A price outside its
    bounds is clipped first and moved by the law from there."""
    groups: dict[tuple[float, PriceRange] | None, list[str]] = {}
    for model, guard in found.items():
        moves = guard.safety.may_move and law is not None and not guard.outside(policy.weights_for(model).price)
        groups.setdefault((guard.safety.gain, guard.bounds) if moves else None, []).append(model)
    laws: list[tuple[Law | None, list[str]]] = []
    for limits, models in groups.items():
        if limits is None or law is None:
            laws.append((None, models))
        else:
            gain, bounds = limits
            laws.append((Steered(law, gain, (prices.sigma(bounds.high), prices.sigma(bounds.low))), models))
    return laws or [(None, [])]


def _turned(model: str, before: Safety, now: Safety) -> list[Note]:
    """The transition, if it is one."""
    if (before.state, before.reason) == (now.state, now.reason):
        return []
    return [Note(model, "state", f"{before.state} ({before.reason}) -> {now.state} ({now.reason})")]
