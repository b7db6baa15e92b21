"""Recorded traffic as conversations that an emulated fleet can play: whole folders, cut to what its engines take.

What a file may hold is in trimtab/trace_formats.py. There is no text, only token counts, thinking times and starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from emulator.workload import ConversationPlan, Sample, TurnPlan

from .trace_formats import SUFFIXES, TraceError, read_trace

__all__ = ["Cut", "TraceError", "load_traces", "sample"]


@dataclass(frozen=True, slots=True)
class Cut:
    """How recorded conversations are made to fit. Lengths are scaled first, then cut."""

    scale: float = 1.0
    """Of prompts and answers."""
    output_tokens: int | None = None
    think_s: float = 60.0
    turns: int | None = None
    context_tokens: int = 131_072
    """Of the engines; a conversation ends before it passes them."""

    def of(self, plan: ConversationPlan) -> ConversationPlan:
        """The plan as it will be played; without a turn where the first does not fit."""
        turns: list[TurnPlan] = []
        total = 0
        for turn in plan.turns[: self.turns]:
            new, output = (max(1, round(n * self.scale)) for n in (turn.new_tokens, turn.output_tokens))
            output = min(output, self.output_tokens or output)
            total += new + output
            if total > self.context_tokens:
                break
            turns.append(TurnPlan(new, output, min(turn.think_s, self.think_s)))
        return replace(plan, turns=tuple(turns))


def load_traces(
    path: Path, *, limit: int | None = None, cut: Cut = Cut(), spacing_s: float = 2.0
) -> list[ConversationPlan]:
    """Conversations of a file, or of every .json, .jsonl and .csv file in a folder, by start. `limit` counts
    requests of a request trace, else conversations. Conversations without a start of their own begin
    `spacing_s` apart. Raises TraceError.
    """
    files = sorted(item for item in path.iterdir() if item.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path}: no .json, .jsonl or .csv file in this folder")
    plans: list[ConversationPlan] = []
    for file in files:
        plans.extend(read_trace(file, limit))
        if limit is not None and len(plans) >= limit:
            break
    cuts = [
        replace(cut.of(plan), start_s=plan.start_s if plan.start_s >= 0 else at * spacing_s)
        for at, plan in enumerate(plans)
    ]
    return sorted((plan for plan in cuts if plan.turns), key=lambda plan: plan.start_s)


def sample(name: str, plans: list[ConversationPlan]) -> Sample:
    """Recorded conversations to draw from, whenever they started."""
    return Sample(name, tuple(plan.turns for plan in plans))
