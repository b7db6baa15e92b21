"""A live run: an emulated fleet, router and controller as real processes on the loopback, and clients in
front of them.

The fleet's clock may run `speed` times as fast as the wall's; all times here are engine seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from .clients import Crowd, SeenTurn
from .installation import Installation, install
from .scenarios import Scenario
from .score import RunScore, score
from .simulate import Unfinished

SAY_S = 5.0


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What came of it."""

    score: RunScore
    turns: tuple[SeenTurn, ...]
    unfinished: int
    wall_s: float
    prices: tuple[float, ...]
    """The price every few seconds, as far as it was told."""


async def run_live(scenario: Scenario, seed: int, say: Callable[[str], None]) -> LiveRun:
    """Play a scenario once, with its faults, in front of real sockets."""
    with TemporaryDirectory(prefix="trimtab-live-") as folder:
        installation = await install(Path(folder), scenario.profile, scenario.topology, scenario.slos)
        try:
            crowd = Crowd(installation.router_url, installation.model, scenario.conversations(seed))
            return await play(installation, scenario, crowd, say)
        finally:
            installation.stop()


async def play(installation: Installation, scenario: Scenario, crowd: Crowd, say: Callable[[str], None]) -> LiveRun:
    """Let a crowd loose on an installation for as long as the scenario lasts, and say how it goes."""
    say(f"status page: {installation.admin_url}/    clients: {installation.router_url}/v1")
    began = monotonic()
    prices: list[float] = []
    faults = asyncio.ensure_future(_faults(scenario, installation, say))
    talk = asyncio.ensure_future(_talk(installation, crowd, prices, say))
    try:
        await crowd.run(scenario.duration_s)
        late = [Unfinished(turn, sent_s, None) for (_, turn), sent_s in crowd.left_waiting]
        return LiveRun(
            score(scenario, crowd.turns, late, ()),
            tuple(crowd.turns),
            len(late),
            monotonic() - began,
            tuple(prices),
        )
    finally:
        for task in (faults, talk):
            task.cancel()
        await asyncio.gather(faults, talk, return_exceptions=True)


async def _faults(scenario: Scenario, installation: Installation, say: Callable[[str], None]) -> None:
    began, at_s = monotonic(), 0.0
    out: tuple[str, ...] = ()
    for phase in scenario.phases:
        await asyncio.sleep(max(0.0, began + at_s - monotonic()))
        for node in out:
            await installation.node("revive", node)
        for node in phase.out:
            await installation.node("kill", node)
        out = phase.out
        say(f"-- {phase.label}, {phase.duration_s:.0f} s --")
        at_s += phase.duration_s


async def _talk(installation: Installation, crowd: Crowd, prices: list[float], say: Callable[[str], None]) -> None:
    """A line every few seconds that says in plain words what is going on."""
    while True:
        await asyncio.sleep(SAY_S)
        status = await installation.status()
        if (price := price_of(status, installation.model)) is not None:
            prices.append(price)
        headline = status.get("headline", "the control process does not answer; the router goes on alone")
        recent = [turn for turn in crowd.turns if turn.turn > 1 and turn.accepted_s > crowd.now_s - 30]
        local = f", {sum(turn.went_local for turn in recent) / len(recent):.0%} local" if recent else ""
        say(f"{crowd.now_s:4.0f} s  {headline} {len(crowd.turns)} turns, {len(crowd.waiting)} waiting{local}")


def price_of(status: Mapping[str, object], model: str) -> float | None:
    """The price of a model in the control process's status; None before it has one."""
    models = status.get("models")
    own = models.get(model) if isinstance(models, dict) else None
    price = own.get("price") if isinstance(own, dict) else None
    return float(price) if isinstance(price, int | float) else None
