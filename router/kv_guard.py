"""The KV guard: what a decode node's memory forbids, and what shows that it is being overrun.

It asks only where a turn could go either way: not for first turns, pins, replicas, or without a P node.

    full    running sequences + this turn > kv_guard · capacity                        → transfer
    short   D evicted some of this conversation, or of others > EVICTING while
            running sequences + this turn > CROWDED · capacity;
            and saved ≤ max(p, 1) · cost                                               → transfer

The first keeps a local prompt from waiting for memory. The second stops the collapse. An evicted conversation that
comes back is a long prompt, and while P has a queue D seems the faster place for it. Computed there, it stops
everybody else on D; they stay longer, so their memory is held longer, more is evicted, and P, which has not seen
these turns, has more to compute when they do reach it. The law sees TTFT far over its objective and lowers the
price, which sends more of them. At p = 1 a turn may cost others no more than it saves itself; below it total delay may
grow, and that is what feeds the loop. So where memory is short the price is never below 1. It is no ban: a P queue that
is long enough still sends the turn to D.

`Churn` watches one D. Its shares are of later turns, by tokens, with a memory of `WINDOW_S`:

    evicted      of their history, what D had and evicted: it comes before a collapse
    recomputed   of the prompt computed for them, on D or on P, what was not new: it is the collapse

The bounds are from docs/decisions/0043. Left out: eviction on P by itself (it shows in `recomputed`), and holding new
conversations back, which was tried and did not pay.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from .features import TurnFeatures

PRICE_FLOOR = 1.0
"""Where D is short of memory, in ms of TTFT per ms × sequence."""
CROWDED = 0.7
"""Share of D's memory above which it is short of it, if it evicts."""
EVICTING = 0.05
"""Share of their history that D's later turns do not find, from which it counts as evicting."""
WINDOW_S = 20.0
MIN_TOKENS = 1000.0
"""Shares of fewer tokens in the window are 0: they say nothing."""
OVERRUN = 0.6
"""Recomputed share from which a node's memory counts as overrun: .2 to .45 without a collapse, .7 to .9 in one."""


def full(features: TurnFeatures, share: float) -> bool:
    """D's running sequences and this turn need more than `share` of its memory."""
    need = features.prompt_tokens + features.n_out
    return features.d_kv_tokens + need > share * features.d_kv_capacity_tokens


def too_dear(features: TurnFeatures, saved_ms: float, cost: float) -> bool:
    """D is short of memory, and local work would delay others there by more than the turn saves."""
    if saved_ms > PRICE_FLOOR * cost:
        return False
    return features.evicted_d > 0 or (features.d_evicted_share > EVICTING and full(features, CROWDED))


@dataclass(slots=True)
class Churn:
    """Later turns of one decode node, in tokens that decay. The time may not run backwards; if it does, it stands."""

    evicted_total: int = 0
    """All that was found evicted, undecayed."""
    _history: float = 0.0
    _evicted: float = 0.0
    _computed: float = 0.0
    _again: float = 0.0
    _now_s: float = 0.0

    def add(self, features: TurnFeatures, local: bool, now_s: float) -> None:
        """A later turn was sent, to be computed on the node itself or on P."""
        self._decay(now_s)
        computed = features.uncached_d if local else features.uncached_p
        self.evicted_total += features.evicted_d
        self._history += features.n_ctx
        self._evicted += features.evicted_d
        self._computed += computed
        self._again += max(0, computed - features.n_in)

    def evicted(self, now_s: float) -> float:
        """Share of their history that the node had evicted, 0..1."""
        self._decay(now_s)
        return min(1.0, self._evicted / self._history) if self._history >= MIN_TOKENS else 0.0

    def recomputed(self, now_s: float) -> float:
        """Share of what was computed for them that was not new, 0..1."""
        self._decay(now_s)
        return min(1.0, self._again / self._computed) if self._computed >= MIN_TOKENS else 0.0

    def _decay(self, now_s: float) -> None:
        passed_s = now_s - self._now_s
        if passed_s <= 0:
            return
        kept = exp(-passed_s / WINDOW_S)
        self._now_s = now_s
        self._history *= kept
        self._evicted *= kept
        self._computed *= kept
        self._again *= kept
