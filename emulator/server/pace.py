"""The time of every token, from the closed form of the engine's stretches.

An engine computes a stretch of decode steps as one event. This follows it: at the end of step k, `end_s(k)` of the
stretch, plus the time from the engine to the caller, each sequence of the batch has its next token. A stretch may be
cut while it runs, but only to a boundary that is not past, so by the time step k is seen it is settled whether
there was one. Costs one event a step and engine, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Callable

from ..engine import Engine, Job, Stretch
from ..events import Events


class Pacer:
    """Calls `on_token(at_s)` of each job of one engine, and `on_step(tokens)` once a step."""

    def __init__(self, engine: Engine, events: Events, on_step: Callable[[int], None]) -> None:
        self._engine = engine
        self._events = events
        self._on_step = on_step
        self._delay_s = engine.profile.first_token_ms / 1e3
        engine.on_stretch = self._begin

    def _begin(self, stretch: Stretch, jobs: list[Job]) -> None:
        tokens = self._engine.decoding + sum(new for _, new in stretch.chunks)
        self._events.at(stretch.end_s(1) + self._delay_s, self._step, stretch, 1, jobs, tokens, self._engine.epoch)

    def _step(self, stretch: Stretch, step: int, jobs: list[Job], tokens: int, epoch: int) -> None:
        if step > stretch.steps or epoch != self._engine.epoch:
            return
        if step < stretch.steps:  # before the tokens: theirs may be long work, and this keeps the order of steps
            self._events.at(stretch.end_s(step + 1) + self._delay_s, self._step, stretch, step + 1, jobs, tokens, epoch)
        self._on_step(tokens)
        at_s = self._events.now_s
        for job in jobs:
            if job.on_token is not None and not job.muted:
                job.on_token(at_s)
