"""One objective over turns, and the verdict on one turn.

An SLO such as "P99 TTFT of later turns at most 2 s" is the statement that at least 99 % of the covered turns
have TTFT <= 2 s. So each turn is judged good, bad or excluded, and everything after that is counting.

The verdict (signal x outcome), for a turn that the SLO covers:

    outcome       success    latency (ttft, tpot, itl, e2e)
    completed     good       good iff the latency <= threshold
    failed        bad        bad
    timed_out     bad        bad
    rejected      bad        excluded: never served, so it has no latency
    client_error  excluded   excluded
    client_gone   excluded   what it got is judged; without it, the wait so far is a lower bound (see `_wait`)

Failed turns are bad in the latency SLOs too, because otherwise dropping load would improve P99. TTFT, TPOT
and ITL exist for streaming turns only; TPOT and ITL need two tokens. One turn is one event, so its ITL is the
mean over its tokens, (last - first) / (n - 1), which is its TPOT: the tokens of a turn are too alike to count
one by one.

Goodput is several conditions on one turn. One that is bad makes the turn bad; if none is and one cannot be known, the
turn is excluded; else it is good.

A request may carry deadlines of its own (`terms.py`). What it asked for is then not what the SLO promises, so an
SLO covers no turn that asked for another deadline of the same signal: TTFT, TPOT (and ITL, by the TPOT deadline), and
goodput by its conditions. Success and end-to-end time have no such deadline and cover it. `match.asked: true` is
about turns that asked, and a threshold of None is then the turn's own deadline (docs/decisions/0032).

Left out: percentiles (`slos/reduce.py`) and what is counted of verdicts (`counts.py`, `history.py`).
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Protocol

from .allowance import REQUESTS_28D, Budget, Method
from .terms import NO_TERMS, Terms


class Signal(StrEnum):
    """What is promised: a latency in seconds, that the turn succeeds, or several of these at once."""

    TTFT = "ttft"
    TPOT = "tpot"
    ITL = "itl"
    E2E = "e2e"
    SUCCESS = "success"
    GOODPUT = "goodput"


class Outcome(StrEnum):
    """How a turn ended."""

    COMPLETED = "completed"
    FAILED = "failed"  # an error of the engine or the router, or a broken stream
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"  # the router's own 429 or 503
    CLIENT_ERROR = "client_error"  # a 4xx that the client earned
    CLIENT_GONE = "client_gone"  # the client hung up


class Verdict(StrEnum):
    """One SLO's word on one turn; valid turns are the good and the bad ones."""

    GOOD = "good"
    BAD = "bad"
    EXCLUDED = "excluded"


STREAMED = frozenset({Signal.TTFT, Signal.TPOT, Signal.ITL})
"""The signals that only a streaming turn has."""
LATENCIES = (Signal.TTFT, Signal.TPOT, Signal.ITL, Signal.E2E)
_ASKABLE = {Signal.TTFT: "ttft_s", Signal.TPOT: "tpot_s", Signal.ITL: "tpot_s"}
"""The signals of which a request may carry a deadline, and where `Terms` has it."""
ASKABLE = frozenset(_ASKABLE)


@dataclass(frozen=True, slots=True)
class Match:
    """The turns an SLO is about: any of the globs (case matters), an inclusive range, streaming or not, any of the
    classes and of the tenants (none: all), and whether the request carried deadlines of its own (`Slo.covers`)."""

    models: tuple[str, ...] = ("*",)
    turn_min: int = 1
    turn_max: int | None = None
    streaming: bool | None = None
    classes: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    asked: bool | None = None

    def covers_model(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    def covers(self, model: str, turn: int, streaming: bool, terms: Terms = NO_TERMS) -> bool:
        """Whether a turn (1-based) of `model` is covered, its own deadlines aside."""
        return (
            turn >= self.turn_min
            and (self.turn_max is None or turn <= self.turn_max)
            and (self.streaming is None or streaming == self.streaming)
            and (not self.classes or terms.slo_class in self.classes)
            and (not self.tenants or terms.tenant in self.tenants)
            and self.covers_model(model)
        )


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that goodput needs. `threshold_s` is None for success, and for a latency that the turn sets itself."""

    signal: Signal
    threshold_s: float | None = None


@dataclass(frozen=True, slots=True)
class Slo:
    """One objective: a share `objective` (0..1) of the covered turns is good.

    `threshold_s` is in seconds; None for success, for goodput (whose `conditions` have theirs), and where the turn's
    own deadline is the threshold. `line` is where the file declares it; two equal SLOs on different lines are equal,
    so that a comment added above them does not look like a change. Raises ValueError for numbers that promise nothing.
    """

    name: str
    signal: Signal
    objective: float
    threshold_s: float | None
    match: Match = Match()
    line: int = field(default=0, compare=False)
    budget: Budget = REQUESTS_28D
    conditions: tuple[Condition, ...] = ()
    """Of goodput, at least one."""
    description: str = field(default="", compare=False)
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Beside those of the whole declaration."""

    def __post_init__(self) -> None:
        if not 0.0 < self.objective < 1.0:
            raise ValueError(f"{self.name}: objective {self.objective} is not inside (0, 1)")
        if (self.signal is Signal.GOODPUT) != bool(self.conditions):
            raise ValueError(f"{self.name}: conditions belong to goodput, and it needs some")
        if any(each.signal is Signal.GOODPUT for each in self.conditions):
            raise ValueError(f"{self.name}: goodput is no condition of goodput")
        for each in self.needed:
            if each.signal is Signal.SUCCESS:
                if each.threshold_s is not None:
                    raise ValueError(f"{self.name}: success has no threshold")
            elif each.threshold_s is None:
                if self.match.asked is not True or each.signal not in ASKABLE:
                    raise ValueError(f"{self.name}: a {each.signal} without a threshold, of turns that need not ask")
            elif not 0.0 < each.threshold_s < math.inf:
                raise ValueError(f"{self.name}: threshold_s {each.threshold_s} is not a positive time")

    @property
    def epsilon(self) -> float:
        """The share that may be bad, .01 for P99; rounded because 1 - .99 is not .01 in binary."""
        return round(1.0 - self.objective, 12)

    @property
    def spendable(self) -> float:
        """The share of what the budget counts, turns or slices, that may be bad."""
        if self.budget.method is Method.SLICES:
            return round(1.0 - self.budget.good_slices, 12)
        return self.epsilon

    @property
    def needed(self) -> tuple[Condition, ...]:
        """What a turn has to meet, all of it."""
        return self.conditions or (Condition(self.signal, self.threshold_s),)

    @property
    def by_request(self) -> bool:
        """A threshold is the turn's own deadline."""
        return any(each.threshold_s is None and each.signal in ASKABLE for each in self.needed)

    def covers(self, turn: "Covered") -> bool:
        """Whether this SLO is about that turn."""
        return self.match.covers(turn.model, turn.turn, turn.streaming, turn.terms) and self._as_asked(turn.terms)

    def _as_asked(self, terms: Terms) -> bool:
        asked = self.match.asked
        if not terms.asked:
            return asked is not True
        if asked is False:
            return False
        own = {_ASKABLE[each.signal] for each in self.needed if each.signal in ASKABLE}
        carried = any(getattr(terms, name) is not None for name in own)
        return (carried or not own) if asked else not carried


class Covered(Protocol):
    """What `Slo.covers` needs to know of a turn."""

    @property
    def model(self) -> str: ...
    @property
    def turn(self) -> int:
        """1-based."""
        ...

    @property
    def streaming(self) -> bool: ...
    @property
    def terms(self) -> Terms: ...


class Measured(Covered, Protocol):
    """What `judge` needs to know of a turn that has ended; `router.record.TurnRecord` has it all."""

    @property
    def ttft_s(self) -> float | None:
        """None without a first token."""
        ...

    @property
    def tpot_s(self) -> float | None: ...
    @property
    def e2e_s(self) -> float | None: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def waited_s(self) -> float:
        """Seconds from accepted to ended."""
        ...


def judge(slo: Slo, measured: Measured) -> Verdict:
    """The verdict of `slo` on one ended turn, by the table above. Never raises."""
    if not slo.covers(measured) or measured.outcome is Outcome.CLIENT_ERROR:
        return Verdict.EXCLUDED
    verdicts = [_judge(each, measured) for each in slo.needed if not _not_asked(each, measured.terms)]
    if Verdict.BAD in verdicts:
        return Verdict.BAD
    return Verdict.EXCLUDED if Verdict.EXCLUDED in verdicts or not verdicts else Verdict.GOOD


def _not_asked(needed: Condition, terms: Terms) -> bool:
    """The condition is the turn's to set, and it has set none."""
    return needed.threshold_s is None and needed.signal in ASKABLE and getattr(terms, _ASKABLE[needed.signal]) is None


def _judge(needed: Condition, measured: Measured) -> Verdict:
    outcome, signal = measured.outcome, needed.signal
    if signal is Signal.SUCCESS:
        return _SUCCESS[outcome]
    if outcome is Outcome.REJECTED or (signal in STREAMED and not measured.streaming):
        return Verdict.EXCLUDED
    if outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        return Verdict.BAD
    threshold_s = needed.threshold_s
    if threshold_s is None:
        threshold_s = getattr(measured.terms, _ASKABLE[signal])
        assert threshold_s is not None
    if signal is Signal.TTFT:
        return _wait(measured.ttft_s, measured.waited_s, threshold_s)
    if signal is Signal.E2E:
        whole_s = measured.e2e_s if outcome is Outcome.COMPLETED else None
        return _wait(whole_s, measured.waited_s, threshold_s)
    if measured.tpot_s is None or measured.output_tokens < 2:
        return Verdict.EXCLUDED
    return _latency(measured.tpot_s, threshold_s)


_SUCCESS = {
    Outcome.COMPLETED: Verdict.GOOD,
    Outcome.FAILED: Verdict.BAD,
    Outcome.TIMED_OUT: Verdict.BAD,
    Outcome.REJECTED: Verdict.BAD,
    Outcome.CLIENT_ERROR: Verdict.EXCLUDED,
    Outcome.CLIENT_GONE: Verdict.EXCLUDED,
}


def _latency(value_s: float, threshold_s: float) -> Verdict:
    # Written so that a NaN, which compares false with everything, comes out bad and is seen.
    return Verdict.GOOD if value_s <= threshold_s else Verdict.BAD


def _wait(value_s: float | None, waited_s: float, threshold_s: float) -> Verdict:
    # Where the awaited moment never came, a wait as long as promised is bad, and a shorter one says nothing.
    if value_s is not None:
        return _latency(value_s, threshold_s)
    return Verdict.BAD if waited_s >= threshold_s else Verdict.EXCLUDED
