"""One objective over turns, and the verdict on one turn.

An SLO such as "P99 TTFT of later turns at most 2 s" is the statement that at least 99 % of the covered turns
have TTFT <= 2 s. So each turn is judged good, bad or excluded, and everything after that is counting.

The verdict (signal x outcome), for a turn that the SLO's match covers:

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

Left out: percentiles (`slos/reduce.py`), budgets, and conditions over several signals of a turn.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Protocol

from .allowance import REQUESTS_28D, Budget


class Signal(StrEnum):
    """What is promised: a latency in seconds, or that the turn succeeds."""

    TTFT = "ttft"
    TPOT = "tpot"
    ITL = "itl"
    E2E = "e2e"
    SUCCESS = "success"


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


@dataclass(frozen=True, slots=True)
class Match:
    """The turns an SLO is about: any of the globs (case matters), an inclusive range, streaming or not."""

    models: tuple[str, ...] = ("*",)
    turn_min: int = 1
    turn_max: int | None = None
    streaming: bool | None = None

    def covers_model(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    def covers(self, model: str, turn: int, streaming: bool) -> bool:
        """Whether a turn (1-based) of `model` is covered."""
        return (
            turn >= self.turn_min
            and (self.turn_max is None or turn <= self.turn_max)
            and (self.streaming is None or streaming == self.streaming)
            and self.covers_model(model)
        )


@dataclass(frozen=True, slots=True)
class Slo:
    """One objective: a share `objective` (0..1) of the covered turns is good.

    `threshold_s` is in seconds, None for success. `line` is where the file declares it; two equal SLOs on
    different lines are equal, so that a comment added above them does not look like a change. Raises
    ValueError for numbers that promise nothing.
    """

    name: str
    signal: Signal
    objective: float
    threshold_s: float | None
    match: Match = Match()
    line: int = field(default=0, compare=False)
    budget: Budget = REQUESTS_28D

    def __post_init__(self) -> None:
        if not 0.0 < self.objective < 1.0:
            raise ValueError(f"{self.name}: objective {self.objective} is not inside (0, 1)")
        if self.signal is Signal.SUCCESS:
            if self.threshold_s is not None:
                raise ValueError(f"{self.name}: success has no threshold")
        elif self.threshold_s is None or not 0.0 < self.threshold_s < math.inf:
            raise ValueError(f"{self.name}: threshold_s {self.threshold_s} is not a positive time")

    @property
    def epsilon(self) -> float:
        """The share that may be bad, .01 for P99; rounded because 1 - .99 is not .01 in binary."""
        return round(1.0 - self.objective, 12)


class Measured(Protocol):
    """What `judge` needs to know of a turn that has ended; `router.record.TurnRecord` has it all."""

    @property
    def model(self) -> str: ...
    @property
    def turn(self) -> int:
        """1-based."""
        ...

    @property
    def streaming(self) -> bool: ...
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
    outcome = measured.outcome
    covered = slo.match.covers(measured.model, measured.turn, measured.streaming)
    if not covered or outcome is Outcome.CLIENT_ERROR:
        return Verdict.EXCLUDED
    if slo.threshold_s is None:
        return _SUCCESS[outcome]
    if outcome is Outcome.REJECTED or (slo.signal in STREAMED and not measured.streaming):
        return Verdict.EXCLUDED
    if outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        return Verdict.BAD
    if slo.signal is Signal.TTFT:
        return _wait(measured.ttft_s, measured.waited_s, slo.threshold_s)
    if slo.signal is Signal.E2E:
        whole_s = measured.e2e_s if outcome is Outcome.COMPLETED else None
        return _wait(whole_s, measured.waited_s, slo.threshold_s)
    if measured.tpot_s is None or measured.output_tokens < 2:
        return Verdict.EXCLUDED
    return _latency(measured.tpot_s, slo.threshold_s)


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
