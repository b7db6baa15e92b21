"""The lab: runs what chapters ask for on all cores, once, and knows what was measured.

The grid as measured (cap of 50, pD nodes that take .83 of their later turns) and the grid at x = 1 are shared by
several chapters. From the second comes Phase 1 of Algorithm 1: the paper's table of each P:D ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeVar, cast

from emulator.fleet import PAPER_TOPOLOGIES
from router.paper_table import QPS_LEVELS, PaperTable

from ..agreement import CORE, PURE
from ..cores import on_cores
from ..grid import AS_MEASURED, Conditions, run_point
from ..measured import Point, Result
from ..offline_table import measured_cells, paper_table
from ..workloads import PAPER_WORKLOADS
from .readings import Readings
from .trial import Ran, Trial, run_trial

HYBRIDS = tuple(sorted(name for name, kind in PAPER_TOPOLOGIES.items() if kind.startswith("hybrid")))
CONFIGS = (*PURE, *HYBRIDS)
"""The 17 of the paper's Table 4."""
RATIOS = ("1P_3D", "2P_2D", "3P_1D")
FULLY_LOCAL = replace(AS_MEASURED, append_x=1.0)
QUICK_WORKLOADS = (
    *(f"small/{turn2}" for turn2 in ("tiny", "short_gen", "small_bal", "mid_bal", "mid_paste", "huge_paste")),
    *(f"large/{turn2}" for turn2 in ("long_gen", "very_long_gen", "big_paste")),
)
"""Each of the nine second turns once: a table without one of them would send it through P for want of data."""
QUICK_QPS = (2.0, 8.0, 16.0)
CONVERSATIONS, QUICK_CONVERSATIONS = 500, 120
Progress = Callable[[float, int, str | None], None]
Todo = TypeVar("Todo")
Done = TypeVar("Done")


def appends(ratio: str) -> str:
    """The configuration whose D nodes run append-prefill: 2P_2D → 2P_2pD."""
    return ratio.replace("D", "pD")


class Lab:
    """Runs with one seed. `quick`: fewer points, workloads and conversations, never other conditions."""

    def __init__(
        self,
        readings: Readings,
        *,
        quick: bool,
        jobs: int,
        seed: int,
        progress: Progress = lambda *_: None,
        conversations: int | None = None,
    ) -> None:
        self.readings, self.quick, self.seed = readings, quick, seed
        self.conversations = conversations or (QUICK_CONVERSATIONS if quick else CONVERSATIONS)
        """Of one run of Figures 4, 5, 6 and 11."""
        self._jobs, self._progress = jobs, progress
        self.simulated: dict[str, int] = {}
        """How many runs were made, by what for."""
        self._kept: dict[str, object] = {}

    @property
    def qps_levels(self) -> tuple[float, ...]:
        """Of the grid."""
        return QUICK_QPS if self.quick else QPS_LEVELS

    @property
    def configs(self) -> tuple[str, ...]:
        """Of the grid."""
        return CORE if self.quick else CONFIGS

    @cached_property
    def grid(self) -> list[Result]:
        """The grid as measured."""
        return self.points("the grid as measured", self.configs, AS_MEASURED)

    @cached_property
    def grid_local(self) -> list[Result]:
        """The D nodes of all ratios, at x = 0 and at x = 1."""
        if "grid" in self.__dict__:  # it has the ends at x = 0
            ends = [r for r in self.grid if r.point.config in RATIOS]
        else:
            ends = self.points("the grid at x = 0", RATIOS, AS_MEASURED)
        return ends + self.points("the grid at x = 1", tuple(map(appends, RATIOS)), FULLY_LOCAL)

    @cached_property
    def measured(self) -> list[Result]:
        """The measured points that `grid` holds too, in its order; empty without any."""
        known = {r.point: r for r in self.readings.points}
        return [known[r.point] for r in self.grid if r.point in known]

    @cached_property
    def pairs(self) -> list[tuple[Result, Result]]:
        """(measured, simulated) of the grid."""
        ours = {r.point: r for r in self.grid}
        return [(r, ours[r.point]) for r in self.measured]

    def table(self, ratio: str) -> PaperTable:
        """Phase 1 of a P:D ratio, from virtual time."""
        return self.once(f"table {ratio}", lambda: paper_table(measured_cells(self.grid_local, ratio)))

    def once(self, name: str, make: Callable[[], Done]) -> Done:
        """What `make` gives, made once and shared under a name."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast(Done, self._kept[name])

    def points(
        self, what: str, configs: Sequence[str], conditions: Conditions, qps_levels: Sequence[float] = ()
    ) -> list[Result]:
        """Points of the grid under some conditions."""
        workloads = QUICK_WORKLOADS if self.quick else tuple(PAPER_WORKLOADS)
        todo = [
            Point(config, first, turn2, qps)
            for config in configs
            for first, _, turn2 in (workload.partition("/") for workload in workloads)
            for qps in qps_levels or self.qps_levels
        ]
        return self._run(what, partial(run_point, conditions=conditions, seed=self.seed), todo)

    def trials(self, what: str, todo: Sequence[Trial]) -> list[Ran]:
        """Runs of conversations, in the order given."""
        return self._run(what, partial(run_trial, seed=self.seed), todo)

    def _run(self, what: str, one: Callable[[Todo], Done], todo: Sequence[Todo]) -> list[Done]:
        self.simulated[what] = len(todo)
        self._progress(0, len(todo), what)
        return on_cores(one, todo, self._jobs, lambda done, total: self._progress(done, total, what))
