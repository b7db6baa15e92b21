"""The verdict on one slice of time, from its counts alone: kept, broken, or too few turns to say.

    unknown   fewer than `min_samples` valid turns: never counted as good, nor as bad
    breach    so many bad turns had a chance below 1 - confidence if the promise were kept (exact binomial test)
    ok        everything else; a share over what is allowed, and not beyond chance, is still ok

"More bad than allowed" alone would call a healthy service broken every few slices: at .9 % slow of an allowed 1 %, 600
turns hold more than six slow ones two times in five. So with a budget by slices the objective may be missed by a
little, for ever: small misses are what a budget by requests adds up. Left out: how often to look, and what to tell
anybody (`alerts.py`).
"""

from dataclasses import dataclass
from enum import StrEnum

from estimators.binomial import tail

from .counts import Count

CONFIDENCE = 0.95


class SliceVerdict(StrEnum):
    """Of one slice."""

    OK = "ok"
    BREACH = "breach"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Slice:
    """A verdict, and the chance of so many bad turns or more with the promise kept; None where it is unknown."""

    verdict: SliceVerdict
    p_value: float | None


def judge_slice(count: Count, epsilon: float, min_samples: int, confidence: float = CONFIDENCE) -> Slice:
    """What these counts say, where a share `epsilon` may be bad. Raises ValueError for a confidence outside (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence} is not inside (0, 1)")
    if count.valid < max(1, min_samples):
        return Slice(SliceVerdict.UNKNOWN, None)
    chance = tail(count.bad, count.valid, epsilon)
    return Slice(SliceVerdict.BREACH if chance < 1.0 - confidence else SliceVerdict.OK, chance)
