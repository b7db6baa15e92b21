"""What a process takes up from an earlier one, so that a restart moves no price: the prices, and by model the bounds,
held weights, safety states and what laws have learnt, which are a document of the store.

Left out: evidence, what is watched of a change, and the moves of a price; both are of minutes, and begin anew.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from router.policy import Policy, Publication, Weights

from .config import ControlConfig
from .guard import Guard, Guards
from .laws.protocol import PriceRange
from .moves import Moves
from .safety import Safety
from .stored import Restored

log = logging.getLogger("trimtab.control")

DOCUMENT = "guards"
MAX_MODELS = 64
"""Names come and go over restarts. Those that an operator ordered something for stay, then the latest."""


@dataclass(frozen=True, slots=True)
class _Model:
    safety: Safety
    bounds: PriceRange
    held: bool
    clips: int
    since_s: float
    law: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """By model."""

    guards: Guards = field(default_factory=dict)
    since_s: Mapping[str, float] = field(default_factory=dict)
    """Wall time of the last change of the safety state."""
    laws: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What each model's law must not forget."""


def to_json(kept: Kept) -> str:
    """As it is stored."""
    models = {
        name: _Model(
            replace(guard.safety, moves=Moves()),
            guard.bounds,
            guard.held,
            guard.clips,
            kept.since_s.get(name, 0.0),
            kept.laws.get(name, {}),
        )
        for name, guard in kept.guards.items()
    }
    return msgspec.json.encode(models).decode()


def from_json(text: str | None) -> Kept:
    """What an earlier process left; nothing, where that cannot be read. Never raises."""
    if not text:
        return Kept()
    try:
        models = msgspec.json.decode(text, type=dict[str, _Model])
    except (msgspec.MsgspecError, ValueError) as error:
        log.error("what was kept of bounds and held weights cannot be read, so there are none: %s", error)
        return Kept()
    default = PriceRange()
    order = sorted(models, key=lambda name: (models[name].held or models[name].bounds != default, models[name].since_s))
    models = {name: models[name] for name in order[-MAX_MODELS:]}
    guards = {
        name: Guard(replace(each.safety, silent=0, busy=False), each.bounds, each.held, each.clips)
        for name, each in models.items()
    }
    return Kept(
        guards,
        {name: each.since_s for name, each in models.items()},
        {name: each.law for name, each in models.items()},
    )


def first_publication(config: ControlConfig, restored: Restored, held: Collection[str] = ()) -> Publication:
    """What a process starts with: the configuration, and the prices that an earlier process left, a version higher.
    Weights without a price between 0 and infinity are an operator's: they stay for models that are `held`."""
    stored = restored.publication
    version = 1 if stored is None else stored.version + 1
    kept: dict[str, Weights] = {}
    if stored is not None and stored.mode == config.mode:
        kept = {
            model: weights
            for model, weights in stored.weights.items()
            if 0 < weights.price < float("inf") or model in held
        }
    policy = Policy(
        version,
        dict(config.tables),
        Weights.from_price(config.start_price),
        model_weights=kept,
        mode=config.mode,
        pin_x=config.pin_x,
        without_table_tokens=config.without_table_tokens,
        provenance="start" if stored is None else f"start, with the prices of version {stored.version}",
    )
    return Publication(version, {"main": policy})
