"""How long one tick takes, guard included, by the size of the fleet.

    python benchmarks/tick.py                     10, 100 and 1,000 nodes
    python benchmarks/tick.py --nodes 100 --ticks 500

Half of the nodes are D, each with 35 later turns a tick (7 a second) by records as routers report them, two objectives
and one percent of misses; turns in flight are one for each that ends. The model has a table, so that the law is asked.
Folding the records is measured by itself: it happens as reports come in, not in the tick. The limit is 50 ms at 100
nodes.
"""

from __future__ import annotations

import argparse
import platform
import random
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from controller.cells import Tallies
from controller.guard import Around, Guards, guarded
from controller.laws import DEFAULT_LAW, LAWS
from controller.safety import State
from controller.tick import TICK_S, ControlState
from router.core import Waiting
from router.policy import Policy, Publication, TableKey, Weights
from tests.controller.records import MODEL, TPOT, TTFT, record
from trimtab.shipped import shipped

TURNS_PER_D = 35


def measured(nodes: int, ticks: int, seed: int) -> tuple[list[float], list[float], int]:
    """(ms of each tick, µs of each fold, turns a tick)."""
    dice = random.Random(seed)
    turns = max(1, nodes // 2) * TURNS_PER_D
    tables = {TableKey(MODEL, shipped()[0].key.topology): shipped()[0].tables()}
    control = ControlState(Publication(1, {"main": Policy(1, tables, Weights.from_price(0.4))}), LAWS[DEFAULT_LAW]())
    guards: Guards = {}
    tallies = {MODEL: Tallies(MODEL, (TTFT, TPOT))}
    took_ms, fold_us = [], []
    made = [
        replace(
            record(ttft_s=dice.lognormvariate(-0.5, 0.5), tpot_s=0.02 + 0.005 * dice.random()),
            features=replace(record().features, turn=2),
        )
        for _ in range(2000)
    ]
    for at in range(1, ticks + 1):
        now_s = TICK_S * at
        rows = [
            replace(made[dice.randrange(len(made))], accepted_s=now_s - dice.random() * TICK_S, ended_s=now_s)
            for _ in range(turns)
        ]
        begin = time.perf_counter()
        for row in rows:
            tallies[MODEL].fold(row)
        fold_us.append((time.perf_counter() - begin) / turns * 1e6)
        waiting = [Waiting(MODEL, 2, True, dice.random() * 3) for _ in range(turns)]
        begin = time.perf_counter()
        result = guarded(control, guards, tallies, waiting, now_s, Around(busy=frozenset({MODEL})))
        took_ms.append((time.perf_counter() - begin) * 1e3)
        control, guards = result.control, result.guards
    assert guards[MODEL].safety.state is State.ACTIVE, guards[MODEL].safety
    return sorted(took_ms), sorted(fold_us), turns


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--ticks", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    console = Console(width=110)
    console.print(
        f"{shlex.join(sys.argv)} · seed {given.seed} · {platform.machine()}, Python {platform.python_version()}"
    )
    table = Table("nodes", "turns a tick", "tick, ms: median", "P99", "worst", "fold a record, µs: median")
    for nodes in given.nodes:
        ticks, folds, turns = measured(nodes, given.ticks, given.seed)
        p99 = ticks[min(len(ticks) - 1, int(0.99 * len(ticks)))]
        times = (ticks[len(ticks) // 2], p99, ticks[-1], folds[len(folds) // 2])
        table.add_row(str(nodes), f"{turns:,}", *(f"{each:.1f}" for each in times))
    console.print(table)


if __name__ == "__main__":
    main()
