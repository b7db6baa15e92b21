"""Phase 1 of Algorithm 1 on a real fleet: cell by cell both arms, x = 0 and x = 1, on the same arrivals.

    look      who the engines are; wait until they are idle
    size      texts of exact length, counted by an engine
    warm up   a few conversations of the largest size on both routes; they also tell how long a token takes
    measure   per cell x = 0, drain, x = 1, drain; a finished cell is on disk before the next begins

What takes part is the production router in this process (`rig.py`); what comes out is what virtual time gives
(`trimtab/rows.py`). Left out: cells whose conversations do not fit the engines' context; they are named with why.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from router.nodes import Endpoint, endpoints
from router.turn import NodeId, Role

from ..cells import GUESSED_TPOT_S, PHASE1, TIMEOUT_S, Cell, Window, estimated_s, words_for
from ..phase1 import ROWS_OF_FEW, arrivals, cell_result
from ..rows import ArmRun, CellResult
from ..workloads import FIRST_TURNS, THINK_S
from .arm import ArmDriver, Script
from .counter import TokenCounter
from .fleet import EngineDown, Fleet, FleetError, look, until_idle
from .kept import Kept
from .rig import Rig
from .texts import Texts

WARM_UP = Window(later_turns=10**6, limit_s=300.0)
WARM_UP_TOKENS = 32
ATTEMPTS = 3
BACK_S = 30.0
"""A cell is measured again if an engine that was away is back within this."""
SPARE_TOKENS = 64
"""Context that a template may need beyond the cell's tokens."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to measure, and where."""

    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    cells: tuple[Cell, ...]
    model: str | None = None
    window: Window = PHASE1
    seed: int = 0
    connector: str = "nixl"
    lease_s: float = 30.0
    source: str | None = None
    """What stands beside the numbers; None: emulated for an emulated fleet, else measured."""

    def addresses(self) -> dict[NodeId, Endpoint]:
        """P0, P1, …, D0, D1, …"""
        return endpoints(self.prefill, self.decode, ())

    def fingerprint(self, fleet: Fleet) -> dict[str, object]:
        """Of the fleet and of how it is measured."""
        grid = {
            "first_turns": [list(first) for first in FIRST_TURNS.values()],
            "think_s": THINK_S,
            "timeout_s": TIMEOUT_S,
            "turns": self.window.later_turns,
            "limit_s": self.window.limit_s,
            "least_s": self.window.least_s,
        }
        return {**fleet.fingerprint(), "grid": grid, "seed": self.seed, "connector": self.connector}


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it: cells in the grid's order, and those that could not be measured, with the reason."""

    fleet: Fleet
    source: str
    results: tuple[CellResult, ...]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told how it goes: a line for people; and (cells done, a part of one counts, of how many, doing what)."""

    say: Callable[[str], None]
    progress: Callable[[float, int, str], None]


def unfit(cells: Sequence[Cell], max_tokens: int | None) -> dict[str, str]:
    """Cells that do not fit the engines' context, with the reason."""
    return {
        cell.name: f"needs {cell.workload.tokens + SPARE_TOKENS} tokens of context, the engines take {max_tokens}"
        for cell in cells
        if max_tokens is not None and cell.workload.tokens + SPARE_TOKENS > max_tokens
    }


def sourced(wanted: str | None, fleet: Fleet) -> str:
    """The word beside the numbers. Raises FleetError if it says something else than the fleet does."""
    word = wanted or ("emulated" if fleet.emulated else "measured")
    if (word == "emulated") is not fleet.emulated:
        what = "is emulated: say --source emulated" if fleet.emulated else "is not emulated: say measured or vllm-cpu"
        raise FleetError(f"--source {word}, but this fleet {what}")
    return word


async def run(order: Order, state: Path, watcher: Watcher) -> Measured:
    """Measure what is not in the state file yet. Raises FleetError or KeptError; what is finished is kept."""
    async with Rig(order.addresses(), order.connector, order.lease_s) as rig:
        fleet = await look(order.addresses(), order.model, rig.upstream)
        source = sourced(order.source, fleet)
        kept = Kept.open(state, order.fingerprint(fleet))
        try:
            missing = unfit(order.cells, fleet.max_tokens)
            fitting = [cell for cell in order.cells if cell.name not in missing]
            for name, why in missing.items():
                watcher.say(f"{name} is left out: {why}")
            if not fitting:
                raise FleetError("no cell is left to measure: name cells with a shorter context, e.g. small/*")
            todo = [cell for cell in fitting if cell.name not in kept.cells]
            if len(todo) < len(fitting):
                watcher.say(f"{len(fitting) - len(todo)} of {len(fitting)} cells are in {state}: not measured again")
            if todo:
                await _Session(order, rig, fleet, kept, watcher).measure(todo, len(fitting))
            return Measured(fleet, source, tuple(kept.cells[cell.name] for cell in fitting), missing)
        finally:
            kept.close()


class _Session:
    """One run against one fleet."""

    def __init__(self, order: Order, rig: Rig, fleet: Fleet, kept: Kept, watcher: Watcher) -> None:
        self._order = order
        self._rig = rig
        self._fleet = fleet
        self._kept = kept
        self._watcher = watcher
        self._counter = TokenCounter(rig.upstream, fleet)
        self._run = secrets.token_hex(4)
        self._scripts = 0

    async def measure(self, todo: Sequence[Cell], total: int) -> None:
        """Warm up, then every cell."""
        self._watcher.progress(total - len(todo), total, "waiting until the engines are idle")
        await until_idle(self._fleet, self._rig.upstream)
        self._watcher.progress(total - len(todo), total, "sizing prompts, warming up")
        texts = await self._texts(todo)
        tpot_s = await self._warm_up(texts, max(todo, key=lambda cell: cell.workload.tokens))
        window = self._order.window
        left_s = sum(estimated_s(cell, window, tpot_s) for cell in todo)
        self._watcher.say(
            f"{len(todo)} cells on {self._fleet.topology} of {self._fleet.model}, {tpot_s * 1e3:.3g} ms a token when "
            f"idle: about {words_for(left_s)}"
        )
        for at, cell in enumerate(todo):
            done = total - len(todo) + at
            result = await self._cell(texts, cell, done, total)
            self._kept.add(cell, result)
            left_s -= estimated_s(cell, window, tpot_s)
            self._watcher.progress(done + 1, total, cell.name)
            self._watcher.say(f"[{done + 1}/{total}] {cell.name}: {_words(result)}; about {words_for(left_s)} left")

    async def _cell(self, texts: Texts, cell: Cell, done: float, total: int) -> CellResult:
        """Both arms; once more if an engine was away for a moment."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                x0, x1 = [await self._arm(texts, cell, x, done + x / 2, total) for x in (0, 1)]
            except EngineDown as error:
                if attempt == ATTEMPTS or not await self._rig.back(BACK_S):
                    raise
                self._watcher.say(f"{cell.name} is measured again: {error}, and is back")
            else:
                return cell_result(cell.workload, cell.qps, x0, x1, ROWS_OF_FEW)
        raise AssertionError("unreachable")

    async def _arm(self, texts: Texts, cell: Cell, x: int, done: float, total: int) -> ArmRun:
        window = self._order.window
        _, plans = arrivals(cell.workload, cell.qps, self._order.seed, window.limit_s)
        scripts = [
            Script(
                self._name(),
                plan.start_s,
                tuple(
                    (texts.later(turn.new_tokens) if number else texts.first(turn.new_tokens), turn.output_tokens)
                    for number, turn in enumerate(plan.turns)
                ),
            )
            for plan in plans
        ]

        def progress(elapsed_s: float, later: int) -> None:
            enough = min(later / window.later_turns, elapsed_s / window.least_s if window.least_s else 1.0)
            share = max(enough, elapsed_s / window.limit_s)
            self._watcher.progress(done + 0.5 * min(share, 0.99), total, f"{cell.name} x={x}")

        run = await ArmDriver(self._rig, self._fleet.model, scripts, window).run(x, progress)
        await until_idle(self._fleet, self._rig.upstream)
        return run

    async def _texts(self, todo: Sequence[Cell]) -> Texts:
        await self._counter.choose()
        texts = Texts(self._counter.count, Random(), await self._counter.anchor())
        await texts.learn([c.workload.first[0] for c in todo], [c.workload.second[0] for c in todo])
        for (first, wanted), found in texts.missed.items():
            kind = "first" if first else "second"
            self._watcher.say(f"a {kind} turn of {wanted} tokens has {found} with this chat template")
        return texts

    async def _warm_up(self, texts: Texts, largest: Cell) -> float:
        """Every P with every D, both routes, the largest prompts; returns the time per token."""
        workload = largest.workload
        engines = self._fleet.engines
        p, d = (sum(engine.role is role for engine in engines) for role in (Role.PREFILL, Role.DECODE))
        count = 2 * max(p, d) * min(p, d)
        rig = self._rig
        before = len(rig.records)
        for x in (0, 1):
            scripts = [
                Script(
                    self._name(),
                    0.5 * (at // max(p, d)),
                    (
                        (texts.first(workload.first[0]), WARM_UP_TOKENS),
                        (texts.later(workload.second[0]), WARM_UP_TOKENS),
                    ),
                )
                for at in range(count)
            ]
            await ArmDriver(rig, self._fleet.model, scripts, WARM_UP).run(x, lambda elapsed_s, later: None)
        await until_idle(self._fleet, rig.upstream)
        seen = [record.tpot_s for record in rig.records[before:] if record.tpot_s is not None]
        return median(seen) if seen else GUESSED_TPOT_S

    def _name(self) -> str:
        self._scripts += 1
        return f"calibrate-{self._run}-{self._scripts}"


def _words(result: CellResult) -> str:
    cell = result.cell
    arms = [
        f"x={x} TTFT {arm.ttft_mean_ms:.0f} ms, TPOT {arm.tpot_mean_ms:.1f} ms, {arm.n} turns"
        if arm.ttft_mean_ms is not None and arm.tpot_mean_ms is not None
        else f"x={x} no turn answered"
        for x, arm in ((0, cell.x0), (1, cell.x1))
    ]
    return "; ".join(arms)
