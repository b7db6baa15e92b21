"""Prompts of exact length in tokens, whatever the tokenizer and the chat template are.

A first message begins with eight words drawn from a list, so no two conversations share a prefix; the rest is filler,
cut to size. All words of the list are equally long and cost the engine the same number of tokens, which is measured
once: so the size is searched once per length and holds for every draw. Later messages need no words of their own, for
their prefix is already unlike any other.

The engine counts: by /tokenize where it has that route, else by usage of a one-token completion. Where the template
alone is longer than the wanted length, the shortest message stands; the measurement uses the engine's counts anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random

Message = dict[str, str]
Count = Callable[[Sequence[Message]], Coroutine[object, object, int]]
"""Prompt tokens of these messages with the header of the answer to come."""

_LIST = """
    able acid area army baby back ball bank base bath bear beat bell belt bird blue boat body bone book boot born
    boss bowl cake call calm camp card care cash cell city clay club coal coat code cold cook cool copy corn cost
"""
WORDS = tuple(_LIST.split())
TAG_WORDS = 8
FILLER = " the sun rose over the hill and the road ran down to the old mill by the slow river"
TRIES = 24


@dataclass(slots=True)
class Texts:
    """The texts of one run. `anchor` is an opener with its answer, and how many tokens the two are."""

    count: Count
    dice: Random
    anchor: tuple[Sequence[Message], int]
    _words: tuple[str, ...] = ()
    _sizes: dict[tuple[bool, int], int] = field(default_factory=dict)
    missed: dict[tuple[bool, int], int] = field(default_factory=dict)
    """Lengths that the template does not allow, by (first turn?, wanted tokens), with what came instead."""

    async def learn(self, firsts: Sequence[int], laters: Sequence[int]) -> None:
        """Find words of equal cost, and the size in characters of every length needed."""
        costs = {word: await self.count(_user(f"one {word} two")) for word in WORDS}
        usual = Counter(costs.values()).most_common(1)[0][0]
        self._words = tuple(word for word in WORDS if costs[word] == usual)
        for tokens in sorted(set(firsts)):
            await self._search(True, tokens)
        for tokens in sorted(set(laters)):
            await self._search(False, tokens)

    def first(self, tokens: int) -> str:
        """An opener unlike any other, of so many tokens as a prompt."""
        return self._text(True, self._sizes[True, tokens])

    def later(self, tokens: int) -> str:
        """A message that adds so many tokens to a conversation."""
        return self._text(False, self._sizes[False, tokens])

    async def _search(self, first: bool, tokens: int) -> None:
        """The size whose count is nearest to `tokens`: by the secant, then step by step."""
        known: dict[int, int] = {}
        size = max(1, tokens * 4)
        for _ in range(TRIES):
            known[size] = await self._count(first, size)
            miss = tokens - known[size]
            if not miss:
                break
            ratio = 4.0 if len(known) < 2 else _slope(known)
            step = round(miss * ratio) or (1 if miss > 0 else -1)
            size = max(1, size + step)
            while size in known and size > 1:
                size += 1 if miss > 0 else -1
            if size in known:
                break
        best = min(known, key=lambda each: (abs(known[each] - tokens), each))
        if known[best] != tokens:
            self.missed[first, tokens] = known[best]
        self._sizes[first, tokens] = best

    async def _count(self, first: bool, size: int) -> int:
        if first:
            return await self.count(_user(self._text(True, size)))
        said, tokens = self.anchor
        return await self.count([*said, *_user(self._text(False, size))]) - tokens

    def _text(self, first: bool, size: int) -> str:
        head = " ".join(self.dice.choices(self._words, k=TAG_WORDS)) if first else ""
        text = (head + FILLER * (1 + size // len(FILLER))).lstrip()
        return text[:size]


def _slope(known: dict[int, int]) -> float:
    """Characters per token between the smallest and the largest size tried."""
    low, high = min(known), max(known)
    return max(0.25, (high - low) / max(1, known[high] - known[low]))


def _user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
