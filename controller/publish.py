"""A policy becomes a publication: one immutable object with the next version, which routers swap by
reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from router.policy import Policy, Publication, Weights


def published(before: Publication, policy: Policy) -> Publication:
    """The next publication, with `policy` as its main arm. Everything else stays as it was."""
    return replace(before, version=before.version + 1, arms={**before.arms, "main": policy})


def raised(before: Publication, version: int, prices: Mapping[str, float], why: str) -> Publication:
    """The publication at a higher version, with these prices by model where they are prices.

    For a router that acts on a version which this process has not published: after a restart its prices are the ones in
    force, so going on from them moves nothing.
    """
    policy = before.arms["main"]
    weights = dict(policy.model_weights)
    for model, price in prices.items():
        if model and 0 < price < float("inf"):
            weights[model] = Weights.from_price(price)
    policy = replace(policy, version=version, model_weights=weights, provenance=why)
    return replace(before, version=version, arms={**before.arms, "main": policy})
