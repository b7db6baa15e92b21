"""The blocks of a prefix cache by name, as vLLM's KV events tell them: stored, removed, cleared.

A block is filed under the segment in which it ends; its name is a hash of that segment's key and its number from
the beginning of the prompt, so equal prefixes have equal names on all nodes. As the cache has it, a request's
blocks are stored when its prompt is to be handed over or its answer is done (vLLM: as each is full), and there is one
copy of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from .prefix_cache import Prompt


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that follow each other and `parent` (None: the beginning)."""

    parent: int | None
    names: tuple[int, ...]
    session: str | None


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that were evicted."""

    names: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """The process restarted."""


Change = BlocksStored | BlocksRemoved | BlocksCleared


class KvBlocks:
    """Watches a cache and tells its changes. Names segments' blocks by where they lie in their prompt."""

    def __init__(self, block_tokens: int, tell: Callable[[Change], None]) -> None:
        self._block = block_tokens
        self._tell = tell
        self._begins: dict[str, int] = {}

    def stored(self, kept: Prompt, had: list[int], session: str | None) -> None:
        """A path of segments is there; of each, `had` tokens were there before."""
        names: list[int] = []
        parent: int | None = None
        begin = 0
        for (key, tokens), before in zip(kept, had, strict=True):
            self._begins[key] = begin
            known, end = (begin + before) // self._block, (begin + tokens) // self._block
            if known > begin // self._block and not names:
                parent = _name(key, known - 1)
            names.extend(_name(key, block) for block in range(known, end))
            begin += tokens
        if names:
            self._tell(BlocksStored(parent, tuple(names), session))

    def removed(self, key: str, before: int, left: int) -> None:
        """A segment lost its tail."""
        begin = self._begins[key]
        blocks = range((begin + left) // self._block, (begin + before) // self._block)
        if not left:
            del self._begins[key]
        if blocks:
            self._tell(BlocksRemoved(tuple(_name(key, block) for block in reversed(blocks))))

    def cleared(self) -> None:
        """Nothing is there."""
        self._begins.clear()
        self._tell(BlocksCleared())


def _name(key: str, block: int) -> int:
    return int.from_bytes(blake2b(f"{key}/{block}".encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
