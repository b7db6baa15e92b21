"""One tick as a pure function: estimate → reduce → law → feasibility → proposal → publication.

The scheduler calls it every `TICK_S` seconds, the simulator calls the same function in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from router.core import Waiting
from router.policy import Publication
from slos.reduce import Binding, SloReading, binding

from .cells import Tallies
from .feasibility import Feasibility
from .laws.protocol import Action, Law
from .proposal import Envelope, propose
from .publish import published

TICK_S = 5.0


@dataclass(frozen=True, slots=True)
class ControlState:
    """What the controller remembers between ticks. `law` None means observe only."""

    publication: Publication
    law: Law | None
    envelope: Envelope = field(default_factory=Envelope)
    feasibility: Mapping[str, Feasibility] = field(default_factory=dict)
    ticks: int = 0


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """One model's tick."""

    readings: tuple[SloReading, ...]
    binding: Binding
    price: float
    action: Action
    feasibility: Feasibility


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
) -> tuple[ControlState, Outputs]:
    """Run one tick over the tallies of every model. With `engine` (`control.signal: engine`) the law runs on those
    readings, and holds for a model that has none; the routers' own stay in the output."""
    late = list(waiting)
    policy = state.publication.arms["main"]
    prices = state.envelope.prices
    wanted: dict[str, float] = {}
    outputs: dict[str, ModelOutput] = {}
    feasibility = dict(state.feasibility)
    for model, tally in tallies.items():
        readings = tally.readings(late, now_s)
        worst = binding(readings if engine is None else engine.get(model, ()))
        price = policy.weights_for(model).price
        sigma = prices.sigma(price) if 0 < price < float("inf") else (1.0 if price == 0 else 0.0)
        action = Action.HOLD
        watch = feasibility.get(model, Feasibility())
        if state.law is not None:
            adjustment = state.law.step(sigma, worst)
            action = adjustment.action
            watch = watch.after(adjustment.sigma, worst)
            if adjustment.sigma != sigma:
                wanted[model] = prices.price(adjustment.sigma)
        feasibility[model] = watch
        outputs[model] = ModelOutput(tuple(readings), worst, price, action, watch)
    publication = None
    if wanted:
        moved = "; ".join(f"{model}: {outputs[model].action.value}" for model in wanted)
        proposal = propose(policy, wanted, state.envelope, f"tick {state.ticks} at {now_s:g} s: {moved}")
        if proposal is not None:
            publication = published(state.publication, proposal)
    next_state = replace(
        state, publication=publication or state.publication, feasibility=feasibility, ticks=state.ticks + 1
    )
    return next_state, Outputs(publication, outputs)
