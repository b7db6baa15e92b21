"""One arm on a real fleet: planned conversations against the router, cut like an arm in virtual time.

Conversations begin when their plan says, think, and go on; a turn that fails ends its conversation. The cut comes
when enough later turns are answered or the time is over. From then on nothing new is sent, and what runs may end: it
is not measured, but it shared D with what is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.core import Flight
from router.turn import Role
from slos.objective import Outcome

from ..cells import Window
from ..rows import ArmRun
from ..simulate import Unfinished
from ..workloads import THINK_S
from .fleet import EngineDown, FleetError
from .rig import Rig
from .texts import Message

TICK_S = 0.1
DRAIN_S = 600.0
"""A turn that goes on for this long after the cut is given up."""
FAILURES = 3
"""As many first turns that the engines refuse, before any was answered, end the calibration."""


@dataclass(frozen=True, slots=True)
class Script:
    """What one conversation says: when it starts, and (text, output tokens) of each turn."""

    name: str
    start_s: float
    turns: tuple[tuple[str, int], ...]


class ArmDriver:
    """Drives one arm. `progress(elapsed_s, later_answered)` is called a few times a second."""

    def __init__(self, rig: Rig, model: str, scripts: Sequence[Script], window: Window) -> None:
        self._rig = rig
        self._model = model
        self._scripts = scripts
        self._window = window
        self._begin_s = 0.0
        self._closed = False
        self._refused = 0
        self._error = ""

    async def run(self, x: int, progress: Callable[[float, int], None]) -> ArmRun:
        """Raises EngineDown if an engine goes down meanwhile, FleetError if the engines refuse what is sent."""
        rig = self._rig
        rig.pin(x)
        kept = len(rig.records)
        self._begin_s = begin_s = rig.clock.now_s()
        players = [asyncio.ensure_future(self._play(script)) for script in self._scripts]
        try:
            while True:
                elapsed_s = rig.clock.now_s() - begin_s
                later = sum(1 for r in rig.records[kept:] if r.turn > 1)
                progress(elapsed_s, later)
                self._check(kept)
                enough = later >= self._window.later_turns and elapsed_s >= self._window.least_s
                if enough or elapsed_s >= self._window.limit_s or all(player.done() for player in players):
                    break
                await asyncio.sleep(TICK_S)
            self._closed = True
            end_s = rig.clock.now_s()
            records = tuple(rig.records[kept:])
            unfinished = [_unfinished(flight) for flight in rig.core.flights()]
            waiting = players[: sum(script.start_s < end_s - begin_s for script in self._scripts)]
            if waiting:
                await asyncio.wait(waiting, timeout=DRAIN_S)
            self._check(kept)
        finally:
            for player in players:
                player.cancel()
            ended = await asyncio.gather(*players, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result
        decode_nodes = sum(1 for node in rig.core.nodes.values() if node.role is not Role.PREFILL)
        drained = tuple(rig.records[kept + len(records) :])
        return ArmRun(records, unfinished, decode_nodes, begin_s, end_s, drained, by_engine=True)

    def _check(self, kept: int) -> None:
        down = self._rig.down()
        if down:
            raise EngineDown(f"{', '.join(down)} stopped answering")
        if self._refused >= FAILURES and not any(r.outcome is Outcome.COMPLETED for r in self._rig.records[kept:]):
            raise FleetError(f"no turn is answered: {self._error}")

    async def _play(self, script: Script) -> None:
        delay_s = self._begin_s + script.start_s - self._rig.clock.now_s()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        messages: list[Message] = []
        for at, (text, output_tokens) in enumerate(script.turns):
            if at:
                await asyncio.sleep(THINK_S)
            if self._closed:
                return
            messages.append({"role": "user", "content": text})
            answer = await self._rig.chat(request(self._model, messages, output_tokens), script.name)
            if not answer.complete:
                if answer.status not in (0, 200):
                    self._refused += 1
                    self._error = f"{answer.status} {answer.error}"
                return
            messages.append({"role": "assistant", "content": answer.text})


def _unfinished(flight: Flight) -> Unfinished:
    accepted_s, first_s = flight.turn.accepted_s, flight.watch.first_s
    return Unfinished(flight.number, accepted_s, None if first_s is None else first_s - accepted_s)


def request(model: str, messages: Sequence[Message], output_tokens: int) -> bytes:
    """A streamed turn of exactly so many output tokens."""
    return json.dumps(
        {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
    ).encode()
