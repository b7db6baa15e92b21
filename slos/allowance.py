"""How much may be bad, and over how long: the error budget that an SLO declares.

By requests, the share 1 - objective of the valid turns in `over_s` may be bad. By slices, each slice of time whose
turns keep the objective is good, one with too few turns is unknown and counts for nothing, and the share `good_slices`
of the measured ones is to be good: quiet hours then weigh as much as busy ones.
"""

from dataclasses import dataclass
from enum import StrEnum

STEP_S = 30.0
"""A slice is a multiple of it, and divides a day."""
DAY_S = 86_400.0
SLICES_S = tuple(n * STEP_S for n in range(1, 2881) if DAY_S % (n * STEP_S) == 0)
"""All that do."""


class Method(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    SLICES = "slices"


@dataclass(frozen=True, slots=True)
class Budget:
    """Rolling over `over_s`; a slice lasts `slice_s` and is measured from `min_samples` valid turns on."""

    over_s: float = 28 * 86_400.0
    method: Method = Method.REQUESTS
    good_slices: float = 0.99
    slice_s: float = 300.0
    min_samples: int = 100


REQUESTS_28D = Budget()
"""What an SLO has that says nothing of budgets."""
