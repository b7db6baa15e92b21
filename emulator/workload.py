"""Conversations as data: mixes, phases, and all that starts in them.

A mix says how long turns are and how long people or tools think between them; a phase says which mixes arrive,
by what process (emulator/arrivals.py), and which nodes are out. `conversations` draws them all up front from a
generator that the caller seeds, so every policy meets the same traffic. Source of the mixes:
docs/explanation/scenarios.md; of the stand-ins for public data sets: emulator/standins.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Protocol

from numpy.random import Generator

from .arrivals import Arrivals, Poisson

MAX_CONTEXT_TOKENS = 120_000


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal by its median and sigma, clipped to [low, high]."""

    median: float
    sigma: float
    low: float
    high: float

    def draw(self, rng: Generator) -> float:
        """One value."""
        value = self.median * exp(self.sigma * float(rng.standard_normal())) if self.sigma else self.median
        return min(max(value, self.low), self.high)


def fixed(value: float) -> LogNormal:
    """A constant, as a degenerate distribution."""
    return LogNormal(value, 0.0, value, value)


@dataclass(frozen=True, slots=True)
class Mix:
    """One kind of conversation.

    `later` are (probability, new tokens) alternatives; the number of turns is geometric, clipped. It ends
    before its context passes `context_tokens`.
    """

    name: str
    first: LogNormal
    later: tuple[tuple[float, LogNormal], ...]
    output: LogNormal
    think_s: LogNormal
    turns_mean: float
    turns_low: int
    turns_high: int
    later_output: LogNormal | None = None
    context_tokens: int = MAX_CONTEXT_TOKENS

    def draw(self, rng: Generator) -> tuple[TurnPlan, ...]:
        """The turns of one conversation."""
        count = int(rng.geometric(1.0 / self.turns_mean)) if self.turns_mean > 1 else 1
        count = min(max(count, self.turns_low), self.turns_high)
        turns: list[TurnPlan] = []
        context = 0
        for number in range(count):
            new = self.first if number == 0 else self._alternative(float(rng.random()))
            output = self.output if number == 0 or self.later_output is None else self.later_output
            plan = TurnPlan(round(new.draw(rng)), round(output.draw(rng)), self.think_s.draw(rng) if number else 0.0)
            context += plan.new_tokens + plan.output_tokens
            if turns and context > self.context_tokens:
                break
            turns.append(plan)
        return tuple(turns)

    def _alternative(self, coin: float) -> LogNormal:
        for share, distribution in self.later:
            coin -= share
            if coin < 0:
                return distribution
        return self.later[-1][1]


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One turn: tokens the user adds, tokens of the answer, thinking time since the last answer."""

    new_tokens: int
    output_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """One conversation and when it starts."""

    name: str
    start_s: float
    turns: tuple[TurnPlan, ...]


class Source(Protocol):
    """What conversations are drawn from: a `Mix`, or a `Sample` of recorded ones."""

    @property
    def name(self) -> str: ...

    def draw(self, rng: Generator) -> tuple[TurnPlan, ...]:
        """The turns of one conversation."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Recorded conversations, drawn with replacement."""

    name: str
    recorded: tuple[tuple[TurnPlan, ...], ...]

    def draw(self, rng: Generator) -> tuple[TurnPlan, ...]:
        """One of them."""
        return self.recorded[int(rng.integers(len(self.recorded)))]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of constant conditions: who arrives (a number is the rate of a Poisson process, conversations
    per second), which nodes are out, and recorded conversations that start as they did, counted from the
    phase's beginning."""

    label: str
    duration_s: float
    traffic: tuple[tuple[Source, float | Arrivals], ...] = ()
    out: tuple[str, ...] = ()
    recorded: tuple[ConversationPlan, ...] = ()


def conversations(phases: Sequence[Phase], rng: Generator) -> list[ConversationPlan]:
    """All that starts in all phases, in order of start. Names are unique."""
    plans: list[ConversationPlan] = []
    begin_s = 0.0
    for number, phase in enumerate(phases):
        end_s = begin_s + phase.duration_s
        for source, process in phase.traffic:
            arrivals = Poisson(process) if isinstance(process, float | int) else process
            plans.extend(
                ConversationPlan(f"{source.name}-{at}", start_s, source.draw(rng))
                for at, start_s in enumerate(arrivals.starts(begin_s, end_s, rng), start=len(plans))
            )
        for plan in phase.recorded:
            if plan.start_s < phase.duration_s:
                name = f"{plan.name}@{number}" if number else plan.name
                plans.append(replace(plan, name=name, start_s=begin_s + plan.start_s))
        begin_s = end_s
    return sorted(plans, key=lambda plan: plan.start_s)


AGENT = Mix(
    "agent",
    first=LogNormal(3000, 0.4, 500, 9000),
    later=((0.5, LogNormal(60, 0.8, 4, 400)), (0.5, LogNormal(900, 0.9, 50, 8000))),
    output=LogNormal(70, 0.7, 8, 500),
    think_s=LogNormal(1, 0.7, 0.1, 15),
    turns_mean=14,
    turns_low=3,
    turns_high=40,
)
RAG = Mix(
    "rag",
    first=LogNormal(1800, 0.5, 200, 8000),
    later=((1.0, LogNormal(1800, 0.5, 200, 8000)),),
    output=LogNormal(280, 0.6, 16, 1200),
    think_s=LogNormal(7, 0.7, 1, 40),
    turns_mean=6,
    turns_low=2,
    turns_high=16,
)
CHAT = Mix(
    "chat",
    first=LogNormal(350, 1.25, 4, 8000),
    later=((0.92, LogNormal(40, 1.2, 3, 6000)), (0.08, LogNormal(900, 0.8, 100, 8000))),
    output=LogNormal(250, 0.8, 8, 1500),
    think_s=LogNormal(9, 0.8, 1, 60),
    turns_mean=4.2,
    turns_low=2,
    turns_high=16,
)
PASTE = Mix(
    "paste",
    first=LogNormal(2500, 0.7, 200, 16000),
    later=((0.7, LogNormal(1800, 0.8, 100, 12000)), (0.3, LogNormal(60, 1, 4, 500))),
    output=LogNormal(160, 0.7, 8, 900),
    think_s=LogNormal(9, 0.8, 1, 60),
    turns_mean=4.2,
    turns_low=2,
    turns_high=12,
)
INGEST = Mix(
    "ingest",
    first=LogNormal(9000, 0.5, 1000, 30000),
    later=(),
    output=LogNormal(60, 0.4, 8, 300),
    think_s=fixed(0),
    turns_mean=1,
    turns_low=1,
    turns_high=1,
)
MIXES: dict[str, Mix] = {mix.name: mix for mix in (AGENT, RAG, CHAT, PASTE, INGEST)}


def two_turn(name: str, first: tuple[int, int], later: tuple[int, int], think_s: float) -> Mix:
    """A calibration workload: two turns of fixed (input, output) lengths, as in the paper's grid."""
    return Mix(
        name,
        first=fixed(first[0]),
        later=((1.0, fixed(later[0])),),
        output=fixed(first[1]),
        think_s=fixed(think_s),
        turns_mean=2,
        turns_low=2,
        turns_high=2,
        later_output=fixed(later[1]),
    )
