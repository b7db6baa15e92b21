"""How fast nodes stream, next to each other: the ground on which a conversation leaves a slow decode node.

    pace = stream-seconds / tokens      both forgotten with time constant `FORGET_S`

over all open streams of the node, sampled once a second: a stall counts while it lasts, not when it is over. A node is
*slow* once its pace is `SLOW` times the median of the others, until it is below `FINE` times, or until nothing has
streamed there for `RETRY_S`: then new conversations try it again. What it leaves out: batch sizes. The margin is wider
than any batch makes a healthy node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp
from statistics import median

from .turn import NodeId

FORGET_S = 5.0
SLOW = 3.0
FINE = 1.5
RETRY_S = 30.0
MIN_STREAM_S = 1.0
MIN_TOKENS = 20.0
"""Less streaming than this says nothing: of a slow node, or of those that it is compared with."""
DWELL_S = 60.0
"""A conversation that has left a slow node stays where it is for as long."""


@dataclass(slots=True)
class _Node:
    stream_s: float = 0.0
    tokens: float = 0.0
    told_s: float = 0.0
    slow: bool = False

    @property
    def pace_s(self) -> float:
        return self.stream_s / max(1.0, self.tokens)


@dataclass(slots=True)
class Pace:
    """All nodes that decode."""

    _nodes: dict[NodeId, _Node] = field(default_factory=dict)
    _at_s: float = 0.0

    def sample(self, streams: Iterable[tuple[NodeId, float, int]], now_s: float) -> None:
        """Since the last sample these streams ran for so long and gave so many tokens: (node, seconds, tokens)."""
        kept = exp(-max(0.0, now_s - self._at_s) / FORGET_S)
        self._at_s = now_s
        for node in self._nodes.values():
            node.stream_s *= kept
            node.tokens *= kept
        for name, stream_s, tokens in streams:
            known = self._nodes.setdefault(name, _Node(told_s=now_s))
            known.stream_s += stream_s
            known.tokens += tokens
            known.told_s = now_s
        for name, known in self._nodes.items():
            known.slow = self._judge(name, known, now_s)

    def slow(self, node: NodeId) -> bool:
        """Conversations had better be elsewhere."""
        known = self._nodes.get(node)
        return known is not None and known.slow

    def pace_s(self, node: NodeId) -> float | None:
        """Seconds per token now; None where nothing says so."""
        known = self._nodes.get(node)
        return known.pace_s if known is not None and known.stream_s >= MIN_STREAM_S else None

    def forget(self, node: NodeId) -> None:
        """The node is gone or another."""
        self._nodes.pop(node, None)

    def _judge(self, name: NodeId, known: _Node, now_s: float) -> bool:
        if now_s - known.told_s >= RETRY_S:
            return False
        others = [n.pace_s for other, n in self._nodes.items() if other != name and n.tokens >= MIN_TOKENS]
        if not others or known.stream_s < MIN_STREAM_S:
            return known.slow
        return known.pace_s > (FINE if known.slow else SLOW) * median(others)
