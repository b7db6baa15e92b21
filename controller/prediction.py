"""The TTFT that a table predicts of a turn on one of its routes: the time of the nodes, and the backlogs before it.

    local        D's backlog + local
    transferred  P's backlog + the link's + remote          (`router.latency` has both times)

A turn without a P has one route only. Left out: what comes to a node after the decision.
"""

from __future__ import annotations

from router.features import TurnFeatures
from router.latency import LatencyModel


def ttft_ms(model: LatencyModel, features: TurnFeatures, local: bool) -> float:
    """By the features of its decision."""
    return backlog_ms(features, local) + nodes_ms(model, features, local)


def backlog_ms(features: TurnFeatures, local: bool) -> float:
    """What is before the turn."""
    if local or features.prefill is None:
        return features.d_backlog_ms
    return features.p_backlog_ms + features.link_backlog_ms


def nodes_ms(model: LatencyModel, features: TurnFeatures, local: bool) -> float:
    """What the turn takes by itself."""
    f = features
    if local or f.prefill is None:
        return model.local_ms(f.uncached_d, f.prompt_tokens, f.d_batch)
    return model.remote_ms(f.uncached_p, f.uncached_d, f.prompt_tokens, f.d_batch)
