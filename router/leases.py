"""KV that P keeps for D: leases that are open, and those that nobody will read.

A lease opens with P's reply and is read by D's leg, which shows in D's first content. Where the turn ends or is planned
again before that, it is stranded: no engine has a door at which the router could give it back, so P holds that memory
until the lease is over. What D refuses as the client's fault it lets go itself (vLLM tells P).

A prefill leg that ended without its reply may have left a lease too, if P was done and the reply on its way: it is
counted apart, as unanswered.

By the router's own books; P's counter of expired leases is the other half.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from .turn import NodeId


@dataclass(slots=True)
class Leases:
    """Of all P nodes. `lease_s` is how long P keeps a prompt that nobody reads."""

    lease_s: float = 30.0
    stranded: Counter[NodeId] = field(default_factory=Counter)
    """So far, by P."""
    unanswered: Counter[NodeId] = field(default_factory=Counter)
    """Prefill legs that ended without their reply, by P."""
    _open: dict[str, tuple[NodeId, float]] = field(default_factory=dict)
    _waiting: deque[tuple[float, NodeId]] = field(default_factory=deque)
    """Stranded ones that P still holds, by the end of their lease."""

    def opened(self, request_id: str, node: NodeId, since_s: float) -> None:
        """P has replied, at `since_s` or later."""
        self._open[request_id] = (node, since_s + self.lease_s)

    def read(self, request_id: str) -> None:
        """D has what it needs, or lets it go itself; unknown ids are ignored."""
        self._open.pop(request_id, None)

    def strand(self, request_id: str) -> None:
        """Nobody will read it; unknown ids are ignored."""
        lease = self._open.pop(request_id, None)
        if lease is not None:
            node, until_s = lease
            self.stranded[node] += 1
            self._waiting.append((until_s, node))

    def unanswer(self, node: NodeId) -> None:
        """A prefill leg is given up, and its reply has not come."""
        self.unanswered[node] += 1

    def node_gone(self, node: NodeId) -> None:
        """Its memory is gone with it."""
        self._open = {name: lease for name, lease in self._open.items() if lease[0] != node}
        self._waiting = deque(entry for entry in self._waiting if entry[1] != node)

    def open(self) -> Counter[NodeId]:
        """Leases that a turn in flight has, by P."""
        return Counter(node for node, _ in self._open.values())

    def held(self, now_s: float) -> Counter[NodeId]:
        """Stranded leases that P still holds, by P."""
        while self._waiting and self._waiting[0][0] <= now_s:
            self._waiting.popleft()
        return Counter(node for until_s, node in self._waiting if until_s > now_s)
