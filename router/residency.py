"""Believed KV residency: how many tokens of each conversation each node still caches.

An engine does not announce evictions, so the belief is a ledger per node that evicts as the engine would:
least recently used first, within the node's KV capacity less a margin, running requests included. Believing
too much costs a full prefill on D, believing too little costs a transfer, so the margin errs to the second. A
`cached_tokens` below the belief is believed at once, and for all that was used less recently too. A restart
clears the ledger. What a node holds of a shared system prompt is not counted.

Beside the ledger it knows which conversations are live (used within `LIVE_S`): their tokens are the node's
standing demand for memory, and what new conversations are balanced by.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from .turn import ConversationKey, NodeId

LIVE_S = 30.0
"""A conversation that has been silent for longer is no demand that a new one should be kept away from."""
MARGIN = 0.03
"""Share of the capacity that is not believed in: partial blocks, answers longer than expected, order of
release."""


@dataclass(slots=True)
class _Ledger:
    capacity_tokens: float
    held: OrderedDict[ConversationKey, tuple[int, float]] = field(default_factory=OrderedDict)
    """(tokens, time of last use), least recently used first."""
    running: dict[ConversationKey, int] = field(default_factory=dict)
    """Tokens of conversations with a turn on the node: cannot be evicted."""
    total: int = 0
    """Both together."""
    live: OrderedDict[ConversationKey, tuple[int, float]] = field(default_factory=OrderedDict)
    live_total: int = 0


class Residency:
    """Ledgers by node, in tokens."""

    __slots__ = ("_ledgers",)

    def __init__(self) -> None:
        self._ledgers: dict[NodeId, _Ledger] = {}

    def reset(self, node: NodeId, capacity_tokens: int) -> None:
        """A node with an empty cache: new, restarted, or gone."""
        self._ledgers[node] = _Ledger(capacity_tokens * (1 - MARGIN))

    def held(self, node: NodeId, key: ConversationKey) -> int:
        """Tokens of the conversation that the node is believed to cache."""
        ledger = self._ledgers[node]
        if key in ledger.running:
            return ledger.running[key]
        return ledger.held.get(key, (0, 0.0))[0]

    def used_s(self, node: NodeId, key: ConversationKey) -> float | None:
        """When the node's idle copy of the conversation was last used; None if there is none."""
        entry = self._ledgers[node].held.get(key)
        return None if entry is None else entry[1]

    def run(self, node: NodeId, key: ConversationKey, tokens: int) -> None:
        """A turn runs on the node and needs this much memory in the end: others make room."""
        ledger = self._ledgers[node]
        self.drop(node, key)
        ledger.running[key] = tokens
        ledger.total += tokens
        self._evict(ledger)

    def store(self, node: NodeId, key: ConversationKey, tokens: int, now_s: float) -> None:
        """The node holds this much of the conversation, idle from now on."""
        ledger = self._ledgers[node]
        self.drop(node, key)
        if tokens <= 0:
            return
        ledger.held[key] = (tokens, now_s)
        ledger.total += tokens
        self._evict(ledger)

    def drop(self, node: NodeId, key: ConversationKey) -> None:
        """Nobody knows what the node holds of the conversation: a turn on it failed."""
        ledger = self._ledgers[node]
        ledger.total -= ledger.held.pop(key, (0, 0.0))[0] + ledger.running.pop(key, 0)

    @staticmethod
    def _evict(ledger: _Ledger) -> None:
        while ledger.total > ledger.capacity_tokens and ledger.held:
            _, (gone, _) = ledger.held.popitem(last=False)
            ledger.total -= gone

    def missed(self, node: NodeId, used_s: float) -> None:
        """The engine had evicted something last used at `used_s`: so it has all that was used before."""
        ledger = self._ledgers[node]
        while ledger.held:
            tokens, at_s = next(iter(ledger.held.values()))
            if at_s > used_s:
                return
            ledger.held.popitem(last=False)
            ledger.total -= tokens

    def touch(self, node: NodeId, key: ConversationKey, tokens: int, now_s: float) -> None:
        """A turn of the conversation was placed on the node and will need this many tokens there."""
        ledger = self._ledgers[node]
        ledger.live_total += tokens - ledger.live.get(key, (0, 0.0))[0]
        ledger.live[key] = (tokens, now_s)
        ledger.live.move_to_end(key)

    def live_tokens(self, node: NodeId, now_s: float) -> int:
        """Tokens of the node's live conversations."""
        ledger = self._ledgers[node]
        while ledger.live:
            tokens, used_s = next(iter(ledger.live.values()))
            if now_s - used_s < LIVE_S:
                break
            ledger.live.popitem(last=False)
            ledger.live_total -= tokens
        return ledger.live_total
