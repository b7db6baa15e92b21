"""A policy becomes a publication: one immutable object with the next version, which routers swap by
reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from router.policy import Policy, Publication, Weights

from .laws.protocol import PriceRange


def published(before: Publication, policy: Policy) -> Publication:
    """The next publication, with `policy` as its main arm. Everything else stays as it was."""
    return replace(before, version=before.version + 1, arms={**before.arms, "main": policy})


def raised(before: Publication, version: int, prices: Mapping[str, float], limits: PriceRange, why: str) -> Publication:
    """The publication at a higher version, with the prices of these models (those that are none are left out).

    For a router that acts on a version which this process has not published: after a restart its prices are the ones in
    force, so going on from them moves nothing.
    """
    policy = before.arms["main"]
    adopted = {model: Weights.from_price(price) for model, price in within(prices, limits).items() if model}
    weights = {**policy.model_weights, **adopted}
    return replace(
        before,
        version=version,
        arms={**before.arms, "main": replace(policy, version=version, model_weights=weights, provenance=why)},
    )


def within(prices: Mapping[str, float], limits: PriceRange) -> dict[str, float]:
    """The prices that are prices, held to the limits."""
    return {
        model: min(limits.high, max(limits.low, price))
        for model, price in prices.items()
        if 0 < price < float("inf")
    }
