"""What a price has done of late, and whether the fleet answered as it should.

**Reversals**: turning points of ln p over the last `CYCLE_TICKS`, each after a swing of `SWING` or more. More than
`MAX_REVERSALS` are a limit cycle. An answer takes half a minute to be seen, so that a cycle takes a minute and more.
The swing is above two steps of AIMD (.11 nat near the start price), whose single steps up and down are its saw-tooth
and no cycle; the z-integral's are larger only where a miss is sure.

**Sign**: a higher price sends less to D, so TPOT falls and TTFT rises. The balance is ln(severity of TPOT) minus
ln(severity of TTFT), and it has to fall after the price rose. Price and balance are noted every `EVERY_TICKS`, so that
the windows which the percentiles come from do not overlap. Of three notes in a row the change of ln p between the first
two is a move, and the change of the balance from the first to the last its answer: half a window may see it before the
second note, all of one does by the third. The next three begin with the last of these, so that no answer counts twice.
Over `MOVES` moves Spearman's rank correlation of the two is tested: above `CRITICAL` (p < .01, one-sided) the fleet
answers with the wrong sign. The moves are dropped after a test, so that each is judged once.

A correlation says nothing of moves that all go one way: a price that falls while a queue grows looks the same whether
the load grew or the sign is wrong. So a test needs `MIN_EACH_WAY` moves up and as many down; runs in one direction are
left to the bounds and to `feasibility`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import StatisticsError, correlation

from slos.reduce import Binding

from .cells import WINDOW_TICKS

CYCLE_TICKS = 24
"""Two minutes."""
MAX_REVERSALS = 3
SWING = 0.276
"""Of ln p: a twentieth of the price range, and 15 % of the local share at most, which moves by .61 per nat (the paper's
figure 6)."""
EVERY_TICKS = WINDOW_TICKS
MOVES = 20
MIN_EACH_WAY = 5
CRITICAL = 0.52
"""Of Spearman's correlation, for 20 pairs and p < .01 on one side."""
MOST_SEVERE = 1e3
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Moves:
    """One model's, while its law may move the price. Bounded by `CYCLE_TICKS` and `MOVES`."""

    levels: tuple[float, ...] = ()
    """ln p by tick."""
    notes: tuple[tuple[float, float], ...] = ()
    """The last notes of (ln p, balance), two at most."""
    answered: tuple[tuple[float, float], ...] = ()
    """(move, its answer)."""
    ticks: int = 0
    wrong: bool = False
    """The last test found the wrong sign."""

    def after(self, ln_price: float, balance: float | None) -> Moves:
        """One tick more; `balance` None without readings on both sides."""
        levels = (*self.levels, ln_price)[-CYCLE_TICKS - 1 :]
        moved = replace(self, levels=levels, ticks=self.ticks + 1)
        if self.ticks % EVERY_TICKS:
            return moved
        return moved._noted(ln_price, balance)

    def _noted(self, ln_price: float, balance: float | None) -> Moves:
        if balance is None:
            return replace(self, notes=())
        notes, answered = (*self.notes, (ln_price, balance)), self.answered
        if len(notes) == 3:
            (before, then), (at, _), _ = notes
            notes = notes[-1:]
            if abs(at - before) > SAME:
                answered = (*answered, (at - before, balance - then))[-MOVES:]
        noted = replace(self, notes=notes, answered=answered)
        ups = sum(move > 0 for move, _ in answered)
        if len(answered) < MOVES or not MIN_EACH_WAY <= ups <= MOVES - MIN_EACH_WAY:
            return noted
        return replace(noted, answered=(), wrong=_ranked(answered) > CRITICAL)

    @property
    def cycling(self) -> bool:
        """The price goes to and fro."""
        return reversals(self.levels) > MAX_REVERSALS


def balance(binding: Binding) -> float | None:
    """ln(severity of TPOT) - ln(severity of TTFT), None without both."""
    if binding.ttft is None or binding.tpot is None:
        return None
    ttft, tpot = binding.ttft.severity, binding.tpot.severity
    if ttft is None or tpot is None:
        return None
    return log(_bounded(tpot)) - log(_bounded(ttft))


def reversals(levels: Sequence[float], swing: float = SWING) -> int:
    """Turning points after swings of at least `swing`."""
    found, way = 0, 0
    low = high = levels[0] if levels else 0.0
    for level in levels:
        low, high = min(low, level), max(high, level)
        if way >= 0 and high - level >= swing:
            found += way > 0
            way, low, high = -1, level, level
        elif way <= 0 and level - low >= swing:
            found += way < 0
            way, low, high = 1, level, level
    return found


def _bounded(severity: float) -> float:
    return min(MOST_SEVERE, max(1 / MOST_SEVERE, severity))


def _ranked(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's correlation; 0 where one of the two never changes."""
    try:
        return correlation(_ranks([x for x, _ in pairs]), _ranks([y for _, y in pairs]))
    except StatisticsError:
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks, equal values share theirs."""
    ordered = sorted(values)
    return [(ordered.index(value) + len(ordered) - 1 - ordered[::-1].index(value)) / 2 for value in values]
