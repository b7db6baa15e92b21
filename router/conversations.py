"""Conversations: how far each has come and which node holds its KV. Bounded in number, in bytes and by idle time (60
min, the paper's B.3).

A turn counts once it has been answered, so a retry or a failed prefill is no turn. Times are given by the
caller.

The `HOT` ones that were used last are objects; those before them, which seldom come back, are packed into some sixty
bytes each until they do. So a million of them fit into 400 MB, and who has fewer than `HOT` pays nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from struct import Struct

from estimators.length import LengthState

from .reuse import Reuse
from .turn import ConversationKey, NodeId

MAX_BYTES = 256 * 2**20
HOT = 32_768
COST_BYTES, PACKED_COST_BYTES = 640, 330
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

    __slots__ = (
        "_cold",
        "_hot",
        "_packing",
        "evicted",
        "expired",
        "hot",
        "idle_s",
        "limit",
        "limit_bytes",
        "size_bytes",
    )

    def __init__(
        self, limit: int = 100_000, idle_s: float = 3600.0, limit_bytes: int = MAX_BYTES, hot: int = HOT
    ) -> None:
        if limit < 1 or idle_s <= 0 or limit_bytes < 1 or hot < 1:
            raise ValueError("limit and limit_bytes must be at least 1 and idle_s positive")
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.idle_s = idle_s
        self.hot = hot
        self.size_bytes = 0
        self.evicted = 0
        """For want of room."""
        self.expired = 0
        """For being idle too long."""
        self._hot: OrderedDict[ConversationKey, Conversation] = OrderedDict()
        self._cold: OrderedDict[ConversationKey, bytes] = OrderedDict()
        self._packing = _Packing()

    def __len__(self) -> int:
        return len(self._hot) + len(self._cold)

    def __iter__(self) -> Iterator[Conversation]:
        """All of them, least recently used first."""
        for key, packed in self._cold.items():
            yield self._packing.unpack(key, packed)
        yield from self._hot.values()

    def open(self, key: ConversationKey, now_s: float) -> Conversation:
        """The conversation of that key, new or known, touched now."""
        self._sweep(now_s)
        known = self._hot.get(key)
        if known is not None:
            self._hot.move_to_end(key)
            known.last_used_s = now_s
            return known
        packed = self._cold.pop(key, None)
        if packed is None:
            known = Conversation(key, now_s)
        else:
            known = self._packing.unpack(key, packed)
            known.last_used_s = now_s
            self.size_bytes -= _cost_bytes(key, PACKED_COST_BYTES)
        self._hot[key] = known
        self.size_bytes += _cost_bytes(key, COST_BYTES)
        if len(self._hot) > self.hot:
            self._cool(key)
        while len(self) > self.limit or self.size_bytes > self.limit_bytes:
            if not self._evict_one():
                break
        return known

    def peek(self, key: ConversationKey) -> Conversation | None:
        """The conversation of that key, untouched, if there is one: to look at, not to change."""
        known = self._hot.get(key)
        if known is None and (packed := self._cold.get(key)) is not None:
            return self._packing.unpack(key, packed)
        return known

    def forget_node(self, node: NodeId) -> None:
        """A decode node is gone: its conversations need another."""
        self._packing.forget(node)
        for conversation in self._hot.values():
            if conversation.decode_node == node:
                conversation.decode_node = None
                conversation.lost_node = node

    def _cool(self, newest: ConversationKey) -> None:
        """Pack the least recently used idle one, unless it is the one at hand."""
        key = self._idle()
        if key is not None and key != newest:
            self._cold[key] = self._packing.pack(self._hot.pop(key))
            self.size_bytes += PACKED_COST_BYTES - COST_BYTES

    def _idle(self) -> ConversationKey | None:
        return next((key for key, conversation in self._hot.items() if not conversation.in_flight), None)

    def _sweep(self, now_s: float) -> None:
        idle = []
        for key, packed in self._cold.items():
            if now_s - self._packing.last_used_s(packed) < self.idle_s:
                break
            idle.append(key)
        for key, conversation in self._hot.items():
            if now_s - conversation.last_used_s < self.idle_s:
                break
            if not conversation.in_flight:
                idle.append(key)
        for key in idle:
            self._drop(key)
        self.expired += len(idle)

    def _evict_one(self) -> bool:
        key = next(iter(self._cold), None) or self._idle()
        if key is None:
            return False
        self._drop(key)
        self.evicted += 1
        return True

    def _drop(self, key: ConversationKey) -> None:
        if self._cold.pop(key, None) is not None:
            self.size_bytes -= _cost_bytes(key, PACKED_COST_BYTES)
        else:
            del self._hot[key]
            self.size_bytes -= _cost_bytes(key, COST_BYTES)


_LAYOUT = Struct("<ddIQQdIiIi?B")
_MOST_TURNS, _MOST_TOKENS = 2**32 - 1, 2**64 - 1


class _Packing:
    """A conversation without a turn in flight as bytes. A node is a number, and how often it was gone by then: that it
    is gone again costs its packed conversations nothing. `heading` is left out, for it is about turns in flight."""

    __slots__ = ("_gone", "_nodes", "_numbers")

    def __init__(self) -> None:
        self._nodes: list[NodeId] = []
        self._numbers: dict[NodeId, int] = {}
        self._gone: list[int] = []

    def pack(self, it: Conversation) -> bytes:
        length = it.length
        held = self._number(it.decode_node)
        return _LAYOUT.pack(
            it.last_used_s,
            it.moved_s,
            min(it.turns, _MOST_TURNS),
            min(it.context_tokens, _MOST_TOKENS),
            min(it.reuse.prompt_tokens, _MOST_TOKENS),
            0.0 if length is None else length.mean_ln_tokens,
            0 if length is None else min(length.replies, _MOST_TURNS),
            held,
            0 if held < 0 else self._gone[held],
            self._number(it.lost_node),
            length is not None,
            it.reuse.answers | it.reuse.doubted << 1,
        )

    def unpack(self, key: ConversationKey, packed: bytes) -> Conversation:
        last_s, moved_s, turns, context, prompt, mean, replies, held, gone, lost, known, reuse = _LAYOUT.unpack(packed)
        if held >= 0 and gone != self._gone[held]:
            held, lost = -1, held
        return Conversation(
            key,
            last_s,
            turns,
            context,
            None if held < 0 else self._nodes[held],
            None if lost < 0 else self._nodes[lost],
            None,
            moved_s,
            0,
            LengthState(mean, replies) if known else None,
            Reuse(prompt, bool(reuse & 1), bool(reuse & 2)),
        )

    @staticmethod
    def last_used_s(packed: bytes) -> float:
        return float(_LAYOUT.unpack(packed)[0])

    def forget(self, node: NodeId) -> None:
        if node in self._numbers:
            self._gone[self._numbers[node]] += 1

    def _number(self, node: NodeId | None) -> int:
        """Names of nodes are few: each is the lowest that is free (`roster.py`)."""
        if node is None:
            return -1
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
            self._gone.append(0)
        return number


def _cost_bytes(key: ConversationKey, beside: int) -> int:
    return beside + sum(map(len, key))
