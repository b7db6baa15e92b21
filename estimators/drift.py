"""Whether measured latencies have drifted away from what the table predicts: two CUSUMs, for slower and for faster.

A sample is a residual ln(measured / predicted) (`residual`). The first `learn` of them give its mean and deviation,
for a table may be off by a constant, and drift is a change. From then on each is standardised, z = (r - mean) / sd,
and clipped at 4, so that one timeout is no drift; with slack delta,

    g+ = max(0, g+ + z - delta),    g- = max(0, g- - z - delta)        (Page, 1954)

and an alarm is raised when either exceeds `bar`; everything is then learnt anew. Mean and deviation go on being
learnt, slowly, from the clipped samples, so that the error of a short start does not last.

delta = .25 sees shifts from half a deviation on: a median of 19 samples after one of 1.2 deviations, 51 after .6. A
bar of 20 makes false alarms rare: by Siegmund's formula (exp(2 delta h) - 2 delta h - 1) / (2 delta²), h = bar + 1.166,
one in 160,000 independent normal residuals for the two sides together; learning and tails make it more often
(tests/estimators/test_drift.py has the counts). A delta of .1 with a bar of 8 alarms falsely about every ninety
residuals once it has learnt. Samples that come in bursts are not independent: give means per tick.

State is some dozen numbers. Left out: when the drift began, other than `g` having left 0, and what to do about it.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from .protocol import Estimate, State

LEARN = 200
DELTA = 0.25
BAR = 20.0
CLIP = 4.0
MEMORY = 5000.0
"""Residuals that the reference remembers."""
LEAST_SD = 0.01
"""In ln: differences below 1 % are no drift, however steady the latencies. A larger one (`least_sd`) leaves out what is
too small to matter: shifts below delta x least_sd are never told."""
SLOWLY = 200.0
"""Once there is a reference a residual moves it by 1/200 at most, so that no drift is learnt before it is told."""
NONSENSE = 50.0
"""In ln: beyond this a residual counts as infinite."""

_Z95 = 1.6448536269514722


class Drift(StrEnum):
    """Which way latencies have drifted."""

    SLOWER = "slower"
    FASTER = "faster"


def residual(measured_s: float, predicted_s: float) -> float:
    """ln(measured / predicted); +inf for a turn that never ended. Raises ValueError unless both are positive."""
    if not measured_s > 0.0 or not 0.0 < predicted_s < math.inf:
        raise ValueError(f"no residual of {measured_s} s measured and {predicted_s} s predicted")
    return math.log(measured_s / predicted_s)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Raised at `at_s`; `after` is how many residuals had been seen since the last one (or the start)."""

    drift: Drift
    at_s: float
    after: int
    before: float
    """The mean residual when both sums last were 0: what it was before."""


class DriftAlarm:
    """Follows one stream of residuals."""

    __slots__ = (
        "_at_s", "_bar", "_before", "_delta", "_down", "_learn", "_least_sd", "_mean", "_n", "_square", "_up",
        "alarms", "last",
    )  # fmt: skip

    def __init__(self, learn: int = LEARN, delta: float = DELTA, bar: float = BAR, least_sd: float = LEAST_SD) -> None:
        """Raises ValueError unless learn >= 2, delta >= 0, bar > 0 and least_sd > 0, all finite."""
        if learn < 2 or not 0.0 <= delta < math.inf or not 0.0 < bar < math.inf or not 0.0 < least_sd < math.inf:
            raise ValueError(f"no drift alarm for learn={learn}, delta={delta}, bar={bar}, least_sd={least_sd}")
        self._learn = learn
        self._delta = delta
        self._bar = bar
        self._least_sd = least_sd
        self._at_s = -math.inf
        self._n = 0
        self._mean = self._square = self._up = self._down = self._before = 0.0
        self.alarms = 0
        self.last: Alarm | None = None

    def update(self, value: float, now_s: float) -> Alarm | None:
        """Takes a residual; the alarm that it raises, if any. While learning, infinite ones (50 and more) are left
        out. Raises ValueError for NaN, and for a time that is none."""
        if math.isnan(value) or not math.isfinite(now_s):
            raise ValueError(f"residual {value} at {now_s}")
        self._at_s = max(self._at_s, now_s)
        if self._n < self._learn:
            if abs(value) < NONSENSE:
                self._take(value)
            return None
        if self._up == self._down == 0.0:
            self._before = self._mean
        sd = self._sd
        z = min(max((value - self._mean) / sd, -CLIP), CLIP)
        self._up = max(0.0, self._up + z - self._delta)
        self._down = max(0.0, self._down - z - self._delta)
        self._take(self._mean + z * sd)
        if max(self._up, self._down) <= self._bar:
            return None
        self.last = Alarm(Drift.SLOWER if self._up > self._down else Drift.FASTER, self._at_s, self._n, self._before)
        self.alarms += 1
        self._forget()
        return self.last

    @property
    def made(self) -> tuple[int, float, float, float]:
        """What it was made with: learn, delta, bar and least_sd."""
        return self._learn, self._delta, self._bar, self._least_sd

    @property
    def learning(self) -> bool:
        """There is no reference yet, so there can be no alarm."""
        return self._n < self._learn

    def estimate(self, now_s: float) -> Estimate:
        """The mean residual: what the table is off by, in ln. None while learning; bounds as of a normal mean."""
        if self.learning:
            return Estimate(None, None, None, self._n, now_s)
        n = min(float(self._n), MEMORY)
        half = _Z95 * self._sd / math.sqrt(n)
        return Estimate(self._mean, self._mean - half, self._mean + half, n, now_s)

    def snapshot(self) -> State:
        """Everything, parameters included."""
        last = self.last
        return {
            "learn": self._learn,
            "delta": self._delta,
            "bar": self._bar,
            "least_sd": self._least_sd,
            "n": self._n,
            "mean": self._mean,
            "square": self._square,
            "before": self._before,
            "up": self._up,
            "down": self._down,
            "at_s": None if self._at_s == -math.inf else self._at_s,
            "alarms": self.alarms,
            "last": None if last is None else [last.drift.value, last.at_s, last.after, last.before],
        }

    @classmethod
    def restore(cls, state: State) -> Self:
        """Raises ValueError for what no `snapshot` gave."""
        try:
            alarm = cls(int(state["learn"]), float(state["delta"]), float(state["bar"]), float(state["least_sd"]))
            alarm._n, alarm.alarms = int(state["n"]), int(state["alarms"])
            alarm._mean, alarm._square = float(state["mean"]), float(state["square"])
            alarm._up, alarm._down = float(state["up"]), float(state["down"])
            alarm._before = float(state["before"])
            alarm._at_s = -math.inf if state["at_s"] is None else float(state["at_s"])
            if state["last"] is not None:
                drift, at_s, after, before = state["last"]
                alarm.last = Alarm(Drift(drift), float(at_s), int(after), float(before))
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"no state of a DriftAlarm: {problem!r}") from problem
        numbers = (alarm._mean, alarm._square, alarm._up, alarm._down, alarm._before)
        if not all(map(math.isfinite, numbers)) or min(alarm._n, alarm._square, alarm._up, alarm._down) < 0:
            raise ValueError(f"no state of a DriftAlarm: {numbers}")
        return alarm

    @property
    def _sd(self) -> float:
        return max(self._least_sd, math.sqrt(self._square))

    def _take(self, value: float) -> None:
        """Welford's running mean and mean square deviation, forgetting beyond MEMORY."""
        weight = 1.0 / (self._n + 1 if self.learning else min(max(self._n + 1.0, SLOWLY), MEMORY))
        self._n += 1
        before = value - self._mean
        self._mean += weight * before
        self._square += weight * (before * (value - self._mean) - self._square)

    def _forget(self) -> None:
        self._n = 0
        self._mean = self._square = self._up = self._down = 0.0
