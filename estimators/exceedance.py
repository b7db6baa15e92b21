"""The share of turns that miss an SLO, with exact bounds, and its log-odds over what the SLO allows.

Counting misses is exact where estimating a percentile is not: "P99 <= T" says that at most epsilon = 1 %
exceed T.

Bounds: Clopper-Pearson, one-sided each. With k misses of n the upper bound is the 1 - alpha quantile of
Beta(k + 1, n - k), the lower one the alpha quantile of Beta(k, n - k + 1). 299 turns without a miss prove a
P99 at 95 %. Misses come in bursts; the design effect (variance of their number over that of independent ones,
>= 1) says how many turns carry the evidence of one, and divides both counts.

Log-odds: z = ln((k + m eps) / (n - k + m (1 - eps))) - logit(eps), the prior m = 50 turns of exactly eps, so
that no data means z = 0. z > 0 means more misses than promised. Its variance is
design effect x (1 / (k + m eps) + 1 / (n - k + m (1 - eps))).

Counts may be fractions, as discounted counts are. Needs scipy: the control process imports this, the router
never.
"""

import math
from dataclasses import dataclass

from scipy.special import betaincinv

from .protocol import Estimate

CONFIDENCE = 0.95
PRIOR_TURNS = 50.0


@dataclass(frozen=True, slots=True)
class Exceedance:
    """`bad` of `valid` turns missed. Raises ValueError unless 0 <= bad <= valid and design_effect >= 1."""

    bad: float
    valid: float
    design_effect: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.bad <= self.valid < math.inf:
            raise ValueError(f"{self.bad} bad of {self.valid} valid turns")
        if not 1.0 <= self.design_effect < math.inf:
            raise ValueError(f"design effect {self.design_effect} is not at least 1")

    def estimate(self, now_s: float, confidence: float = CONFIDENCE) -> Estimate:
        """The share (0..1) and its bounds, each one-sided at `confidence`; `n` is in effective turns."""
        if self.valid == 0.0:
            return Estimate(None, None, None, 0.0, now_s)
        k, n = self.bad / self.design_effect, self.valid / self.design_effect
        low = 0.0 if k == 0.0 else float(betaincinv(k, n - k + 1.0, 1.0 - confidence))
        high = 1.0 if k == n else float(betaincinv(k + 1.0, n - k, confidence))
        return Estimate(self.bad / self.valid, low, high, n, now_s)

    def log_odds_over(self, epsilon: float, prior_turns: float = PRIOR_TURNS) -> float:
        """z: 0 at the promise, positive when missed. `epsilon` in (0, 1)."""
        missed, kept = self._with_prior(epsilon, prior_turns)
        return math.log(missed / kept) - math.log(epsilon / (1.0 - epsilon))

    def log_odds_variance(self, epsilon: float, prior_turns: float = PRIOR_TURNS) -> float:
        """The variance of `log_odds_over`."""
        missed, kept = self._with_prior(epsilon, prior_turns)
        return self.design_effect * (1.0 / missed + 1.0 / kept)

    def _with_prior(self, epsilon: float, prior_turns: float) -> tuple[float, float]:
        if not 0.0 < epsilon < 1.0 or prior_turns <= 0.0:
            raise ValueError(f"epsilon {epsilon} is not inside (0, 1), or prior {prior_turns} not positive")
        kept = self.valid - self.bad + prior_turns * (1.0 - epsilon)
        return self.bad + prior_turns * epsilon, kept
