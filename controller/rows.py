"""One model's tick as a row of the store, and what is shown of it."""

from __future__ import annotations

from dataclasses import dataclass

from slos.objective import Slo
from slos.reduce import SloReading, driving

from .cells import Tallies
from .stored import TickRow
from .tick import ModelOutput


@dataclass(frozen=True, slots=True)
class TickTurns:
    """One model's turns of the last tick."""

    turns: int = 0
    later_turns: int = 0
    local_turns: int = 0
    waiting: int = 0

    @classmethod
    def between(cls, before: TickTurns, tally: Tallies, waiting: int) -> TickTurns:
        """What the tally has more than `before`, which is `of` it at the tick before."""
        now = cls.of(tally)
        return cls(
            now.turns - before.turns,
            now.later_turns - before.later_turns,
            now.local_turns - before.local_turns,
            waiting,
        )

    @classmethod
    def of(cls, tally: Tallies) -> TickTurns:
        """All that the tally has."""
        return cls(tally.turns, tally.later_turns, tally.local_turns)


def tick_row(
    at_s: float,
    model: str,
    output: ModelOutput,
    turns: TickTurns,
    *,
    slos: tuple[Slo, ...],
    price: float,
    qps: float,
    state: str,
) -> TickRow:
    """What is kept of one model's tick."""
    ttft, tpot = sides(slos, model, output)
    relief = output.feasibility.relief
    return TickRow(
        at_s,
        model,
        None if ttft is None else ttft.value_s,
        None if tpot is None else tpot.value_s,
        None if ttft is None else ttft.slo.threshold_s,
        None if tpot is None else tpot.slo.threshold_s,
        price,
        qps,
        turns.turns,
        turns.later_turns,
        turns.local_turns,
        turns.waiting,
        output.action.value,
        state,
        None if relief is None else relief.value,
    )


def sides(slos: tuple[Slo, ...], model: str, output: ModelOutput | None) -> tuple[SloReading | None, SloReading | None]:
    """The TTFT and the TPOT reading to show: those that bind, else those first declared, without a value."""
    drives = driving(slos, model)
    ttft = None if output is None else output.binding.ttft
    tpot = None if output is None else output.binding.tpot
    if ttft is None and drives.ttft:
        ttft = SloReading(drives.ttft[0], None)
    if tpot is None and drives.tpot:
        tpot = SloReading(drives.tpot[0], None)
    return ttft, tpot
