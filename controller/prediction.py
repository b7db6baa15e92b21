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
    f = features
    if local or f.prefill is None:
        return f.d_backlog_ms + model.local_ms(f.uncached_d, f.prompt_tokens, f.d_batch)
    remote_ms = model.remote_ms(f.uncached_p, f.uncached_d, f.prompt_tokens, f.d_batch)
    return f.p_backlog_ms + f.link_backlog_ms + remote_ms
