"""What is left of an error budget, how fast it is spent, and when it is gone.

Over the budget's window (28 days, rolling), for a share epsilon that may be bad:

    by requests   spent = bad turns,    allowed = epsilon x valid turns
    by slices     spent = bad slices,   allowed = (1 - good_slices) x measured slices; unknown ones count for nothing
    left          1 - spent / allowed, below 0 when overspent
    burn          (bad / valid) / epsilon over a shorter window: 1 spends the budget in just its own time
    exhausted in  left x over_s / burn, where burn > 1: what is spent leaves the window too, but not before that

A young budget has not seen its 28 days. The rest is then expected to be as busy as what was seen, so `allowed` is
scaled up by over_s / elapsed; likewise `Burn.spent` scales a burn over a longer window than was seen down, and that is
what alerts go by. Without that, the second bad turn of a new installation would be an empty budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from .allowance import Method
from .counts import Count
from .history import History
from .objective import Slo

MONTH_S = 28 * 86_400.0


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Where one budget stands. What is spent and allowed are turns, or slices for a budget by slices."""

    method: Method
    spent: int
    allowed: float
    """In the whole window, expected while it is young."""
    measured: float | None
    """The share of the closed slices so far that had enough turns; None before the first has closed."""
    elapsed_s: float
    """What the budget has seen of its window."""

    @property
    def known(self) -> bool:
        """Whether anything was counted that a budget can be a share of."""
        return self.allowed > 0.0

    @property
    def left(self) -> float:
        """The share that is left: 1 unspent, 0 gone, below that overspent."""
        return 1.0 - self.spent / self.allowed if self.known else 1.0

    @property
    def bad_left(self) -> int:
        """So many more may be bad; below 0 when overspent."""
        return int(self.allowed - self.spent) if self.allowed >= self.spent else -int(self.spent - self.allowed)


def error_budget(slo: Slo, history: History, at: int) -> ErrorBudget:
    """The budget of an SLO with the open slice `at`."""
    budget = slo.budget
    over_s = budget.over_s
    slices = history.slices(over_s, at, slo.epsilon, budget.min_samples)
    closed = slices.measured + slices.unknown
    elapsed_s = min(over_s, max(1, closed + 1) * history.slice_s)
    if budget.method is Method.SLICES:
        elapsed_s = min(over_s, max(1, closed) * history.slice_s)
        spent, allowed = slices.bad, round(1.0 - budget.good_slices, 12) * slices.measured
    else:
        total = history.window(over_s, at)
        spent, allowed = total.bad, slo.epsilon * total.valid
    measured = slices.measured / closed if closed else None
    return ErrorBudget(budget.method, spent, allowed * over_s / elapsed_s, measured, elapsed_s)


@dataclass(frozen=True, slots=True)
class Burn:
    """How the budget was spent over one window."""

    count: Count
    """What was counted in it."""
    rate: float | None
    """How many times faster than allowed; None where nothing says."""
    seen: float
    """The share of the window since counting began."""

    @property
    def spent(self) -> float | None:
        """The rate as if nothing was spent before counting began: what of the budget is really gone by this window."""
        return None if self.rate is None else self.rate * self.seen


def burn(slo: Slo, history: History, at: int, window_s: float, recent: Count | None = None) -> Burn:
    """The burn over a window that ends in slice `at`. `recent` are its counts where they are known more finely than by
    slices."""
    budget = slo.budget
    count = history.window(window_s, at) if recent is None else recent
    seen = 1.0 if recent is not None else min(1.0, (history.elapsed(window_s, at) + 1) * history.slice_s / window_s)
    if budget.method is Method.REQUESTS:
        return Burn(count, count.bad / count.valid / slo.epsilon if count.valid else None, seen)
    allowed = round(1.0 - budget.good_slices, 12)
    if window_s <= history.slice_s:
        known = count.valid >= budget.min_samples
        return Burn(count, float(count.bad > slo.epsilon * count.valid) / allowed if known else None, seen)
    slices = history.slices(window_s, at, slo.epsilon, budget.min_samples)
    return Burn(count, slices.bad / slices.measured / allowed if slices.measured else None, seen)


def exhausted_in_s(slo: Slo, budget: ErrorBudget, rate: float | None) -> float | None:
    """Seconds until nothing is left at a burn of `rate`, 0 if nothing is; None if that is not in sight."""
    if not budget.known:
        return None
    if budget.left <= 0.0:
        return 0.0
    if rate is None or rate <= 1.0:
        return None
    return budget.left * slo.budget.over_s / rate
