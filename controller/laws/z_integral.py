"""The z-integral on the price: steps by how sure it is that a promise is missed. The default law.

With z and its deviation sd for each side (`controller/evidence.py`) and e = the error of both (`priority.py`), a tick
does one of four things:

    both kept for sure (upper bounds inside)      hold: the price is proven
    a side missed by more than its sd             σ ← σ + q · e / sd, at most `slew`; home ← home + learn · (σ - home)
    else, a side missed or a price not proven     σ ← σ + pull · (home - σ)
    else                                          hold

`sd` is that of e; a side with more room than `COMFORT` counts half of its own, for its room is cut there. Dividing by
it makes one gain do for any amount of traffic, and cancels the slope of the plant (as a Kalman filter's gain does).
Clipping σ is anti-windup, and the evidence of before a move is discounted, so an overload that is over does not go on
pushing.

`home` begins where the price was right in every regime in which it was known, and follows what the evidence asks for.
The pull replaces the wait for evidence that a bad start would need. A price that has kept both promises is left alone
while nothing is amiss, wherever it is. What each part buys is in docs/decisions/0039-z-integral.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot

from .priority import at_rest, error
from .protocol import Action, Adjustment, PriceRange, Priority, Side, Sides

COMFORT = 0.7
"""Log-odds: half of what is allowed."""
ROOM = 0.25
WORST = 3.0
"""Log-odds: twenty times what is allowed; more says no more."""
HOME_PRICE = 0.4


@dataclass(frozen=True, slots=True)
class ZIntegral:
    """`q` is in σ per sd; `slew` most of σ in a tick; `pull` and `learn` are shares of a distance."""

    q: float = 0.02
    slew: float = 0.045
    pull: float = 0.2
    learn: float = 0.5
    home: float = PriceRange().sigma(HOME_PRICE)
    proven: bool = False
    """Both promises have been kept for sure."""
    priority: Priority = Priority.BALANCED

    def __post_init__(self) -> None:
        good = self.q > 0 and 0 < self.slew <= 1 and 0 <= self.pull <= 1 and 0 <= self.learn <= 1
        if not good or not 0 <= self.home <= 1:
            raise ValueError(f"the z-integral needs q > 0, slew in (0, 1], pull, learn and home in 0..1, got {self}")

    def step(self, sigma: float, sides: Sides) -> tuple[ZIntegral, Adjustment]:
        """One tick."""
        ttft, tpot = sides.ttft, sides.tpot
        if not ttft.turns and not tpot.turns:
            return self, Adjustment(sigma, Action.NO_EVIDENCE)
        if (rest := at_rest(self.priority, sigma, sides)) is not None:
            return replace(self, proven=True), rest
        if self.proven and max(ttft.z, tpot.z) <= 0:
            return self, Adjustment(sigma, Action.HOLD)
        if max(ttft.z - ttft.sd, tpot.z - tpot.sd) <= 0:
            back = self.pull * (self.home - sigma)
            return self, Adjustment(sigma + back, Action.RETURN if back else Action.HOLD)
        wanted = error(self.priority, min(ttft.z, WORST), min(tpot.z, WORST), COMFORT, ROOM)
        step = self.q * wanted / hypot(_deviation(ttft), _deviation(tpot))
        to = min(1.0, max(0.0, sigma + min(self.slew, max(-self.slew, step))))
        if to == sigma:
            return self, Adjustment(sigma, Action.HOLD)
        law = replace(self, home=self.home + self.learn * (to - self.home))
        return law, Adjustment(to, Action.PROTECT_TTFT if to > sigma else Action.PROTECT_TPOT)

    @property
    def memory(self) -> Mapping[str, float]:
        """Home and whether it is proven."""
        return {"home": self.home, "proven": float(self.proven)}

    def remembering(self, memory: Mapping[str, float]) -> ZIntegral:
        """With what an earlier one had learnt."""
        home = memory.get("home", self.home)
        return replace(self, home=home if 0 <= home <= 1 else self.home, proven=memory.get("proven", 0.0) > 0)


def _deviation(side: Side) -> float:
    return side.sd / 2 if side.z < -COMFORT else side.sd
