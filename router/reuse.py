"""What of its history a conversation's next prompt repeats, as learned from what engines found cached.

An engine that finds less than was believed has either evicted it, or met another prompt: a chat template that
strips the reasoning of earlier answers, a client that edits, a system prompt with the time in it. The second
says nothing about the engine's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a node had, against what was believed."""

    HIT = "hit"
    EVICTED = "evicted"
    CHANGED = "changed"
    """The prompt did not repeat what the node holds."""


@dataclass(slots=True)
class Reuse:
    """Of one conversation."""

    prompt_tokens: int = 0
    """Of the last answered turn."""
    answers: bool = True
    """The next prompt repeats the answers, token by token."""
    doubted: bool = False
    """Less than believed was found last time."""

    def usable(self, held_tokens: int) -> int:
        """What the next prompt will find of what a node holds."""
        return held_tokens if self.answers else min(held_tokens, self.prompt_tokens)

    def judge(self, believed_tokens: int, cached_tokens: int, block_tokens: int, decoded: bool) -> Verdict:
        """A node told what it found. Both counts are whole blocks of the prompt at hand; `decoded`: the node holds the
        answers too.

        A prefix that ends where the last answer began (to two blocks) is a changed answer. Less than that is eviction
        the first time; a conversation that falls short again and again never repeats its prompt.
        """
        if cached_tokens >= believed_tokens:
            self.doubted = False
            if decoded and cached_tokens > self.prompt_tokens + block_tokens:
                self.answers = True
            return Verdict.HIT
        if decoded and 0 < self.prompt_tokens <= cached_tokens + 2 * block_tokens:
            self.answers = False
            return Verdict.CHANGED
        again, self.doubted = self.doubted, True
        return Verdict.CHANGED if again else Verdict.EVICTED
