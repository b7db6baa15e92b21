"""One node's KV memory: what is in use, what is cached, what is evicted first.

A prompt is a path of segments (key, tokens). A key stands for its content and everything before it, so it
grows only at its end: a conversation can be one growing segment, or a chain of messages below a shared system
prompt. Hits are whole blocks and leave at least one token to compute, as in vLLM. A running request pins its
hit and nothing beyond it. Eviction takes the least recently used segment first and its tail before its head;
a segment is never evicted before what follows it.

Memory is counted in tokens: resident (cached, pinned or idle) + reserved (running requests: what they lack
and will generate). Left out: requests of one chain that run at once share nothing until the first ends.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

Prompt = tuple[tuple[str, int], ...]


def prompt_tokens(prompt: Prompt) -> int:
    """Length of a prompt in tokens."""
    return sum(tokens for _, tokens in prompt)


class Watcher(Protocol):
    """Told of what comes and goes. A run needs none."""

    def stored(self, kept: Prompt, had: list[int], session: str | None) -> None:
        """A path is there; of each of its segments, `had` tokens were there before."""

    def removed(self, key: str, before: int, left: int) -> None:
        """A segment lost its tail."""

    def cleared(self) -> None:
        """Everything is gone."""


@dataclass(slots=True)
class _Segment:
    tokens: int
    pins: list[int] = field(default_factory=list)
    """How many of its tokens, from its head, each running request holds."""

    @property
    def idle(self) -> int:
        """Tokens at its tail that nobody holds."""
        return self.tokens - max(self.pins, default=0)


@dataclass(slots=True)
class Grant:
    """Memory held by one running request."""

    prompt: Prompt
    hit_tokens: int
    reserved_tokens: int
    generation: int
    session: str | None = None
    """Whose request it is, for the watcher."""
    pinned: list[tuple[str, int]] = field(default_factory=list)


class PrefixCache:
    """KV memory of `capacity_tokens` in blocks of `block_tokens`."""

    __slots__ = (
        "_block",
        "_generation",
        "_idle",
        "_idle_tokens",
        "_segments",
        "capacity_tokens",
        "evicted_tokens",
        "reserved_tokens",
        "resident_tokens",
        "watcher",
    )

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        if capacity_tokens <= 0 or block_tokens <= 0:
            raise ValueError("capacity_tokens and block_tokens must be positive")
        self.capacity_tokens = capacity_tokens
        self.resident_tokens = 0
        self.reserved_tokens = 0
        self.evicted_tokens = 0
        self.watcher: Watcher | None = None
        self._block = block_tokens
        self._segments: dict[str, _Segment] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._idle_tokens = 0
        self._generation = 0

    def hit_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt that need no computing."""
        hit = total = 0
        matching = True
        for key, tokens in prompt:
            total += tokens
            if matching:
                segment = self._segments.get(key)
                got = 0 if segment is None else min(segment.tokens, tokens)
                hit += got
                matching = got == tokens
        hit = max(0, min(hit, total - 1))
        return hit - hit % self._block

    def admit(
        self, prompt: Prompt, output_tokens: int, *, ahead: bool = True, session: str | None = None
    ) -> Grant | None:
        """Reserve room for what the prompt lacks and, if `ahead`, the output; None, and no change, if it does not
        fit now.

        Raises ValueError if it could never fit, or if there is nothing to compute or to generate.
        """
        total = prompt_tokens(prompt)
        if total < 1 or output_tokens < 1 or any(tokens < 1 for _, tokens in prompt):
            raise ValueError("a request needs one token or more in each part of its prompt and in its output")
        if total + output_tokens > self.capacity_tokens:
            raise ValueError(
                f"{total} prompt + {output_tokens} output tokens exceed this node's {self.capacity_tokens}"
            )
        hit = self.hit_tokens(prompt)
        grant = Grant(prompt, hit, total - hit + (output_tokens if ahead else 0), self._generation, session)
        left = hit
        evictable = self._idle_tokens
        for key, tokens in prompt:
            if left <= 0:
                break
            segment, held = self._segments[key], min(left, tokens)
            grant.pinned.append((key, held))
            evictable -= max(0, held - (segment.tokens - segment.idle))
            left -= held
        short = grant.reserved_tokens + self.resident_tokens + self.reserved_tokens - self.capacity_tokens
        if short > evictable:
            return None
        for key, held in grant.pinned:
            self._pin(key, held)
        self._evict(short)
        self.reserved_tokens += grant.reserved_tokens
        return grant

    def hold(self, grant: Grant) -> None:
        """The prompt is computed: others hit it from now on, and it stays pinned until the grant is released."""
        if grant.generation != self._generation:
            return
        computed = sum(tokens for _, tokens in grant.prompt) - grant.hit_tokens
        grant.reserved_tokens -= computed
        self.reserved_tokens -= computed
        self._store(grant.prompt, grant.session)
        held = dict(grant.pinned)
        for key, tokens in grant.prompt:
            segment = self._segments[key]
            self._idle_tokens -= segment.idle
            if key in held:
                segment.pins.remove(held[key])
            segment.pins.append(tokens)
            self._idle_tokens += segment.idle
            if not segment.idle:
                self._idle.pop(key, None)
        grant.pinned = list(grant.prompt)

    def grow(self, tokens: int) -> None:
        """Running requests, together, have filled that much more. The caller knows that there is room."""
        self._evict(tokens - self.free_tokens)
        self.reserved_tokens += tokens

    def release(self, grant: Grant, kept: Prompt) -> None:
        """End a request; `kept` is the path whose KV stays cached (empty: nothing new stays).

        A grant from before `clear` is void, and so is one that was released.
        """
        if grant.generation != self._generation:
            return
        grant.generation = -1
        self.reserved_tokens -= grant.reserved_tokens
        self._store(kept, grant.session)
        for key, held in reversed(grant.pinned):  # children first, so that they are evicted first
            self._unpin(key, held)
            self._rest(key)
        for key, _ in reversed(kept):
            self._rest(key)

    @property
    def free_tokens(self) -> int:
        """Tokens that nothing is in."""
        return self.capacity_tokens - self.resident_tokens - self.reserved_tokens

    @property
    def available_tokens(self) -> int:
        """Tokens that are free or can be evicted."""
        return self.free_tokens + self._idle_tokens

    @property
    def in_use_tokens(self) -> int:
        """Tokens that cannot be evicted: pinned and reserved."""
        return self.resident_tokens + self.reserved_tokens - self._idle_tokens

    def forget_idle(self) -> None:
        """Evict all that no request on the way uses."""
        self._evict(self._idle_tokens)

    def clear(self) -> None:
        """Forget everything: the engine restarted."""
        self._generation += 1
        self._segments.clear()
        self._idle.clear()
        self._idle_tokens = 0
        self.resident_tokens = 0
        self.reserved_tokens = 0
        if self.watcher is not None:
            self.watcher.cleared()

    def _store(self, kept: Prompt, session: str | None) -> None:
        """The path is there; what is new of it is idle."""
        had: list[int] = []
        for key, tokens in kept:
            segment = self._segments.get(key)
            if segment is None:
                segment = self._segments[key] = _Segment(0)
            had.append(segment.tokens)
            grown = tokens - segment.tokens
            if grown > 0:
                segment.tokens = tokens
                self.resident_tokens += grown
                self._idle_tokens += grown
        if self.watcher is not None and kept:
            self.watcher.stored(kept, had, session)

    def _pin(self, key: str, held: int) -> None:
        segment = self._segments[key]
        self._idle_tokens -= segment.idle
        segment.pins.append(held)
        self._idle_tokens += segment.idle
        if not segment.idle:
            self._idle.pop(key, None)

    def _unpin(self, key: str, held: int) -> None:
        segment = self._segments[key]
        self._idle_tokens -= segment.idle
        segment.pins.remove(held)
        self._idle_tokens += segment.idle

    def _rest(self, key: str) -> None:
        if self._segments[key].idle:
            self._idle[key] = None
            self._idle.move_to_end(key)

    def _evict(self, tokens: int) -> None:
        while tokens > 0:
            key = next(iter(self._idle))
            segment = self._segments[key]
            take = min(tokens, segment.idle)
            segment.tokens -= take
            self.resident_tokens -= take
            self._idle_tokens -= take
            self.evicted_tokens += take
            if self.watcher is not None:
                self.watcher.removed(key, segment.tokens + take, segment.tokens)
            tokens -= take
            if not segment.idle:
                del self._idle[key]
            if not segment.tokens:
                del self._segments[key]
