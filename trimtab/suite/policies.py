"""Who runs in the suite: the controller, its rivals with what was frozen for them, and the grids of hindsight."""

from __future__ import annotations

from dataclasses import dataclass

from .catalogue import Entry, Sided
from .split import Split

CONTROLLER = "controller"
STARTS = ("controller_start_0.03", "controller_start_2.9")
OTHER_LAW = "aimd"
"""The law that is not the default, from the same price."""
CONSTANT = "price_0.4"
"""The constant that was right wherever the right price was known: the hard one to beat."""
PRICES = ("price_0.1", CONSTANT, "price_1.2")
STATIC = "paper_table"
"""The paper's table at w = (1, 1)."""
RULES = ("x0", "x1", STATIC, "prototype", "dynamo", "llm_d", "shorter_queue")
"""Rules with their documented defaults, and none to set."""
TUNED = ("tuned_threshold", "tuned_dynamo")
BEST = "best"
"""Of the frozen rules, the one that did best on the tuning scenarios."""

THRESHOLD_GRID = tuple(f"threshold_{n}" for n in (256, 512, 1024, 1536, 2048, 3072, 4096, 8192))
COARSE_GRID = ("threshold_1024", "threshold_2048", "threshold_4096")
"""Where no demand compares with the best in hindsight."""
DYNAMO_GRID = tuple(f"dynamo_{n}_{share}" for n in (512, 1024, 1536, 2048, 4096) for share in (0.3, 0.5, 0.7, 0.9))
PRICE_GRID = tuple(f"price_{price}" for price in (0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 2.0, 3.0))
PAPER_GRID = tuple(f"paper_table_{pair}" for pair in ("1_3", "1_10", "1_30"))

BESIDE_SEEDS = 5
"""Of those who are not among the four that run on all seeds."""
FEASIBLE_SEEDS = 2
"""Of fixed rules where traffic is feasible: prices say what could be held, and it lasts long."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Policies by name as they run, and how many of the seeds each gets."""

    seeds: dict[str, tuple[int, ...]]
    rules: tuple[str, ...]
    """Frozen rules, by the names under which they run."""
    hindsight: tuple[str, ...]
    """Thresholds of which the best is picked afterwards."""
    constants: tuple[str, ...]
    """What the oracle picks from by phase; empty where it is not asked."""
    aliases: dict[str, str]
    """What the split file calls some of them, and the names under which they run."""


def cast_of(entry: Entry, split: Split, seeds: tuple[int, ...], *, full: bool) -> Cast:
    """Who runs in a scenario, and on which seeds."""
    beside = seeds if full else seeds[:BESIDE_SEEDS]
    few = beside[:FEASIBLE_SEEDS] if entry.feasible and not full else beside
    tuned = {name: split.frozen[name].policy for name in TUNED if name in split.frozen}
    best = split.frozen[BEST].policy if BEST in split.frozen else None
    rules = tuple(dict.fromkeys([*RULES, *tuned.values(), *([best] if best is not None else [])]))
    asks_oracle = full or entry.sided is Sided.TWO
    constants = tuple(dict.fromkeys([*PRICE_GRID, *THRESHOLD_GRID, "x0", "x1", STATIC, *PAPER_GRID]))
    hindsight = THRESHOLD_GRID if full or entry.sided is not Sided.NONE else COARSE_GRID
    most = PRICES if entry.feasible else (CONSTANT, STATIC, *([best] if best is not None else ()))
    every = dict.fromkeys((CONTROLLER, *most), seeds) | dict.fromkeys(STARTS, beside)
    for name in (OTHER_LAW, *PRICES, *rules, *hindsight, *(constants if asks_oracle else ())):
        every.setdefault(name, few)
    return Cast(every, rules, hindsight, constants if asks_oracle else (), tuned)
