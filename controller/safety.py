"""What the controller may do with one model's price now, and why: a state machine over one tick's signs.

    OFFLINE        nothing to steer: no router reports, or no table knows the model. The price stays where it is
    SHADOW         the law is not asked, or not heeded: readings only, never a publication
    ACTIVE         the law moves the price
    HOLD           the price stays: the readings are of another policy, or are missing
    FALLBACK_HOME  the price goes to the start price in `HOME_TICKS` steps and stays there
    PINNED         an operator fixed the share of local turns

Missing readings: `MUTE_TICKS` without an ended turn, though turns are in flight and so many should have ended that
chance explains it no more (`EXPECTED`, of a Poisson process at the pace before) -> HOLD; after more than `STALE_TICKS`
-> FALLBACK_HOME. An idle fleet is not mute, and its price stays.

The fallback ends by itself: with the first turn that ends where readings were missing, after `RETRY_TICKS` where the
fleet answered with the wrong sign. What comes back goes through HOLD for the ticks of a window first, since what a
window reads then was measured under another policy, or long ago.

One default law, so no fallback from law to law: see docs/decisions/0040-safety-states.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, log

from .cells import WINDOW_TICKS
from .moves import Moves

MUTE_TICKS = 3
STALE_TICKS = 12
EXPECTED = 5.0
"""exp(-5) < 1 %."""
HOME_TICKS = 6
RETRY_TICKS = 120
"""Ten minutes."""
DAMPED_TICKS = 30
DAMPED_GAIN = 0.5
PACE = 0.8
"""What a tick leaves of the pace before it."""


class State(StrEnum):
    """What the controller may do with a price."""

    OFFLINE = "offline"
    SHADOW = "shadow"
    ACTIVE = "active"
    HOLD = "hold"
    FALLBACK_HOME = "fallback_home"
    PINNED = "pinned"


class Why(StrEnum):
    """Why it is in its state."""

    STARTING = "starting"
    NO_ROUTERS = "no_routers"
    NO_TABLE = "no_table"
    NO_LAW = "no_law"
    OBSERVING = "observing"
    RUNNING = "running"
    LIMIT_CYCLE = "limit_cycle"
    PINNED = "pinned"
    SET_BY_HAND = "set_by_hand"
    SETTLING = "settling"
    STALLED = "stalled"
    REVERTED = "reverted"
    NO_SAMPLES = "no_samples"
    STALE = "stale"
    WRONG_SIGN = "wrong_sign"


@dataclass(frozen=True, slots=True)
class Signs:
    """What one tick shows of one model before its law is asked."""

    price: float
    """In force."""
    home_price: float
    """The start price."""
    turns: int = 0
    """Ended since the last tick."""
    in_flight: bool = False
    """Turns of it are under way."""
    heard: bool = True
    """Some report came since the last tick; without one, nobody knows whether a turn ended."""
    balance: float | None = None
    """At the last tick (`moves.balance`)."""
    routers: bool = True
    """Some router reports."""
    table: bool = True
    """Some table knows the model."""
    law: bool = True
    """There is a law that may move it."""
    observing: bool = False
    """The law is asked and not heeded."""
    pinned: bool = False
    held: bool = False
    """An operator set the weights and wants them to stay."""
    stalled: bool = False
    """No tick for several intervals before this one."""
    changed: bool = False
    """An operator changed the price since the last tick."""
    reverted: bool = False
    """Such a change was taken back in this tick."""


@dataclass(frozen=True, slots=True)
class Safety:
    """One model's state. All memory is in it, so that it can be stored and gone on from."""

    state: State = State.OFFLINE
    reason: Why = Why.STARTING
    since_tick: int = 0
    """When state or reason last changed, in `ticks`."""
    ticks: int = 0
    pace: float = 0.0
    """Ended turns a tick, before they failed to come."""
    silent: int = 0
    """Ticks in a row without an ended turn."""
    busy: bool = False
    """Turns were in flight in one of these."""
    settle: int = 0
    """Ticks to hold yet."""
    cause: Why = Why.SETTLING
    """Why they are held."""
    retry: int = 0
    """Ticks to stay at home yet after a wrong sign."""
    damped: int = 0
    """Ticks with half steps yet."""
    left_price: float = 0.0
    """Where the way home began."""
    home_price: float = 0.0
    moves: Moves = field(default_factory=Moves)

    @property
    def may_move(self) -> bool:
        """The law may move the price."""
        return self.state is State.ACTIVE

    @property
    def gain(self) -> float:
        """How much of a law's step is taken."""
        return DAMPED_GAIN if self.damped else 1.0

    @property
    def target_price(self) -> float | None:
        """Where the price has to be after this tick, whatever a law says; None if nothing asks for that."""
        if self.state is not State.FALLBACK_HOME or not 0 < self.left_price < inf:
            return None
        share = (self.ticks - self.since_tick + 1) / HOME_TICKS
        if share >= 1:
            return self.home_price
        return float(self.left_price * (self.home_price / self.left_price) ** share)

    def after(self, signs: Signs) -> Safety:
        """The state of this tick."""
        return self._counted(signs)._judged(signs)

    def resumed(self) -> Safety:
        """An operator says that all is well: nothing is waited for any more, and nothing held against the fleet."""
        return replace(self, silent=0, busy=False, settle=0, retry=0, damped=0, moves=Moves())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _counted(self, signs: Signs) -> Safety:
        """What is counted, whatever the state."""
        now = replace(self, ticks=self.ticks + 1, retry=max(0, self.retry - 1), damped=max(0, self.damped - 1))
        if signs.turns:
            if now._mute:
                return replace(now, silent=0, busy=False)._settled()
            kept = PACE ** (self.silent + 1)  # the ticks without one count, too
            pace = kept * self.pace + (1 - kept) * signs.turns / (self.silent + 1)
            return replace(now, pace=pace, silent=0, busy=False)
        if not signs.heard:
            return now
        return replace(now, silent=self.silent + 1, busy=self.busy or signs.in_flight)

    def _judged(self, signs: Signs) -> Safety:
        if signs.observing:
            return self._into(State.SHADOW, Why.OBSERVING)
        if signs.pinned:
            return self._settled()._into(State.PINNED, Why.PINNED)
        if not signs.law:
            return self._into(State.SHADOW, Why.NO_LAW)
        if not signs.routers:
            known = self._settled() if self.pace else self
            return replace(known, silent=0, busy=False)._into(State.OFFLINE, Why.NO_ROUTERS)
        if not signs.table:
            return self._into(State.OFFLINE, Why.NO_TABLE)
        if signs.reverted:
            return self._settled(Why.REVERTED)._held()
        if signs.held:
            return self._into(State.HOLD, Why.SET_BY_HAND)
        if self.retry:
            return self._home(Why.WRONG_SIGN, signs)
        if self._mute:
            return self._missing(signs)
        if signs.stalled or signs.changed:
            return self._settled(Why.STALLED if signs.stalled else Why.SETTLING)._held()
        return self._held() if self.settle else self._active(signs)

    @property
    def _mute(self) -> bool:
        """Turns should have ended by now."""
        return self.silent >= MUTE_TICKS and self.busy and self.pace * self.silent >= EXPECTED

    def _missing(self, signs: Signs) -> Safety:
        held = self.ticks - self.since_tick if self.reason is Why.NO_SAMPLES else 0
        if self.reason is Why.STALE or (self.silent > STALE_TICKS and held > STALE_TICKS - MUTE_TICKS):
            return self._home(Why.STALE, signs)
        return self._into(State.HOLD, Why.NO_SAMPLES)

    def _home(self, why: Why, signs: Signs) -> Safety:
        if self.state is not State.FALLBACK_HOME:
            self = replace(self, left_price=signs.price)
        kept = self.since_tick if self.state is State.FALLBACK_HOME else self.ticks
        home = replace(self._settled(), home_price=signs.home_price)._into(State.FALLBACK_HOME, why)
        return replace(home, since_tick=kept)

    def _active(self, signs: Signs) -> Safety:
        moves = self.moves.after(log(signs.price), signs.balance) if 0 < signs.price < inf else Moves()
        if moves.wrong:
            return replace(self, retry=RETRY_TICKS)._home(Why.WRONG_SIGN, signs)
        damped = DAMPED_TICKS if moves.cycling else self.damped
        if moves.cycling:
            moves = replace(moves, levels=moves.levels[-1:])
        reason = Why.LIMIT_CYCLE if damped else Why.RUNNING
        return replace(replace(self, damped=damped)._into(State.ACTIVE, reason), moves=moves)

    def _settled(self, cause: Why = Why.SETTLING) -> Safety:
        return replace(self, settle=WINDOW_TICKS, cause=cause)

    def _held(self) -> Safety:
        return replace(self, settle=self.settle - 1)._into(State.HOLD, self.cause)

    def _into(self, state: State, reason: Why) -> Safety:
        moves = self.moves if state is State.ACTIVE else Moves()
        if (state, reason) == (self.state, self.reason):
            return replace(self, moves=moves)
        return replace(self, state=state, reason=reason, since_tick=self.ticks, moves=moves)


def foremost(all_of: list[Safety]) -> Safety:
    """Of several models' states the one to be told first; without any, a process that starts."""
    order = (State.FALLBACK_HOME, State.PINNED, State.OFFLINE, State.HOLD, State.SHADOW, State.ACTIVE)
    return min(all_of, key=lambda safety: order.index(safety.state), default=Safety())
