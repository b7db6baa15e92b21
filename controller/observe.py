"""Observe mode: the law in shadow, and what its policy would have made of the turns that were served another way.

Turns come as routers report them, are replayed at the price that the law stands at (`replay`), and go as they would
have been into tallies of their own, which the same `tick` reads that runs a fleet. So the law sees what its own moves
would have done: on the readings of the fleet as it is run, which no move of its own changes, it would go on to the end
of its range. Nothing of it is published, and routers know nothing of it.

Per model a window of the last `WINDOW_S` tells both sides: P99 TTFT of later turns and P99 TPOT of turns with at least
8 tokens, misses of each driving SLO, and how far the table's predictions are off. Bounds are those of the sample
(`estimators.quantile`, `estimators.exceedance`), not of the model behind the estimate; `Caution` says where that is
known to be weak. Turns that still wait are left out: how long they would have waited is known when they end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from statistics import median

from estimators.exceedance import Exceedance
from estimators.protocol import Estimate
from estimators.quantile import bound_ranks, fewest_samples, nearest_rank
from router.policy import Policy, Publication
from router.record import TurnRecord
from slos.objective import Outcome, Slo, Verdict, judge
from slos.reduce import driving

from .cells import LAW_MIN_OUTPUT_TOKENS, Tallies
from .intake import MAX_MODELS
from .laws.protocol import Law
from .replay import HOLD_S, Compared, Replay
from .tick import ControlState, ModelOutput, tick

WINDOW_S = 900.0
MAX_TURNS = 20_000
"""Of one model's window: above 22 turns a second it is shorter than `WINDOW_S`."""
PERCENTILE = 0.99
FRESH_S = 5.0
"""Everybody who asks within this time gets the same answer: sorting a full window takes tens of ms."""
OVERLOADED_SHARE = 0.1
"""More turns than this over an SLO: queues that grow, and users who wait instead of asking on."""
MODEL_OFF = 1.5
"""The median TTFT is this many times what the table predicts, or that fraction of it."""


class Caution(StrEnum):
    """Why an estimate is worth less."""

    FEW_TURNS = "few_turns"
    """Too few turns for an upper bound of a P99."""
    NO_TABLE = "no_table"
    """Turns without a table are taken as they were."""
    MODEL_OFF = "model_off"
    """The table predicts other times than are measured."""
    OVERLOADED = "overloaded"
    """The fleet as it is run is overloaded: it sees less traffic than it would if it answered, and long waits are
    scaled, not explained."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One quantity as it was and as it would have been."""

    acted: Estimate
    shadow: Estimate


@dataclass(frozen=True, slots=True)
class Misses:
    """Turns that an SLO judges, and those that miss it."""

    slo: Slo
    share: Pair
    valid: int
    acted: int
    shadow: int


@dataclass(frozen=True, slots=True)
class Observed:
    """One model's window. `decided` are turns that could go either way, `differing` those of them that would have gone
    the other way."""

    turns: int
    decided: int
    differing: int
    span_s: float
    ttft: Pair
    tpot: Pair
    misses: tuple[Misses, ...]
    off: float | None
    """Median of measured over predicted TTFT; None without turns."""
    cautions: tuple[Caution, ...]

    @property
    def differing_share(self) -> float | None:
        """Of the turns that could go either way."""
        return self.differing / self.decided if self.decided else None


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    ttft: tuple[float, float] | None
    tpot: tuple[float, float] | None
    verdicts: tuple[tuple[bool, bool] | None, ...]
    """By driving SLO, missed as it was and as it would have been; None where the SLO does not judge the turn."""
    off: float | None
    decided: bool
    differs: bool
    has_table: bool


class Window:
    """Compared turns of one model over the last `WINDOW_S`, at most `MAX_TURNS`."""

    def __init__(self, model: str, slos: Iterable[Slo], max_turns: int = MAX_TURNS) -> None:
        drives = driving(slos, model)
        self._slos = (*drives.ttft, *drives.tpot)
        self._samples: deque[_Sample] = deque(maxlen=max_turns)

    def add(self, turn: Compared, now_s: float) -> None:
        """Take one turn that the replay is done with."""
        was, would = turn.record, turn.as_record()
        self._samples.append(
            _Sample(
                now_s,
                _both(_ttft_s(was), _ttft_s(would)),
                _both(_tpot_s(was), _tpot_s(would)),
                tuple(_missed(slo, was, would) for slo in self._slos),
                turn.predicted,
                turn.decision is not None,
                turn.differs,
                turn.has_table,
            )
        )

    def observed(self, now_s: float) -> Observed:
        """Both sides of the window."""
        samples = self._samples
        while samples and now_s - samples[0].at_s > WINDOW_S:
            samples.popleft()
        off = [sample.off for sample in samples if sample.off is not None]
        misses = tuple(self._misses(at, slo, now_s) for at, slo in enumerate(self._slos))
        ttft = _pair([sample.ttft for sample in samples if sample.ttft is not None], now_s)
        has_tables = all(sample.has_table for sample in samples)
        tpot = _pair([sample.tpot for sample in samples if sample.tpot is not None], now_s)
        return Observed(
            len(samples),
            sum(sample.decided for sample in samples),
            sum(sample.decided and sample.differs for sample in samples),
            now_s - samples[0].at_s if samples else 0.0,
            ttft,
            tpot,
            misses,
            median(off) if off else None,
            tuple(_cautions(ttft, tpot, misses, median(off) if off else None, has_tables)),
        )

    def _misses(self, at: int, slo: Slo, now_s: float) -> Misses:
        judged = [verdict for sample in self._samples if (verdict := sample.verdicts[at]) is not None]
        acted, shadow = sum(was for was, _ in judged), sum(would for _, would in judged)
        shares = (Exceedance(bad, len(judged)).estimate(now_s) for bad in (acted, shadow))
        return Misses(slo, Pair(*shares), len(judged), acted, shadow)


@dataclass(slots=True)
class _Model:
    replay: Replay
    tallies: Tallies
    window: Window
    told: tuple[float, Observed] | None = None


class Shadow:
    """The law that acts on nothing. `take` reports' records, `tick` when the fleet's own loop does."""

    def __init__(self, policy: Policy, law: Law | None, slos: Iterable[Slo], hold_s: float = HOLD_S) -> None:
        """`policy` is where the law starts; a pin in it is left out."""
        self._slos = tuple(slos)
        self._hold_s = hold_s
        self._control = ControlState(Publication(1, {"main": replace(policy, version=1, pin_x=None)}), law)
        self._models: dict[str, _Model] = {}
        self.outputs: Mapping[str, ModelOutput] = {}
        """Of the last tick, by model."""
        self.refused = 0
        """Turns of models beyond the first `MAX_MODELS`."""

    @property
    def policy(self) -> Policy:
        """What would be in force."""
        return self._control.publication.arms["main"]

    @property
    def models(self) -> tuple[str, ...]:
        """Models that are followed."""
        return tuple(self._models)

    def take(self, records: Iterable[TurnRecord], now_s: float) -> None:
        """Fold what a router reported. `now_s` is the reader's clock."""
        touched = set()
        for record in records:
            model = self._model(record.model)
            if model is None:
                self.refused += 1
                continue
            model.replay.take(record, now_s)
            touched.add(record.model)
        for name in touched:
            self._settle(self._models[name], now_s)

    def tick(self, now_s: float) -> None:
        """Let the law look at what would have been."""
        for model in self._models.values():
            self._settle(model, now_s)
        tallies = {name: model.tallies for name, model in self._models.items()}
        self._control, outputs = tick(self._control, tallies, (), now_s)
        self.outputs = outputs.models

    def redeclare(self, slos: Iterable[Slo]) -> None:
        """Follow these SLOs from now on; windows begin anew."""
        self._slos = tuple(slos)
        for name, model in self._models.items():
            model.tallies.redeclare(self._slos)
            model.window, model.told = Window(name, self._slos), None

    def observed(self, model: str, now_s: float) -> Observed:
        """One model's window, at most `FRESH_S` old. Raises KeyError for a model that is not followed."""
        followed = self._models[model]
        if followed.told is None or now_s - followed.told[0] >= FRESH_S:
            followed.told = now_s, followed.window.observed(now_s)
        return followed.told[1]

    def waiting(self, model: str) -> int:
        """Turns that are held back until they can be replayed in their order."""
        return len(self._models[model].replay)

    def _model(self, name: str) -> _Model | None:
        model = self._models.get(name)
        if model is None and len(self._models) < MAX_MODELS:
            tallies, window = Tallies(name, self._slos), Window(name, self._slos)
            model = self._models[name] = _Model(Replay(self._hold_s), tallies, window)
        return model

    def _settle(self, model: _Model, now_s: float) -> None:
        for turn in model.replay.settled(self.policy, now_s):
            model.tallies.fold(turn.as_record())
            model.window.add(turn, now_s)


def _both(was: float | None, would: float | None) -> tuple[float, float] | None:
    return None if was is None or would is None else (was, would)


def _ttft_s(record: TurnRecord) -> float | None:
    if record.turn < 2 or not record.streaming:
        return None
    return inf if record.outcome in (Outcome.FAILED, Outcome.TIMED_OUT) else record.ttft_s


def _tpot_s(record: TurnRecord) -> float | None:
    return record.tpot_s if record.streaming and record.output_tokens >= LAW_MIN_OUTPUT_TOKENS else None


def _missed(slo: Slo, was: TurnRecord, would: TurnRecord) -> tuple[bool, bool] | None:
    verdicts = judge(slo, was), judge(slo, would)
    if Verdict.EXCLUDED in verdicts:
        return None
    return verdicts[0] is Verdict.BAD, verdicts[1] is Verdict.BAD


def _pair(values: list[tuple[float, float]], now_s: float) -> Pair:
    return Pair(_percentile([was for was, _ in values], now_s), _percentile([would for _, would in values], now_s))


def _percentile(values: list[float], now_s: float) -> Estimate:
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0, now_s)
    values.sort()
    low, high = bound_ranks(n, PERCENTILE)
    return Estimate(
        nearest_rank(values, PERCENTILE),
        None if low is None else values[low - 1],
        None if high is None else values[high - 1],
        n,
        now_s,
    )


def _cautions(
    ttft: Pair, tpot: Pair, misses: Iterable[Misses], off: float | None, has_tables: bool
) -> Iterable[Caution]:
    if min(ttft.acted.n, tpot.acted.n) < fewest_samples(PERCENTILE):
        yield Caution.FEW_TURNS
    if not has_tables:
        yield Caution.NO_TABLE
    if off is not None and not 1 / MODEL_OFF <= off <= MODEL_OFF:
        yield Caution.MODEL_OFF
    if any((m.share.acted.value or 0.0) > OVERLOADED_SHARE for m in misses):
        yield Caution.OVERLOADED
