"""The decision of one turn: policy and features in, route, reason and propensity out. Pure; the coin is an
argument."""

from __future__ import annotations

from dataclasses import dataclass

from .features import TurnFeatures
from .kv_guard import full, too_dear
from .policy import Policy
from .turn import Reason, Route


@dataclass(frozen=True, slots=True)
class Decision:
    """A route and why. `propensity` is the probability with which this turn would take this route, given its
    features."""

    route: Route
    reason: Reason
    propensity: float
    policy_version: int
    cell: str = ""
    saved_ms: float | None = None
    cost: float | None = None
    table_exact: bool = True
    """The table was measured on this topology; else it is the nearest one's and its evidence counts for less."""


def decide(policy: Policy, features: TurnFeatures, coin: float) -> Decision:
    """Decide where the prompt of this turn is computed; `coin` is uniform in [0, 1)."""
    local, transfer = Route.APPEND_LOCAL, Route.PREFILL_TRANSFER
    version = policy.version
    if features.replica:
        return Decision(local, Reason.REPLICA, 1.0, version)
    if features.local_only:
        return Decision(local, Reason.LOCAL_ONLY, 1.0, version)
    if features.prefill is None:
        return Decision(local, Reason.P_UNAVAILABLE, 1.0, version)
    if features.turn == 1:
        return Decision(transfer, Reason.FIRST_TURN, 1.0, version)
    if policy.pin_x is not None:
        go_local = coin < policy.pin_x
        share = policy.pin_x if go_local else 1 - policy.pin_x
        return Decision(local if go_local else transfer, Reason.PINNED, share, version)
    if full(features, policy.kv_guard):
        return Decision(transfer, Reason.KV_GUARD, 1.0, version)
    found = policy.table(features.model, features.topology)
    if found is None:
        return _by_tokens(policy, features)
    tables, exact = found
    weights = policy.weights_for(features.model)
    if policy.mode == "paper":
        if tables.paper is None:
            return _by_tokens(policy, features)
        go_local, reason, cell = tables.paper.choose(features, weights.w_ttft, weights.w_tpot)
        return Decision(local if go_local else transfer, reason, 1.0, version, cell, table_exact=exact)
    saved_ms, cost, cell = tables.load_aware.score(features)
    if saved_ms <= 0:
        return Decision(transfer, Reason.LOCAL_SLOWER, 1.0, version, cell, saved_ms, cost, exact)
    go_local = weights.w_ttft * saved_ms > weights.w_tpot * cost
    if too_dear(features, saved_ms, cost):
        reason = Reason.KV_SHORT if go_local else Reason.SCORE
        return Decision(transfer, reason, 1.0, version, cell, saved_ms, cost, exact)
    reason, propensity = Reason.SCORE, 1 - policy.explore
    if coin < policy.explore:
        go_local, reason, propensity = not go_local, Reason.EXPLORED, policy.explore
    return Decision(local if go_local else transfer, reason, propensity, version, cell, saved_ms, cost, exact)


def _by_tokens(policy: Policy, features: TurnFeatures) -> Decision:
    """Until there is a table that the policy's mode can decide by: a bound on what D lacks, and nothing of the load."""
    local = features.uncached_d <= policy.without_table_tokens
    route = Route.APPEND_LOCAL if local else Route.PREFILL_TRANSFER
    return Decision(route, Reason.NO_TABLE, 1.0, policy.version)
