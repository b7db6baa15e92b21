"""One tick as a pure function: estimate → reduce → law → feasibility → proposal → publication.

The scheduler calls it every `TICK_S` seconds, the simulator calls the same function in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from router.core import Waiting
from router.policy import Publication
from slos.reduce import Binding, SloReading, binding

from .cells import Tallies
from .evidence import Evidence
from .feasibility import LONG_KEEP, Feasibility
from .laws.protocol import Action, Law, Sides
from .proposal import Envelope, propose
from .publish import published

TICK_S = 5.0


@dataclass(frozen=True, slots=True)
class Rein:
    """How far a law may go with one model's price in a tick."""

    gain: float = 1.0
    """How much of its step counts; 0: it is not asked, and what is read says nothing about it."""
    low_sigma: float = 0.0
    high_sigma: float = 1.0

    def held(self, sigma: float, wanted: float) -> float:
        """Where it may go from `sigma`. What does not move is not cut."""
        if wanted == sigma:
            return sigma
        reined = wanted if self.gain == 1.0 else sigma + self.gain * (wanted - sigma)
        return min(self.high_sigma, max(self.low_sigma, reined))


FREE = Rein()


@dataclass(frozen=True, slots=True)
class Steering:
    """What the controller remembers of one model between ticks, beside its price."""

    law: Law | None = None
    """As it is by now; None: as it starts."""
    evidence: Evidence = field(default_factory=Evidence)
    """What the law goes by."""
    lasting: Evidence = field(default_factory=Evidence)
    """Of the last minutes: what bounds take."""
    feasibility: Feasibility = field(default_factory=Feasibility)
    sigma: float | None = None
    """Where the price was left. Found elsewhere, an operator or a guard has moved it."""

    def at(self, sigma: float) -> Steering:
        """With the price there: what was seen before a move says less."""
        step = 0.0 if self.sigma is None else sigma - self.sigma
        return replace(self, sigma=sigma, evidence=self.evidence.moved(step))


@dataclass(frozen=True, slots=True)
class ControlState:
    """What the controller remembers between ticks. `law` None means observe only."""

    publication: Publication
    law: Law | None
    """As it starts with a model."""
    envelope: Envelope = field(default_factory=Envelope)
    models: Mapping[str, Steering] = field(default_factory=dict)
    ticks: int = 0


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """One model's tick."""

    readings: tuple[SloReading, ...]
    binding: Binding
    price: float
    action: Action
    feasibility: Feasibility
    sides: Sides = field(default_factory=Sides)
    """What the law went by."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a tick tells the shell: a publication if something changed, and what it saw."""

    publication: Publication | None
    models: Mapping[str, ModelOutput]


def tick(
    state: ControlState,
    tallies: Mapping[str, Tallies],
    waiting: Iterable[Waiting],
    now_s: float,
    engine: Mapping[str, Sequence[SloReading]] | None = None,
    reins: Mapping[str, Rein] = MappingProxyType({}),
) -> tuple[ControlState, Outputs]:
    """Run one tick over the tallies of every model. With `engine` (`control.signal: engine`) the law runs on those
    readings, and holds for a model that has none; the routers' own stay in the output."""
    late = list(waiting)
    policy = state.publication.arms["main"]
    prices = state.envelope.prices
    models = dict(state.models)
    wanted: dict[str, float] = {}
    outputs: dict[str, ModelOutput] = {}
    for model, tally in tallies.items():
        readings = tally.readings(late, now_s)
        driving = readings if engine is None else engine.get(model, ())
        price = policy.weights_for(model).price
        sigma = prices.sigma(price) if 0 < price < float("inf") else (1.0 if price == 0 else 0.0)
        before, rein = models.get(model, Steering()).at(sigma), reins.get(model, FREE)
        law, action, sides = state.law and (before.law or state.law), Action.HOLD, Sides()
        if law is not None and rein.gain > 0:
            evidence = before.evidence.after(driving)
            lasting = before.lasting.after(driving, LONG_KEEP)
            long = lasting.sides(driving)
            sides = evidence.sides(driving).bounded_by(long)
            law, adjustment = law.step(sigma, sides)
            action = adjustment.action
            to = rein.held(sigma, adjustment.sigma)
            ends = (rein.low_sigma, rein.high_sigma)
            feasibility = before.feasibility.after(adjustment.sigma, long, sides, ends)
            if to != sigma:
                wanted[model] = prices.price(to)
            before = Steering(law, evidence, lasting, feasibility, sigma)
        else:
            before = replace(before, feasibility=before.feasibility.unasked())
        models[model] = before
        outputs[model] = ModelOutput(tuple(readings), binding(driving), price, action, before.feasibility, sides)
    publication = None
    if wanted:
        moved = "; ".join(f"{model}: {outputs[model].action.value}" for model in wanted)
        proposal = propose(policy, wanted, state.envelope, f"tick {state.ticks} at {now_s:g} s: {moved}")
        if proposal is not None:
            publication = published(state.publication, proposal)
            for model in wanted:
                models[model] = models[model].at(prices.sigma(proposal.weights_for(model).price))
    next_state = replace(state, publication=publication or state.publication, models=models, ticks=state.ticks + 1)
    return next_state, Outputs(publication, outputs)
