"""How fast the simulator is, and how that grows: turns and output tokens simulated per second of one core.

    python benchmarks/simulator.py [--json FILE]

Chat at a rate per pair of P and D nodes, on 1 to 100 nodes; then load, then context, on 2P_2D. Pinned x = 0.5, router
and controller's tick included. Time is CPU time of this process, the least of three runs: neighbours
disturb it less.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.workload import CHAT, LogNormal, Mix, Phase, conversations
from router.policy import Policy, Weights
from trimtab.simulate import Simulation

SEED = 0
SECONDS = 60.0
REPEATS = 3
NODES = {"1R": 1, "1P_1D": 2, "2P_2D": 4, "5P_5D": 10, "25P_25D": 50, "50P_50D": 100}
CHATS_PER_NODE_HZ = 1.0
LOADS_HZ = (0.5, 1.0, 2.0, 4.0, 6.0)
CONTEXTS = (350, 2_000, 8_000, 30_000)


@dataclass(frozen=True)
class Row:
    series: str
    setting: str
    turns: int
    tokens: int
    cpu_s: float

    @property
    def turns_per_s(self) -> float:
        return self.turns / self.cpu_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.cpu_s


def run(series: str, setting: str, topology: str, rate_hz: float, mix: Mix = CHAT) -> Row:
    phases = (Phase("load", SECONDS, ((mix, rate_hz),)),)
    plans = conversations(phases, np.random.default_rng(SEED))
    policy = Policy(1, {}, Weights(1, 1), pin_x=0.5)
    times = []
    for _ in range(REPEATS):
        simulation = Simulation(LLAMA_3_1_8B_H100, topology, policy, (), seed=SEED)
        began = time.process_time()
        simulation.run(plans, phases)
        times.append(time.process_time() - began)
    cpu_s = min(times)
    return Row(
        series, setting, len(simulation.records), sum(r.output_tokens for r in simulation.records), round(cpu_s, 3)
    )


def rows() -> list[Row]:
    found = [run("nodes", f"{n} ({t})", t, CHATS_PER_NODE_HZ * n) for t, n in NODES.items()]
    found += [run("conversations per s, 2P_2D", f"{hz:g}", "2P_2D", hz) for hz in LOADS_HZ]
    for tokens in CONTEXTS:
        mix = replace(CHAT, name=f"first-{tokens}", first=LogNormal(tokens, 0.0, tokens, tokens))
        found.append(run("first prompt, tokens, 2P_2D at 1/s", str(tokens), "2P_2D", 1.0, mix))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = rows()
    table = Table("series", "setting", "turns", "output tokens", "CPU s", "turns/s", "tokens/s")
    for row in found:
        table.add_row(
            row.series,
            row.setting,
            str(row.turns),
            str(row.tokens),
            f"{row.cpu_s:.2f}",
            f"{row.turns_per_s:,.0f}",
            f"{row.tokens_per_s:,.0f}",
        )
    Console(width=120).print(table)
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    print(
        f"source: emulated · python benchmarks/simulator.py · seed {SEED} · {SECONDS:g} s of virtual time · {machine}"
    )
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
