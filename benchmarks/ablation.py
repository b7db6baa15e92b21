"""What each part of the default law buys: the law without it, on the tuning scenarios, paired by seed.

    python benchmarks/ablation.py                     seven scenarios, five seeds; about fifteen minutes on two cores
    python benchmarks/ablation.py no_pull aimd --seeds 2

Held-out scenarios are for the suite, not for this. A variant is a law with other settings, or a constant of the
evidence that it goes by with another value. Each runs from the start prices .4, .03 and 2.9. `source: emulated`.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import fsum, inf
from pathlib import Path
from statistics import fmean, stdev

import joblib
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from controller import evidence
from controller.laws.aimd import Aimd
from controller.laws.protocol import Law
from controller.laws.z_integral import ZIntegral
from estimators.clusters import Clusters
from trimtab.runs import Job, run_one
from trimtab.suite.catalogue import CATALOGUE
from trimtab.suite.split import shipped_split

STARTS = ("controller", "controller_start_0.03", "controller_start_2.9")


@dataclass(frozen=True)
class Variant:
    """A law, and constants of `controller.evidence` that are otherwise."""

    what: str
    law: Law = field(default_factory=ZIntegral)
    constants: Mapping[str, float] = field(default_factory=dict)
    design_effect: bool = True


VARIANTS = {
    "shipped": Variant("as shipped"),
    "no_pull": Variant("nothing pulls an unproven or doubtful price home", ZIntegral(pull=0.0)),
    "home_fixed": Variant("home stays at .4", ZIntegral(learn=0.0)),
    "home_moves": Variant("home is where the evidence last sent the price", ZIntegral(learn=1.0)),
    "half_gain": Variant("q = .01", ZIntegral(q=0.01)),
    "double_gain": Variant("q = .04", ZIntegral(q=0.04)),
    "wide_slew": Variant("steps up to .09 of the range", ZIntegral(slew=0.09)),
    "no_discount": Variant("what was seen before a move counts on", constants={"REACH": inf}),
    "short_memory": Variant("half is forgotten in 10 s", constants={"KEEP": 0.707}),
    "long_memory": Variant("half is forgotten in two minutes", constants={"KEEP": 0.972}),
    "independent": Variant("misses taken for independent", design_effect=False),
    "aimd": Variant("AIMD, .96 and .02", Aimd()),
    "aimd_slow": Variant("AIMD, .98 and .01", Aimd(0.98, 0.01)),
}


def attainment(name: str, scenario: str, start: str, seed: int) -> float:
    """J of one run."""
    variant = VARIANTS[name]
    before = {key: getattr(evidence, key) for key in variant.constants}
    effect = Clusters.design_effect
    try:
        for key, value in variant.constants.items():
            setattr(evidence, key, value)
        if not variant.design_effect:
            Clusters.design_effect = property(lambda _: 1.0)  # type: ignore[assignment, method-assign]
        return run_one(replace(Job(CATALOGUE[scenario].scenario, start, seed), law=variant.law)).score.attainment
    finally:
        Clusters.design_effect = effect  # type: ignore[method-assign]
        for key, value in before.items():
            setattr(evidence, key, value)


def main() -> None:
    """Run and print."""
    split = shipped_split()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=len(split.tuning_seeds))
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    unknown = sorted(set(given.variants) - set(VARIANTS))
    if unknown:
        parser.error(f"no variant {', '.join(unknown)}; they are {', '.join(VARIANTS)}")
    names = ["shipped", *(name for name in given.variants or VARIANTS if name != "shipped")]
    seeds = split.tuning_seeds[: given.seeds]
    todo = [(name, at, start, s) for name in names for at in split.tuning for start in STARTS for s in seeds]
    began = time.monotonic()
    found = dict(
        zip(todo, joblib.Parallel(n_jobs=given.jobs)(joblib.delayed(attainment)(*each) for each in todo), strict=True)
    )
    console = Console(width=150)
    console.print(f"source: emulated · {shlex.join(sys.argv)} · seeds {seeds} · {platform.machine()}", highlight=False)
    table = Table("variant", "J % from .4", ".03", "2.9", "− shipped, pp, paired", "worst scenario, pp", "what")
    for name in names:
        by_start = [fmean(found[name, at, start, s] for at in split.tuning for s in seeds) for start in STARTS]
        apart = {
            at: [100 * (found[name, at, start, s] - found["shipped", at, start, s]) for start in STARTS for s in seeds]
            for at in split.tuning
        }
        every = [each for several in apart.values() for each in several]
        half = 1.96 * stdev(every) / len(every) ** 0.5 if len(every) > 1 else 0.0
        worst = min(apart, key=lambda at: fsum(apart[at]))
        table.add_row(
            name,
            *(f"{100 * value:.2f}" for value in by_start),
            f"{fmean(every):+.2f} ± {half:.2f}",
            f"{worst} {fmean(apart[worst]):+.2f}",
            VARIANTS[name].what,
        )
    console.print(table)
    console.print(f"{len(todo)} runs, {time.monotonic() - began:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
