"""Conversations: how far each has come and which node holds its KV. Bounded in number and by idle time (60
min, the paper's B.3).

A turn counts once it has been answered, so a retry or a failed prefill is no turn. Times are given by the
caller.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from estimators.length import LengthState

from .reuse import Reuse
from .turn import ConversationKey, NodeId


@dataclass(slots=True, eq=False)
class Conversation:
    """State of one conversation between its turns."""

    key: ConversationKey
    last_used_s: float
    turns: int = 0
    """Answered turns."""
    context_tokens: int = 0
    """Prompt and answer of the last answered turn, as the engine counted them."""
    decode_node: NodeId | None = None
    in_flight: int = 0
    length: LengthState | None = None
    reuse: Reuse = field(default_factory=Reuse)


class Conversations:
    """At most `limit` conversations; the least recently used idle one goes first."""

    __slots__ = ("_by_key", "evicted", "idle_s", "limit")

    def __init__(self, limit: int = 100_000, idle_s: float = 3600.0) -> None:
        if limit < 1 or idle_s <= 0:
            raise ValueError("limit must be at least 1 and idle_s positive")
        self.limit = limit
        self.idle_s = idle_s
        self.evicted = 0
        self._by_key: OrderedDict[ConversationKey, Conversation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def open(self, key: ConversationKey, now_s: float) -> Conversation:
        """The conversation of that key, new or known, touched now."""
        self._sweep(now_s)
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = Conversation(key, now_s)
            if len(self._by_key) > self.limit:
                self._evict_one()
        else:
            self._by_key.move_to_end(key)
            known.last_used_s = now_s
        return known

    def peek(self, key: ConversationKey) -> Conversation | None:
        """The conversation of that key, untouched, if there is one."""
        return self._by_key.get(key)

    def forget_node(self, node: NodeId) -> None:
        """A decode node is gone: its conversations need another."""
        for conversation in self._by_key.values():
            if conversation.decode_node == node:
                conversation.decode_node = None

    def _sweep(self, now_s: float) -> None:
        idle = []
        for key, conversation in self._by_key.items():
            if now_s - conversation.last_used_s < self.idle_s:
                break
            if not conversation.in_flight:
                idle.append(key)
        for key in idle:
            del self._by_key[key]
        self.evicted += len(idle)

    def _evict_one(self) -> None:
        for key, conversation in self._by_key.items():
            if not conversation.in_flight:
                del self._by_key[key]
                self.evicted += 1
                return
