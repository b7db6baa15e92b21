"""KV residency: how many tokens of each conversation each node still caches.

Two sources. A node whose KV events are followed says it itself (`blocks.py`); for what those do not tell, and for
all other nodes, there is the router's own ledger (`ledger.py`). Believing too much costs a full prefill on D,
believing too little costs a transfer.

A turn whose engine tells what it found cached is a check of the belief. Under the ledger an eviction is believed
at once, for all that was used less recently too, and teaches how much others put into the node's memory. A
restart clears everything.

Beside them it knows which conversations are live (used within `LIVE_S`): their tokens are the node's
standing demand for memory, and what new conversations are balanced by.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

from .blocks import Blocks, session_of
from .ledger import Idle, Ledger
from .reuse import Verdict
from .turn import ConversationKey, NodeId

LIVE_S = 30.0
"""A conversation that has been silent for longer is no demand that a new one should be kept away from."""


class Source(StrEnum):
    """Where a belief comes from."""

    LEDGER = "ledger"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class Belief:
    """What was believed of a conversation on a node at the moment when a leg was sent there."""

    tokens: int
    source: Source
    idle: Idle | None
    """The copy in the ledger, where that is the source."""


@dataclass(slots=True)
class _NodeBelief:
    ledger: Ledger
    live: OrderedDict[ConversationKey, tuple[int, float]] = field(default_factory=OrderedDict)
    live_total: int = 0


class Residency:
    """Beliefs by node, in tokens."""

    __slots__ = ("_nodes", "blocks", "checks")

    def __init__(self) -> None:
        self._nodes: dict[NodeId, _NodeBelief] = {}
        self.blocks: dict[NodeId, Blocks] = {}
        """Nodes whose KV events are followed."""
        self.checks: Counter[tuple[NodeId, Source, Verdict]] = Counter()

    def follow(self, node: NodeId) -> Blocks:
        """The node's KV events will be told."""
        return self.blocks.setdefault(node, Blocks())

    def reset(self, node: NodeId, capacity_tokens: int) -> None:
        """A node with an empty cache: new, restarted, or gone."""
        self._nodes[node] = _NodeBelief(Ledger(capacity_tokens))
        if node in self.blocks:
            self.blocks[node].restart()

    def forget(self, node: NodeId) -> None:
        """The node has left the fleet."""
        self._nodes.pop(node, None)

    def ledger(self, node: NodeId) -> Ledger:
        """The router's own books of a node."""
        return self._nodes[node].ledger

    def advance(self, now_s: float) -> None:
        """Time passes, and what others put into the nodes' memory with it."""
        for node in self._nodes.values():
            node.ledger.advance(now_s)

    def held(self, node: NodeId, key: ConversationKey) -> int:
        """Tokens of the conversation that the node is believed to cache."""
        told = self._told(node, key)
        return self._nodes[node].ledger.tokens(key) if told is None else told

    def belief(self, node: NodeId, key: ConversationKey, now_s: float) -> Belief:
        """The same with its source, and the idle copy in the ledger."""
        return self.told(node, key) or self.booked(node, key, now_s)

    def told(self, node: NodeId, key: ConversationKey) -> Belief | None:
        """What the node's events say of it, if they do."""
        tokens = self._told(node, key)
        return None if tokens is None else Belief(tokens, Source.EVENTS, None)

    def booked(self, node: NodeId, key: ConversationKey, now_s: float) -> Belief:
        """What the ledger says of it, whatever the events do."""
        ledger = self._nodes[node].ledger
        return Belief(ledger.tokens(key), Source.LEDGER, ledger.idle(key, now_s))

    def _told(self, node: NodeId, key: ConversationKey) -> int | None:
        blocks = self.blocks.get(node)
        return None if blocks is None else blocks.held(session_of(key))

    def expect(self, node: NodeId, key: ConversationKey) -> None:
        """A leg of the conversation is about to be sent to the node."""
        if node in self.blocks:
            self.blocks[node].expect(session_of(key))

    def run(self, node: NodeId, key: ConversationKey, tokens: int) -> None:
        """A turn runs on the node and needs this much memory in the end: others make room."""
        self._nodes[node].ledger.run(key, tokens)

    def store(self, node: NodeId, key: ConversationKey, tokens: int, now_s: float) -> None:
        """The node holds this much of the conversation, idle from now on."""
        self._nodes[node].ledger.store(key, tokens, now_s)
        if node in self.blocks:
            self.blocks[node].settle(session_of(key), tokens)

    def drop(self, node: NodeId, key: ConversationKey) -> None:
        """The books do not say what the node holds of the conversation: a turn on it failed."""
        self._nodes[node].ledger.drop(key)
        if node in self.blocks:
            self.blocks[node].settle(session_of(key), 0)

    def check(self, node: NodeId, belief: Belief, verdict: Verdict) -> None:
        """The engine told what it had found where this was believed."""
        self.checks[node, belief.source, verdict] += 1
        if belief.idle is None or verdict is Verdict.CHANGED:
            return
        ledger = self._nodes[node].ledger
        ledger.learn(belief.idle, verdict is Verdict.HIT)
        if verdict is Verdict.EVICTED:
            ledger.missed(belief.idle.used_s)

    def touch(self, node: NodeId, key: ConversationKey, tokens: int, now_s: float) -> None:
        """A turn of the conversation was placed on the node and will need this many tokens there."""
        known = self._nodes[node]
        known.live_total += tokens - known.live.get(key, (0, 0.0))[0]
        known.live[key] = (tokens, now_s)
        known.live.move_to_end(key)
        self.live_tokens(node, now_s)  # and those that are no longer live go

    def live_tokens(self, node: NodeId, now_s: float) -> int:
        """Tokens of the node's live conversations."""
        known = self._nodes[node]
        while known.live:
            tokens, used_s = next(iter(known.live.values()))
            if now_s - used_s < LIVE_S:
                break
            known.live.popitem(last=False)
            known.live_total -= tokens
        return known.live_total
