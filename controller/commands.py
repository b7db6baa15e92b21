"""What an operator may order of one model's price: bounds, weights by hand, and that the controller goes on.

A command is worked out here, from what is, into what has to be; the loop carries it out. Every one says from what to
what, for the audit. Raises ValueError with what to do where it cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.policy import Policy, Weights

from .guard import Guard
from .laws.protocol import PriceRange
from .proposal import ordered
from .watch import Watch


@dataclass(frozen=True, slots=True)
class Command:
    """One model after an operator's word."""

    model: str
    guard: Guard
    policy: Policy | None
    """To be published; None if no price changes."""
    action: str
    detail: str


def bounds(
    guard: Guard, policy: Policy, model: str, low: float | None, high: float | None, within: PriceRange
) -> Command:
    """Other bounds; None leaves one as it is. A price outside goes to the nearer one with the next tick."""
    wanted = PriceRange(guard.bounds.low if low is None else low, guard.bounds.high if high is None else high)
    if not (within.low <= wanted.low and wanted.high <= within.high):
        raise ValueError(
            f"bounds {_range(wanted)} are not within {_range(within)}, the prices that the controller may set at all; "
            "to have another price, set the weights and hold them"
        )
    detail = f"bounds {_range(guard.bounds)} -> {_range(wanted)}"
    watched = _watched(guard, policy, model, detail)
    return Command(model, replace(guard, bounds=wanted, watch=watched), None, "bounds", detail)


def weights(guard: Guard, policy: Policy, model: str, wanted: Weights, hold: bool) -> Command:
    """Other weights at once. The law goes on from them, or with `hold` they stay until `resume`."""
    if not hold and guard.outside(wanted.price):
        raise ValueError(
            f"price {wanted.price:g} is not within the bounds {_range(guard.bounds)}, so no law can go on from there: "
            "hold it, or widen the bounds first"
        )
    before = policy.weights_for(model)
    detail = f"{_weights(before)}{_held(guard.held)} -> {_weights(wanted)}{_held(hold)}"
    changed = replace(guard, held=hold, changed=True, watch=_watched(guard, policy, model, detail))
    return Command(
        model, changed, ordered(policy, {model: wanted}, f"weights set by hand: {detail}"), "weights", detail
    )


def resume(guard: Guard, policy: Policy, model: str) -> Command:
    """The controller goes on: weights are held no longer, and no hold or fallback is waited out."""
    safety = guard.safety
    now = replace(guard, safety=safety.resumed(), held=False)
    price = policy.weights_for(model).price
    detail = f"{safety.state} ({safety.reason}){_held(guard.held)} -> going on from price {price:.6g}"
    return Command(model, now, None, "resume", detail)


def _watched(guard: Guard, policy: Policy, model: str, what: str) -> Watch | None:
    """What to take back, unless things went as badly before. Of changes in a row the first one counts."""
    if any(each.far_over for each in guard.past.values()):
        return None
    if guard.watch is not None:
        return replace(guard.watch, what=what, age=0, misses=None)
    return Watch(policy.model_weights.get(model), guard.bounds, guard.held, what)


def _range(bounds: PriceRange) -> str:
    return f"{bounds.low:g}..{bounds.high:g}"


def _weights(weights: Weights) -> str:
    return f"price {weights.price:.6g} (w_ttft {weights.w_ttft:.6g}, w_tpot {weights.w_tpot:.6g})"


def _held(held: bool) -> str:
    return ", held" if held else ""
