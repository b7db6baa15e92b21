"""A node's poisoned cache: prompts whose KV is not theirs, and whose answers are therefore wrong.

A decode leg that read an expired lease leaves garbage in D's prefix cache under the prompt's key. Whoever hits it
later, transferred or not, gets other text, until the garbage is evicted and computed anew or the process restarts.
"""

from __future__ import annotations

from ..engine import Job

MAX_KEYS = 100_000
"""Beyond this the oldest are forgotten."""


class Taint:
    """Keys of segments that hold garbage on one node."""

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def taste(self, job: Job) -> bool:
        """Whether what this job computes on is garbage; call it at the job's first token."""
        if not self._keys and not job.poisoned:
            return False
        hit = job.cached_tokens
        found: list[str] = []
        new: list[str] = []
        for key, tokens in job.prompt:
            (found if hit > 0 else new).append(key)
            hit -= tokens
        wrong = job.poisoned or any(key in self._keys for key in found)
        for key in new:
            if wrong:  # computed on garbage
                self._keys[key] = None
            else:
                self._keys.pop(key, None)
        while len(self._keys) > MAX_KEYS:
            del self._keys[next(iter(self._keys))]
        return wrong

    def clear(self) -> None:
        """The process restarted."""
        self._keys.clear()
