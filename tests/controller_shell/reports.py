"""Reports, configurations and loops made by hand, on a clock that a test turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from controller.config import ControlConfig
from controller.loop import ControlLoop
from controller.store import Store
from router.policy import ANY_MODEL, TableKey
from router.record import TurnRecord
from router.wire import NodeView, Report, WaitingTurn
from slos.counts import Count
from tests.controller.records import TPOT, TTFT, record
from tests.router.samples import tables

SLOS = (TTFT, TPOT)
TABLE = {"tables": {TableKey(ANY_MODEL, "2P_2D"): tables(digest="d1")}, "documents": {"d1": "{}"}}


class Clock:
    """Both clocks of a loop; they move only by hand."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> float:
        self.now_s += seconds
        return self.now_s


def report(
    seq: int = 1,
    *,
    router: str = "router-0",
    boot: str = "boot-a",
    records: tuple[TurnRecord, ...] = (),
    version: int = 1,
    pin_x: float | None = None,
    waiting: tuple[WaitingTurn, ...] = (),
    counts: Mapping[str, Count] | None = None,
    metrics: str = "",
    prices: Mapping[str, float] | None = None,
    dropped_records: int = 0,
    revisions: Mapping[str, str] | None = None,
) -> Report:
    """One report with the few things that a test is about."""
    nodes = (
        NodeView("P0", "http://127.0.0.1:1", "prefill", True, False, 0, 12.0, 0, 400_000),
        NodeView("D0", "http://127.0.0.1:2", "decode", True, False, 7, 0.0, 100_000, 400_000),
    )
    return Report(
        router,
        boot,
        seq,
        version,
        pin_x,
        records,
        waiting,
        counts or {},
        nodes,
        dropped_records,
        metrics,
        prices or {},
        revisions or {},
    )


def turns(n: int = 100, *, ttft_s: float = 0.5, tpot_s: float = 0.020, local: bool = True) -> tuple[TurnRecord, ...]:
    """Later turns, all alike."""
    return tuple(record(ttft_s=ttft_s, tpot_s=tpot_s, local=local) for _ in range(n))


def config(state_dir: Path, **changes: object) -> ControlConfig:
    """A process with the two SLOs, and a table for whatever is served."""
    plain = {"state_dir": state_dir, "slos": SLOS, "port": 0, "source": "emulated", **TABLE}
    return ControlConfig(**{**plain, **changes})  # type: ignore[arg-type]


def loop_in(
    state_dir: Path,
    clock: Clock | None = None,
    store: Store | None = None,
    **changes: Any,
) -> tuple[ControlLoop, Clock]:
    """A loop over the store in that folder, and its clock."""
    clock = clock or Clock()
    settings = config(state_dir, **changes)
    store = store or Store(state_dir)
    return ControlLoop(settings, store, store.restore(settings.slos), monotonic=clock, wall=clock), clock


def drive(loop: ControlLoop, clock: Clock, ticks: int, make: Callable[[int], Report], first_seq: int = 1) -> None:
    """Per tick: one report, made from its sequence number, then the tick."""
    for seq in range(first_seq, first_seq + ticks):
        loop.accept(make(seq), clock())
        clock.advance(loop.config.tick_s)
        loop.tick(clock())
