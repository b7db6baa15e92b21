"""From adjustments to a candidate policy: slew limit, price envelope, exploration floor; and from an order to one.
Nothing else may change a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, log

from router.policy import Policy, Weights

from .laws.protocol import PriceRange


@dataclass(frozen=True, slots=True)
class Envelope:
    """Limits of what the controller may publish. An operator's own weights are not bound by them."""

    prices: PriceRange = field(default_factory=PriceRange)
    max_ln_step: float = 0.25
    """Most that ln p moves in one tick; the default law's own steps stay below it."""
    explore: float = 0.0
    """Share of trade-off turns that take the other side, so that both sides stay measured. Off until cells
    are learnt online."""

    def limited(self, price: float, wanted: float) -> float:
        """The price that may be published when `wanted` is asked for at `price`."""
        step = max(-self.max_ln_step, min(self.max_ln_step, log(wanted / price)))
        return min(self.prices.high, max(self.prices.low, price * exp(step)))


def propose(policy: Policy, wanted_prices: Mapping[str, float], envelope: Envelope, provenance: str) -> Policy | None:
    """The next policy, or None if nothing changes. A pinned policy, or weights without a finite price, are
    left alone."""
    if policy.pin_x is not None:
        return None
    weights = dict(policy.model_weights)
    for model, wanted in wanted_prices.items():
        price = policy.weights_for(model).price
        if not 0 < price < float("inf"):
            continue
        limited = envelope.limited(price, wanted)
        if limited != price:
            weights[model] = Weights.from_price(limited)
    if weights == policy.model_weights and policy.explore == envelope.explore:
        return None
    return replace(
        policy,
        version=policy.version + 1,
        model_weights=weights,
        explore=envelope.explore,
        provenance=provenance,
    )


def ordered(policy: Policy, wanted: Mapping[str, Weights | None], provenance: str) -> Policy | None:
    """The next policy with exactly these weights by model (None: the default ones decide again), or None if nothing
    changes. For an operator's weights, a way home, and a change that is taken back: neither slew limit nor envelope."""
    weights = {model: each for model, each in policy.model_weights.items() if wanted.get(model, each) is not None}
    weights |= {model: each for model, each in wanted.items() if each is not None}
    if weights == policy.model_weights:
        return None
    return replace(policy, version=policy.version + 1, model_weights=weights, provenance=provenance)
