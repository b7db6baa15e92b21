"""Nodes and their sources as they are shown: in reports, and so in the status API."""

from __future__ import annotations

from ..breaker import BreakerState
from ..core import RouterCore
from ..placement import Node
from ..wire import NodeView, SourceView
from .roster import Roster


def node_view(core: RouterCore, roster: Roster | None, node: Node, url: str, now_s: float) -> NodeView:
    """One node, with its state in a word and why."""
    load, churn = core.load[node.id], core.churn.get(node.id)
    breaker, failed = core.breaker(node.id, now_s)
    why = failed
    if not node.healthy:
        state, why = "down", ""
    elif node.draining:
        state, why = "draining", str((roster.why(node.id) if roster is not None else None) or "")
    elif breaker is not BreakerState.CLOSED:
        state = breaker.value
    else:
        state = "slow" if core.pace.slow(node.id) else "serving"
    return NodeView(
        id=str(node.id),
        url=url,
        role=node.role.value,
        healthy=node.healthy,
        draining=node.draining,
        sequences=load.sequences,
        backlog_ms=load.prefill.ms(now_s),
        kv_tokens=load.kv_tokens,
        kv_capacity_tokens=node.kv_capacity_tokens,
        state=state,
        why=why,
        ramp=round(node.ramp(now_s), 3),
        weight=node.weight,
        evicted=0.0 if churn is None else round(churn.evicted(now_s), 3),
        recomputed=0.0 if churn is None else round(churn.recomputed(now_s), 3),
    )


def source_views(roster: Roster | None, now_s: float) -> tuple[SourceView, ...]:
    """All sources, in their order."""
    if roster is None:
        return ()
    return tuple(
        SourceView(
            f"{roster.prefix}{name}",
            len(state.members),
            None if state.good_s is None else max(0.0, now_s - state.good_s),
            state.problem,
        )
        for name, state in roster.states.items()
    )
