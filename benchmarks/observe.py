"""How far observe mode's estimate is off: a pinned fleet in virtual time says what the score at a fixed price would
have done, and a second run of the same seed does it.

    python benchmarks/observe.py --pin x0 --rates 0.5,0.7,0.9 --seeds 4

Prints a Markdown table: P99 TTFT of later turns and P99 TPOT (ms), and the share that misses 2 s and 38 ms, as served,
as estimated, and as it came out. Source: emulated, 70B 2P_2D, agents, 600 s of which the first 60 s are not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from controller.replay import Compared, Replay
from emulator.profiles import PROFILES
from emulator.workload import AGENT, Phase, conversations
from estimators.quantile import nearest_rank
from router.record import TurnRecord
from trimtab.contenders import contender
from trimtab.scenarios import H1, promises
from trimtab.shipped import as_tables, shipped
from trimtab.simulate import Simulation

DURATION_S, SETTLE_S = 600.0, 60.0
TTFT_S, TPOT_S = 2.0, 0.038
TABLES = as_tables(shipped())


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one fleet: ms and shares."""

    ttft_ms: float
    tpot_ms: float
    ttft_missed: float
    tpot_missed: float
    local: float

    @classmethod
    def of(cls, records: Iterable[TurnRecord], local: Sequence[bool]) -> Figures:
        """Of records, and of whether each later turn went local."""
        rows = list(records)
        ttft = sorted(r.ttft_s for r in rows if r.turn > 1 and r.ttft_s is not None)
        tpot = sorted(r.tpot_s for r in rows if r.tpot_s is not None and r.output_tokens >= 8)
        return cls(
            nearest_rank(ttft, 0.99) * 1e3,
            nearest_rank(tpot, 0.99) * 1e3,
            sum(value > TTFT_S for value in ttft) / len(ttft),
            sum(value > TPOT_S for value in tpot) / len(tpot),
            sum(local) / len(local),
        )

    def __str__(self) -> str:
        missed = f"{self.ttft_missed * 100:.2f} / {self.tpot_missed * 100:.2f}"
        return f"{self.ttft_ms:.0f} / {self.tpot_ms:.1f} | {missed} | {self.local * 100:.0f} %"


def counted(record: TurnRecord) -> bool:
    """It began after the fleet had settled."""
    return record.accepted_s >= SETTLE_S


def run(policy: str, rate_hz: float, seed: int) -> list[TurnRecord]:
    """The records of one run, in the order of their ends."""
    phases = (Phase("agents", DURATION_S, ((AGENT, rate_hz),)),)
    profile, entry = PROFILES[H1.profile], contender(policy, TABLES)
    simulation = Simulation(profile, H1.topology, entry.policy, promises(TTFT_S, TPOT_S), seed=seed)
    simulation.run(conversations(phases, np.random.default_rng([seed, 0])), phases)
    return simulation.records


def estimated(records: Sequence[TurnRecord], policy: str) -> list[Compared]:
    """What the other policy would have made of them."""
    replay, other = Replay(), contender(policy, TABLES).policy
    found: list[Compared] = []
    for record in records:
        replay.take(record, record.ended_s)
        found += replay.settled(other, record.ended_s)
    return [*found, *replay.settled(other, float("inf"))]


def figures(records: Sequence[TurnRecord]) -> Figures:
    """As served."""
    rows = [record for record in records if counted(record)]
    return Figures.of(rows, [record.went_local for record in rows if record.turn > 1])


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pin", default="x0")
    parser.add_argument("--policy", default="price_0.4")
    parser.add_argument("--rates", default="0.5,0.7,0.9")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    print("| agents/s, seed | | P99 TTFT / TPOT, ms | missed, % | local |\n|---|---|---|---|---|")
    for rate_hz in map(float, options.rates.split(",")):
        for seed in range(options.seeds):
            served = run(options.pin, rate_hz, seed)
            rows = [turn for turn in estimated(served, options.policy) if counted(turn.record)]
            local = [turn.route.value == "append_local" for turn in rows if turn.record.turn > 1]
            told = Figures.of([turn.as_record() for turn in rows], local)
            for name, told_of in (
                (f"as served ({options.pin})", figures(served)),
                ("estimated", told),
                ("came out", figures(run(options.policy, rate_hz, seed))),
            ):
                print(f"| {rate_hz:g}, {seed} | {name} | {told_of} |", flush=True)


if __name__ == "__main__":
    main()
