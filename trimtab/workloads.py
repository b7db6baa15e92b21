"""Workloads by name: the mixes, the stand-ins, and the paper's grid.

The grid is the paper's (18 workloads: two first turns x nine second turns) and nine more with a long first turn,
so that every context class is measured. A grid workload is a conversation of two turns of fixed lengths, named
FIRST/SECOND: `small/tiny`, `large/huge_paste`, `huge/long_gen`. Lengths are here and in router/paper_table.py,
arrivals in emulator/arrivals.py, recorded traffic in trimtab/traces.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emulator.standins import ALL_MIXES
from emulator.workload import Mix, two_turn
from router.paper_table import QPS_LEVELS, TURN2_TYPES, ContextClass, context_class
from slos.problem import did_you_mean

FIRST_TURNS: dict[str, tuple[int, int]] = {"small": (128, 128), "large": (1024, 1024), "huge": (8192, 512)}
"""Turn-1 (input, output): the paper's small and large, and one for its third context class."""
THINK_S = 1.0
"""Between the two turns; the paper does not say."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the grid."""

    first: tuple[int, int]
    turn2: str

    @property
    def name(self) -> str:
        """FIRST/SECOND."""
        named = next((name for name, lengths in FIRST_TURNS.items() if lengths == self.first), None)
        return f"{named or self.first}/{self.turn2}"

    @property
    def context(self) -> ContextClass:
        """The class that its second turn falls into."""
        return context_class(sum(self.first))

    @property
    def second(self) -> tuple[int, int]:
        """Turn-2 (input, output)."""
        return TURN2_TYPES[self.turn2]

    @property
    def tokens(self) -> int:
        """Context that a conversation needs in the end."""
        return sum(self.first) + sum(self.second)

    def mix(self) -> Mix:
        """Its conversations."""
        return two_turn(self.name, self.first, self.second, THINK_S)


WORKLOADS: dict[str, Workload] = {
    f"{name}/{turn2}": Workload(first, turn2) for name, first in FIRST_TURNS.items() for turn2 in TURN2_TYPES
}
"""All 27 by name, the paper's 18 first."""
PAPER_WORKLOADS: dict[str, Workload] = dict(list(WORKLOADS.items())[: 2 * len(TURN2_TYPES)])
"""The paper's 18."""


def grid() -> Iterator[tuple[Workload, float]]:
    """All 27 at all ten levels of QPS, in order."""
    for workload in WORKLOADS.values():
        for qps in QPS_LEVELS:
            yield workload, qps


def mix_named(name: str) -> Mix:
    """A mix, a stand-in or a workload of the grid. Raises ValueError with the nearest known one."""
    if name in ALL_MIXES:
        return ALL_MIXES[name]
    if name in WORKLOADS:
        return WORKLOADS[name].mix()
    raise ValueError(did_you_mean(name, (*ALL_MIXES, *WORKLOADS)))
