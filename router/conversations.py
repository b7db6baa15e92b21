"""Conversations: how far each has come and which node holds its KV. Bounded in number, in bytes and by idle time (60
min, the paper's B.3).

A turn counts once it has been answered, so a retry or a failed prefill is no turn. Times are given by the
caller.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf

from estimators.length import LengthState

from .reuse import Reuse
from .turn import ConversationKey, NodeId

MAX_BYTES = 256 * 2**20
COST_BYTES = 640
"""What one conversation takes beside the letters of its key; measured, CPython 3.11."""


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
    lost_node: NodeId | None = None
    """What held it until that was gone."""
    heading: NodeId | None = None
    """Where its latest plan decodes: turns of one conversation at once go the same way."""
    moved_s: float = -inf
    """When it last left a node that could still have served it."""
    in_flight: int = 0
    length: LengthState | None = None
    reuse: Reuse = field(default_factory=Reuse)


class Conversations:
    """At most `limit` conversations in at most `limit_bytes`; the least recently used idle one goes first."""

    __slots__ = ("_by_key", "evicted", "expired", "idle_s", "limit", "limit_bytes", "size_bytes")

    def __init__(self, limit: int = 100_000, idle_s: float = 3600.0, limit_bytes: int = MAX_BYTES) -> None:
        if limit < 1 or idle_s <= 0 or limit_bytes < 1:
            raise ValueError("limit and limit_bytes must be at least 1 and idle_s positive")
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.idle_s = idle_s
        self.size_bytes = 0
        self.evicted = 0
        """For want of room."""
        self.expired = 0
        """For being idle too long."""
        self._by_key: OrderedDict[ConversationKey, Conversation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def open(self, key: ConversationKey, now_s: float) -> Conversation:
        """The conversation of that key, new or known, touched now."""
        self._sweep(now_s)
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = Conversation(key, now_s)
            self.size_bytes += _cost_bytes(key)
            while len(self._by_key) > self.limit or self.size_bytes > self.limit_bytes:
                if not self._evict_one():
                    break
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
                conversation.lost_node = node

    def _sweep(self, now_s: float) -> None:
        idle = []
        for key, conversation in self._by_key.items():
            if now_s - conversation.last_used_s < self.idle_s:
                break
            if not conversation.in_flight:
                idle.append(key)
        for key in idle:
            self._drop(key)
        self.expired += len(idle)

    def _evict_one(self) -> bool:
        for key, conversation in self._by_key.items():
            if not conversation.in_flight:
                self._drop(key)
                self.evicted += 1
                return True
        return False

    def _drop(self, key: ConversationKey) -> None:
        del self._by_key[key]
        self.size_bytes -= _cost_bytes(key)


def _cost_bytes(key: ConversationKey) -> int:
    return COST_BYTES + sum(map(len, key))
