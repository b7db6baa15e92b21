"""What a wrong expectation costs: how many decisions it turns.

The error of an expected length in tokens says little, for most decisions are the same whatever the length. So an
estimator of lengths is judged by the decisions that change when the true length takes the place of the expected.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Flips:
    """`flipped` of `turns` decisions would have been others."""

    turns: int
    flipped: int

    @property
    def share(self) -> float | None:
        """0..1; None without turns."""
        return self.flipped / self.turns if self.turns else None


def flips(cases: Iterable[tuple[T, float, float]], decide: Callable[[T, int], object]) -> Flips:
    """Counts over (turn, expected tokens, true tokens); `decide(turn, tokens)` is what a table decides for a turn whose
    reply has that many tokens."""
    turns = flipped = 0
    for turn, expected, true in cases:
        turns += 1
        flipped += decide(turn, max(1, round(expected))) != decide(turn, max(1, round(true)))
    return Flips(turns, flipped)
