"""Whether an SLO's alarm is on: two state machines, fed by evaluations. Who is told what is decided in `incidents.py`.

*Breach*, one per SLO: the promise is broken now.

    unknown/ok ── breach ──> pending ── breach again ──> firing ── inside ──> clearing ── inside for 5 min ──> ok

An evaluation judges the counts of the last slice (5 min) and of its last fifth (1 min; `ledger.py`):

    unknown   fewer than 50 valid turns: nothing fires, nothing resolves, and no time counts towards clearing
    breach    at least 3 bad, and if the promise were kept so many bad turns had a chance below 1 - confidence
              (exact binomial test against the share epsilon that may be bad); or so in the last minute, with a tenth
              of that chance
    inside    the share that was bad is at most epsilon
    outside   neither: too many, but not proven

Breaching at so many evaluations in a row fires. The last minute is there because five healthy minutes hide the
first half minute of an incident: at 2 turns a second 20 % slow is proven after 20 s by it, and after 40 by the slice.
Windows overlap, so chances add up: benchmarks/alerts.py says how often a service just inside its promise fires, and how
soon one that is outside.

*Held*, for everything that is simply so or not so (burn rates, no data, parts of the system that fail): on after
`for_s` of it, off after `clear_s` without; an evaluation that knows nothing changes nothing and no time counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from estimators.binomial import tail

from .counts import Count

RECENT_STRICTER = 10.0
"""The last fifth has to be so many times less likely: it is tested as well, so it must not double the false alarms."""


class State(StrEnum):
    """Where an SLO's breach alarm stands."""

    OK = "ok"
    PENDING = "pending"
    """A breach was found, and has to be found again."""
    FIRING = "firing"
    CLEARING = "clearing"
    """Inside the objective since; still firing until that has lasted."""
    UNKNOWN = "unknown"
    """Not firing, and too few turns to say anything."""


class Evidence(StrEnum):
    """What one evaluation says of a window of counts."""

    BREACH = "breach"
    OUTSIDE = "outside"
    INSIDE = "inside"
    UNKNOWN = "unknown"


class Change(StrEnum):
    """What a receiver is told."""

    FIRED = "fired"
    REPEATED = "repeated"
    """It still fires."""
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Gate:
    """What it takes to fire and to resolve. Raises ValueError for numbers that would never do either."""

    min_valid: int = 50
    min_bad: int = 3
    confidence: float = 0.999
    evaluations: int = 2
    clear_s: float = 300.0

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise ValueError(f"confidence {self.confidence} is not inside (0, 1)")
        if min(self.min_valid, self.min_bad, self.evaluations) < 1 or self.clear_s < 0.0:
            raise ValueError(f"{self} can never fire or never resolve")

    def judge(self, window: Count, epsilon: float, recent: Count | None = None) -> Evidence:
        """What these counts say, where a share `epsilon` may be bad; `recent` is the window's last part."""
        chance = 1.0 - self.confidence
        if recent is not None and self._proven(recent, epsilon, chance / RECENT_STRICTER):
            return Evidence.BREACH
        if window.valid < self.min_valid:
            return Evidence.UNKNOWN
        if window.bad <= epsilon * window.valid:
            return Evidence.INSIDE
        return Evidence.BREACH if self._proven(window, epsilon, chance) else Evidence.OUTSIDE

    def _proven(self, counts: Count, epsilon: float, chance: float) -> bool:
        if counts.valid < self.min_valid or counts.bad < self.min_bad or counts.bad <= epsilon * counts.valid:
            return False
        return tail(counts.bad, counts.valid, epsilon) < chance


@dataclass(frozen=True, slots=True)
class Alert:
    """One SLO's breach alarm. Times are the caller's `now_s`."""

    state: State = State.UNKNOWN
    evidence: Evidence = Evidence.UNKNOWN
    evaluated_s: float | None = None
    breaches: int = 0
    inside_s: float = 0.0
    """Time spent inside since it began to clear; evaluations that knew nothing do not count."""

    @property
    def firing(self) -> bool:
        """It fires, or has not been inside for long enough."""
        return self.state in (State.FIRING, State.CLEARING)

    def after(self, evidence: Evidence, now_s: float, gate: Gate) -> Alert:
        """The alarm after one more evaluation."""
        step_s = 0.0 if self.evaluated_s is None else max(0.0, now_s - self.evaluated_s)
        seen = replace(self, evidence=evidence, evaluated_s=now_s)
        if self.firing:
            return seen._towards_ok(evidence, step_s, gate)
        if evidence is Evidence.BREACH:
            breaches = self.breaches + 1
            if breaches < gate.evaluations:
                return replace(seen, state=State.PENDING, breaches=breaches)
            return replace(seen, state=State.FIRING, breaches=0, inside_s=0.0)
        return replace(seen, state=State.UNKNOWN if evidence is Evidence.UNKNOWN else State.OK, breaches=0)

    def _towards_ok(self, evidence: Evidence, step_s: float, gate: Gate) -> Alert:
        if evidence is Evidence.UNKNOWN:
            return self
        if evidence is not Evidence.INSIDE:
            return replace(self, state=State.FIRING, inside_s=0.0)
        if self.state is State.FIRING:
            return replace(self, state=State.CLEARING, inside_s=0.0)
        inside_s = self.inside_s + step_s
        if inside_s < gate.clear_s:
            return replace(self, inside_s=inside_s)
        return replace(self, state=State.OK, breaches=0, inside_s=0.0)


@dataclass(frozen=True, slots=True)
class Held:
    """Something that is on once it has been so for long enough, and off once it has not."""

    firing: bool = False
    held_s: float = 0.0
    """How long it has been otherwise than `firing` says."""
    evaluated_s: float | None = None
    seen: bool | None = None
    """The last evaluation."""

    def after(self, so: bool | None, now_s: float, for_s: float, clear_s: float) -> Held:
        """After one more evaluation; None: nothing can be said."""
        step_s = 0.0 if self.evaluated_s is None else max(0.0, now_s - self.evaluated_s)
        if so is None:
            return replace(self, evaluated_s=now_s, seen=None)
        if so is self.firing:
            return Held(self.firing, 0.0, now_s, so)
        # The first evaluation that differs begins the time; one with nothing to say between does not end it.
        held_s = self.held_s + (step_s if self.seen is so or self.held_s > 0.0 else 0.0)
        if held_s >= (clear_s if self.firing else for_s):
            return Held(so, 0.0, now_s, so)
        return Held(self.firing, held_s, now_s, so)
