"""What one node is believed to cache, by the router's own books: a ledger that evicts as the engine would.

Least recently used first, within the node's KV capacity less a margin and less what others have pinned there,
running requests included. Others' traffic is not in the books. It is one number, `foreign_hz`: tokens a second
that somebody else puts into the memory, which push idle conversations out like the router's own. A
conversation that has been idle for `age`, with `newer` tokens used since, is there if

    newer + foreign_hz × age ≤ capacity

so every turn whose engine tells what it found bounds the number: a miss from below, a hit from above. It is 0
until a miss shows that somebody else is there, and it is forgotten within `FORGET_S`. One miss may be a prompt that
changed, and says little where hits say otherwise: the number stays below a ceiling, to which hits bring it down
and which each miss doubles.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from math import exp

from .turn import ConversationKey

MARGIN = 0.03
"""Share of the capacity that is not believed in: partial blocks, answers longer than expected, order of
release."""
FORGET_S = 120.0
"""Time constant of the foreign inflow: too much of it means transfers, and those teach nothing about D."""
RAISE = 1.25
"""A miss that the inflow already explains says that it is larger."""
TURNOVER_S = 300.0
"""The ceiling at first: others fill the memory once in this time."""
MIN_AGE_S = 1.0
"""An age below this bounds the inflow as this does."""

Entry = ConversationKey | int
"""A conversation, or a number: tokens that others put in between two uses."""
LOOKED_AT = 500
"""Copies newer than one's own, at most, of which the inflow is learned."""


MAX_HELD = 200_000
"""Copies in the books of one node, at most: a node that does not tell its memory would have them all."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A conversation's idle copy: when it was last used, and what the node has used since, itself included. None where
    that is more than `LOOKED_AT` copies: to add them up on every turn would cost milliseconds."""

    used_s: float
    age_s: float
    newer_tokens: int | None


@dataclass(slots=True)
class Ledger:
    """One node, in tokens. `capacity_tokens` is the engine's own."""

    capacity_tokens: float
    others_tokens: float = 0.0
    """Pinned by somebody else's running requests."""
    foreign_hz: float = 0.0
    held: OrderedDict[Entry, tuple[float, float]] = field(default_factory=OrderedDict)
    """(tokens, time of last use), least recently used first."""
    running: dict[ConversationKey, int] = field(default_factory=dict)
    """Tokens of conversations with a turn on the node: cannot be evicted."""
    total: float = 0.0
    """Both together."""
    _ceiling_hz: float = 0.0
    _now_s: float = 0.0
    _foreign: int = 0

    def __post_init__(self) -> None:
        self._ceiling_hz = self.capacity_tokens / TURNOVER_S

    @property
    def room_tokens(self) -> float:
        """What may be believed in."""
        return self.capacity_tokens * (1 - MARGIN) - self.others_tokens

    @property
    def own_tokens(self) -> float:
        """Tokens of this router's conversations."""
        return sum(self.running.values()) + sum(
            tokens for name, (tokens, _) in self.held.items() if not isinstance(name, int)
        )

    def tokens(self, key: ConversationKey) -> int:
        """What the node holds of the conversation."""
        if key in self.running:
            return self.running[key]
        return int(self.held.get(key, (0, 0.0))[0])

    def idle(self, key: ConversationKey, now_s: float) -> Idle | None:
        """The idle copy of the conversation, if there is one."""
        entry = self.held.get(key)
        if entry is None:
            return None
        newer = sum(self.running.values())
        for looked_at, (name, (tokens, at_s)) in enumerate(reversed(self.held.items())):
            if at_s < entry[1]:
                break
            if looked_at >= LOOKED_AT:
                return Idle(entry[1], now_s - entry[1], None)
            if not isinstance(name, int):
                newer += int(tokens)
        return Idle(entry[1], now_s - entry[1], newer)

    def run(self, key: ConversationKey, tokens: int) -> None:
        """A turn runs and needs this much memory in the end: others make room."""
        self.drop(key)
        self.running[key] = tokens
        self.total += tokens
        self._evict()

    def store(self, key: ConversationKey, tokens: int, now_s: float) -> None:
        """The node holds this much of the conversation, idle from now on."""
        self.drop(key)
        if tokens > 0:
            self.held[key] = (tokens, now_s)
            self.total += tokens
            self._evict()

    def drop(self, key: ConversationKey) -> None:
        """Nobody knows what the node holds of the conversation."""
        self.total -= self.held.pop(key, (0, 0.0))[0] + self.running.pop(key, 0)

    def missed(self, used_s: float) -> None:
        """The engine had evicted something last used at `used_s`: so it has all that was used before."""
        while self.held and next(iter(self.held.values()))[1] <= used_s:
            self._pop()

    def learn(self, idle: Idle, hit: bool) -> None:
        """The engine told whether an idle copy was still there."""
        if idle.newer_tokens is None:
            return
        bound_hz = max(0.0, self.room_tokens - idle.newer_tokens) / max(idle.age_s, MIN_AGE_S)
        if hit:
            self._ceiling_hz = min(self._ceiling_hz, bound_hz)
            self.foreign_hz = min(self.foreign_hz, bound_hz)
        else:
            self._ceiling_hz = max(1.0, 2 * self._ceiling_hz)
            self.foreign_hz = min(max(self.foreign_hz * RAISE, bound_hz), self._ceiling_hz)

    def advance(self, now_s: float) -> None:
        """Time passes: others have put in what they put in."""
        elapsed_s = now_s - self._now_s
        self._now_s = now_s
        if self.foreign_hz < 1.0 or elapsed_s <= 0:
            return
        tokens = self.foreign_hz * elapsed_s
        self.foreign_hz *= exp(-elapsed_s / FORGET_S)
        self.total += tokens
        last = next(islice(reversed(self.held), 1), None)
        if isinstance(last, int):
            tokens += self.held[last][0]
        else:
            self._foreign += 1
            last = self._foreign
        self.held[last] = (tokens, now_s)
        self._evict()

    def share(self, others_tokens: float) -> None:
        """Others have pinned this much."""
        self.others_tokens = others_tokens
        self._evict()

    def _evict(self) -> None:
        while self.held and (self.total > self.room_tokens or len(self.held) > MAX_HELD):
            self._pop()

    def _pop(self) -> None:
        _, (tokens, _) = self.held.popitem(last=False)
        self.total -= tokens
