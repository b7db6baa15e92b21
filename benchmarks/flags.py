"""Whether the flag of an impossible promise is right about the very minutes that it speaks of.

    python benchmarks/flags.py                                  all scenarios, five seeds: two hours on two cores
    python benchmarks/flags.py rush day --seeds 200,201 --keep FOLDER

The suite asks whether some policy held the phase that a flag went up in. A flag remembers minutes, and those may be the
worst of a phase, or reach back into the one before. So here six other policies (`JURY`) run wherever a flag went up,
and each is asked for its own share of misses in what the flag remembers (`controller.feasibility.LONG_KEEP`). A flag is
false if one of them kept both promises there. `doubtful` is the suite's measure, with this jury. `source: emulated`.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import joblib
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from controller.evidence import Evidence
from controller.feasibility import LONG_KEEP
from trimtab.runs import Job, Run, run_one
from trimtab.simulate import TickView
from trimtab.suite.catalogue import Entry, entries_named
from trimtab.suite.keep import keep_in
from trimtab.suite.measures import Flag, measured
from trimtab.suite.policies import CONTROLLER, STARTS
from trimtab.suite.split import shipped_split

JURY = ("price_0.1", "price_0.2", "price_0.4", "price_0.8", "x0", "threshold_1536")


@dataclass(frozen=True, slots=True)
class Found:
    """One flag, and what the jury says of it."""

    policy: str
    seed: int
    flag: Flag
    impossible: bool
    settling: bool
    """It went up in the time of a phase that nobody is judged by."""
    held: bool
    """Somebody held the phase."""
    best: tuple[float, str]
    """The smallest share of misses in what the flag remembers, over what is allowed, of the worse side; and whose."""

    @property
    def false(self) -> bool:
        """One of the jury kept both promises in what the flag remembers."""
        return self.best[0] <= 1

    @property
    def doubtful(self) -> bool:
        """As the suite counts them, with this jury."""
        return self.held and not self.impossible and not self.settling


def remembered(ticks: Sequence[TickView], at_s: float) -> float:
    """The worse side's share of misses over what is allowed, as the flag remembers the time until `at_s`."""
    evidence = Evidence()
    for view in ticks:
        if view.at_s > at_s:
            break
        evidence = evidence.after(view.output.readings, LONG_KEEP)
    seen = ((slo, counts) for slo, counts in evidence.counts.items() if counts.valid)
    return max((counts.bad / counts.valid / slo.epsilon for slo, counts in seen), default=0.0)


def flags(entry: Entry, seed: int, policies: Sequence[str], run: Callable[[Job], Run]) -> list[Found]:
    """All that went up on that seed; the jury is asked only if one did."""
    scenario = entry.scenario
    begins_s = scenario.begins_s()
    own = {policy: run(Job(scenario, policy, seed, True)) for policy in policies}
    up = [(policy, flag) for policy, ran in own.items() for flag in measured(scenario, ran.ticks).flags]
    jury = {policy: run(Job(scenario, policy, seed, True)) for policy in JURY} if up else {}
    return [
        Found(
            policy,
            seed,
            flag,
            flag.phase == entry.impossible,
            flag.after_s <= scenario.settle_of(flag.phase),
            any(ran.score.phases[flag.phase].hold for ran in [*own.values(), *jury.values()]),
            min((remembered(ran.ticks, begins_s[flag.phase] + flag.after_s), name) for name, ran in jury.items()),
        )
        for policy, flag in up
    ]


def lines(name: str, found: Sequence[Found]) -> Iterator[str]:
    """Each that somebody speaks against."""
    for each in found:
        if each.false or each.doubtful:
            kind, (share, best) = "false" if each.false else "doubtful", each.best
            at = f"phase {each.flag.phase} after {each.flag.after_s:.0f} s"
            yield f"{kind}: {name} {each.policy} seed {each.seed}, {at}: best {share:.2f} of what is allowed, {best}"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument("--seeds", default=",".join(map(str, shipped_split().held_out_seeds[:5])))
    parser.add_argument("--starts", action="store_true", help="from the prices .03 and 2.9 too")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="as `trimtab scenarios run --keep`")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    policies = (CONTROLLER, *STARTS) if given.starts else (CONTROLLER,)
    run = run_one if given.keep is None else keep_in(given.keep)
    console = Console(width=130, highlight=False)
    console.print(f"source: emulated · {shlex.join(sys.argv)} · {platform.machine()}, jury {', '.join(JURY)}")
    began = time.monotonic()
    table = Table("scenario", "hours", "flags", "in a phase made impossible", "doubtful", "false")
    totals = [0.0, 0, 0, 0, 0]
    for entry in entries_named(given.scenarios):
        asked = partial(flags, entry, policies=policies, run=run)
        found = [
            each for some in joblib.Parallel(given.jobs)(joblib.delayed(asked)(seed) for seed in seeds) for each in some
        ]
        row = [
            len(seeds) * len(policies) * entry.scenario.duration_s / 3600,
            len(found),
            sum(each.impossible for each in found),
            sum(each.doubtful for each in found),
            sum(each.false for each in found),
        ]
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        table.add_row(entry.name, f"{row[0]:.1f}", *(str(n) for n in row[1:]))
        for line in lines(entry.name, found):
            console.print(line)
    table.add_row("all", f"{totals[0]:.1f}", *(str(n) for n in totals[1:]))
    console.print(table)
    console.print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
