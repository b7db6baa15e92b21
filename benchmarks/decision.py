"""What one decision costs: `decide` in both modes, and `RouterCore.accept` around it.

    make bench        or        python benchmarks/decision.py

Features are those of all later turns of one H1 run (seed 0), in the order in which they came, so that the branches
and the cells are visited as often as there. `accept` runs on the core of that run as it stood after 200 s, with its
conversations, its ledgers and its load: one turn is accepted (timed), then taken back (not timed).

How to read it. Each number is the time of a single call in µs, by nearest rank over the calls of one repeat, after a
warm-up: the median over the repeats and, in brackets, the smallest and the largest. P50 is the cost of the code. P99
is what a busy router pays; garbage collection stays on, as in production. P99.9 is the machine: with a load average
above the number of CPUs it is the scheduler's slice of some ms, and says nothing. Calls are timed one by one, so each
number includes about `clock` of the timer itself. Compare runs on one machine only. The target is a P99 of `decide`
of at most 20 µs.

Left out: HTTP, JSON and the handshake's legs.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import numpy as np

from emulator.profiles import PROFILES
from emulator.workload import conversations
from estimators.quantile import nearest_rank
from router.core import RouterCore
from router.decision import Decision, decide
from router.features import TurnFeatures
from router.policy import Policy, Weights
from router.turn import ConversationKey, Turn
from slos.objective import Outcome
from trimtab.contenders import START_PRICE
from trimtab.scenarios import H1
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

SEED = 0
AT_S = 200.0
"""When the core is taken: in H1's first phase, busy and long past the start."""
QUANTILES = (0.5, 0.9, 0.99, 0.999)
TARGET_US = 20.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Quantiles of one repeat, in µs."""

    quantiles_us: tuple[float, ...]
    calls: int


def timing(times_ns: list[int]) -> Timing:
    times_ns.sort()
    return Timing(tuple(nearest_rank(times_ns, q) / 1e3 for q in QUANTILES), len(times_ns))


def prepared(policy: Policy) -> tuple[list[TurnFeatures], RouterCore, list[Turn], float]:
    """Features of later turns of a whole run; the core at `AT_S`; turns to offer it then; that time."""
    seen: list[TurnFeatures] = []

    def noting(active: Policy, features: TurnFeatures, coin: float) -> Decision:
        if features.turn > 1:
            seen.append(features)
        return decide(active, features, coin)

    plans = conversations(H1.phases, np.random.default_rng([SEED, 0]))
    whole = Simulation(PROFILES[H1.profile], H1.topology, policy, H1.slos, seed=SEED, decider=noting)
    whole.run(plans, H1.phases)
    part = Simulation(PROFILES[H1.profile], H1.topology, policy, H1.slos, seed=SEED)
    part.start(plans, H1.phases)
    part.advance(AT_S)
    talking = [plan for plan in plans if AT_S - 60 <= plan.start_s < AT_S]
    turns = [
        Turn(f"b{at}", ConversationKey("", part.profile.model, plan.name), plan.turns[1].new_tokens, None, True, AT_S)
        for at, plan in enumerate(talking)
    ]
    return seen, part.core, turns, AT_S


def time_decide(policy: Policy, features: Sequence[TurnFeatures], calls: int) -> Timing:
    """`decide` over the features in turn."""
    times: list[int] = []
    note, clock = times.append, perf_counter_ns
    count = len(features)
    for at in range(calls):
        given = features[at % count]
        begin = clock()
        decide(policy, given, 0.5)
        note(clock() - begin)
    return timing(times)


def time_accept(core: RouterCore, turns: Sequence[Turn], now_s: float, calls: int) -> Timing:
    """`accept` of a turn that is then taken back."""
    times: list[int] = []
    note, clock = times.append, perf_counter_ns
    count = len(turns)
    for at in range(calls):
        turn = turns[at % count]
        begin = clock()
        flight = core.accept(turn, now_s, 0.5)
        note(clock() - begin)
        core.end(flight, now_s, Outcome.CLIENT_GONE)
    return timing(times)


def clock_ns(calls: int = 100_000) -> int:
    """Median cost of the timer itself."""
    clock = perf_counter_ns
    times = [-(clock() - clock()) for _ in range(calls)]
    return sorted(times)[calls // 2]


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def line(name: str, timings: Sequence[Timing]) -> str:
    cells = []
    for at in range(len(QUANTILES)):
        values = [t.quantiles_us[at] for t in timings]
        cells.append(f"{median(values):7.1f} [{min(values):.1f}, {max(values):.1f}]".ljust(24))
    return f"{name:<20}" + "".join(cells) + f"{timings[0].calls} calls × {len(timings)}"


def main() -> None:
    options = argparse.ArgumentParser(description="What one decision costs.")
    options.add_argument("--calls", type=int, default=40_000, help="of each repeat")
    options.add_argument("--repeats", type=int, default=3)
    chosen = options.parse_args()
    load_aware = Policy(1, as_tables(shipped()), Weights.from_price(START_PRICE))
    paper = replace(load_aware, mode="paper", weights=Weights(1, 1))
    features, core, turns, now_s = prepared(load_aware)
    print(f"command: {' '.join(['python', *sys.argv])}   seed: {SEED}   source: emulated")
    runtime = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}"
    print(f"machine: {cpu_model()}, {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}, {runtime}")
    print(f"features: {len(features)} later turns of {H1.name} at price {START_PRICE}")
    print(f"core: {len(core.conversations)} conversations, {len(core.flights())} turns in flight; ", end="")
    print(f"clock: {clock_ns()} ns\n")
    print(f"{'µs a call':<20}" + "".join(f"    P{q * 100:g}".ljust(24) for q in QUANTILES))
    cases: dict[str, Callable[[int], Timing]] = {
        "decide, load-aware": lambda calls: time_decide(load_aware, features, calls),
        "decide, paper": lambda calls: time_decide(paper, features, calls),
        "accept": lambda calls: time_accept(core, turns, now_s, calls),
    }
    worst_us = 0.0
    for name, run in cases.items():
        run(chosen.calls // 10)  # warm up
        timings = [run(chosen.calls) for _ in range(chosen.repeats)]
        print(line(name, timings), flush=True)
        if name.startswith("decide"):
            worst_us = max(worst_us, median(t.quantiles_us[2] for t in timings))
    verdict = "met" if worst_us <= TARGET_US else "missed"
    print(f"\ntarget: P99 of decide ≤ {TARGET_US:g} µs: {verdict} with {worst_us:.1f} µs")


if __name__ == "__main__":
    main()
