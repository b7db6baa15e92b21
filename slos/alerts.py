"""Whether to tell a human that an SLO is broken, and that it is kept again: one state machine per SLO.

    unknown/ok ── breach ──> pending ── breach again ──> firing ── inside ──> clearing ── inside for 5 min ──> ok

An evaluation judges the counts of the last few minutes (`ledger.py`), every 30 s:

    unknown   fewer than 50 valid turns: nothing fires, nothing resolves, and no time counts towards clearing
    breach    at least 3 bad, and if the promise were kept so many bad turns had a chance below 1 - confidence
              (exact binomial test against the share epsilon that may be bad)
    inside    the share that was bad is at most epsilon
    outside   neither: too many, but not proven

Breaching twice in a row fires. Windows overlap, so chances add up: at confidence .999 a service at .9 % of an
allowed 1 % fires once in four days at 2 turns a second (at .99 twice a day; "P99 > threshold" would 180 times a
day). 20 % slow fires after 120, 90 and 60 s at .5, 2 and 10 turns a second, 5 % after 330, 180
and 120 s, 3 % after 1350, 270 and 180 s (medians of tests/slos/test_alerts.py's traffic). After more than 3
alarms within an hour a recovery is held until one of them is an hour old, so a service that flaps gives at most
4 pairs of messages an hour.

Left out: burn rates over days, an alert for no data, silences, repeats, and traffic so thin that 5 minutes
never hold 50 turns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from estimators.binomial import tail

from .counts import Count


class State(StrEnum):
    """Where an SLO's alert stands."""

    OK = "ok"
    PENDING = "pending"
    """One evaluation has found a breach."""
    FIRING = "firing"
    CLEARING = "clearing"
    """Told, and inside the objective since; to a receiver still firing."""
    UNKNOWN = "unknown"
    """Nothing told, and too few turns to say anything."""


class Evidence(StrEnum):
    """What one evaluation says of a window of counts."""

    BREACH = "breach"
    OUTSIDE = "outside"
    INSIDE = "inside"
    UNKNOWN = "unknown"


class Change(StrEnum):
    """What a receiver is told."""

    FIRED = "fired"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Gate:
    """What it takes to fire and to resolve. Raises ValueError for numbers that would never do either."""

    min_valid: int = 50
    min_bad: int = 3
    confidence: float = 0.999
    evaluations: int = 2
    clear_s: float = 300.0
    max_cycles: int = 3
    cycles_within_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise ValueError(f"confidence {self.confidence} is not inside (0, 1)")
        if min(self.min_valid, self.min_bad, self.evaluations, self.max_cycles) < 1 or self.clear_s < 0.0:
            raise ValueError(f"{self} can never fire or never resolve")

    def judge(self, window: Count, epsilon: float) -> Evidence:
        """What these counts say, where a share `epsilon` may be bad."""
        if window.valid < self.min_valid:
            return Evidence.UNKNOWN
        if window.bad <= epsilon * window.valid:
            return Evidence.INSIDE
        proven = window.bad >= self.min_bad and tail(window.bad, window.valid, epsilon) < 1.0 - self.confidence
        return Evidence.BREACH if proven else Evidence.OUTSIDE


@dataclass(frozen=True, slots=True)
class Alert:
    """One SLO's alert. Times are the caller's `now_s`; `fired_s` holds those of the last hour."""

    state: State = State.UNKNOWN
    evidence: Evidence = Evidence.UNKNOWN
    evaluated_s: float | None = None
    breaches: int = 0
    inside_s: float = 0.0
    """Time spent inside since it began to clear; evaluations that knew nothing do not count."""
    fired_s: tuple[float, ...] = ()
    flapping: bool = False
    """It would have resolved, and is held because it fired too often."""

    @property
    def told(self) -> bool:
        """A receiver believes that it fires."""
        return self.state in (State.FIRING, State.CLEARING)

    def after(self, evidence: Evidence, now_s: float, gate: Gate) -> tuple[Alert, Change | None]:
        """The alert after one more evaluation, and what is to be told."""
        step_s = 0.0 if self.evaluated_s is None else max(0.0, now_s - self.evaluated_s)
        recent = tuple(at_s for at_s in self.fired_s if now_s - at_s < gate.cycles_within_s)
        seen = replace(self, evidence=evidence, evaluated_s=now_s, fired_s=recent)
        if self.told:
            return seen._towards_ok(evidence, step_s, gate)
        if evidence is Evidence.BREACH:
            breaches = self.breaches + 1
            if breaches < gate.evaluations:
                return replace(seen, state=State.PENDING, breaches=breaches), None
            return _fired(seen, now_s), Change.FIRED
        state = State.UNKNOWN if evidence is Evidence.UNKNOWN else State.OK
        return replace(seen, state=state, breaches=0), None

    def _towards_ok(self, evidence: Evidence, step_s: float, gate: Gate) -> tuple[Alert, Change | None]:
        if evidence is Evidence.UNKNOWN:
            return self, None
        if evidence is not Evidence.INSIDE:
            return replace(self, state=State.FIRING, inside_s=0.0, flapping=False), None
        if self.state is State.FIRING:
            return replace(self, state=State.CLEARING, inside_s=0.0), None
        inside_s = self.inside_s + step_s
        if inside_s < gate.clear_s:
            return replace(self, inside_s=inside_s), None
        if len(self.fired_s) > gate.max_cycles:
            return replace(self, inside_s=inside_s, flapping=True), None
        return replace(self, state=State.OK, breaches=0, inside_s=0.0, flapping=False), Change.RESOLVED


def _fired(alert: Alert, now_s: float) -> Alert:
    return replace(alert, state=State.FIRING, breaches=0, inside_s=0.0, fired_s=(*alert.fired_s, now_s))
