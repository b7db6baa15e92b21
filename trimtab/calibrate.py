"""`trimtab calibrate`: measure Phase 1 in virtual time, fit the latency model, fill the tables, write the artefact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from emulator.fleet import Role, parse_topology
from emulator.profiles import PROFILES, EngineProfile
from router.artefact import Origin, dump
from router.paper_table import SUCCESS_FLOOR
from router.table import LoadAwareTable

from .cells import PHASE1, PRESETS, Window
from .cores import on_cores
from .fit import fit
from .phase1 import ROWS_OF_FEW, ROWS_PER_ARM, measure
from .rows import CellResult
from .workloads import Workload, grid

TOLERABLE = 0.25
"""Median relative error on held-out rows, above which the model does not describe the fleet."""


class CalibrationError(ValueError):
    """Something that cannot be calibrated; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `profile` is the name of one that ships, or one of one's own. Without `cells` the whole grid,
    fewer rows an arm."""

    profile: str | EngineProfile
    topology: str
    seed: int = 0
    jobs: int = 2
    cells: tuple[tuple[Workload, float], ...] = ()
    window: Window = PHASE1

    def checked(self) -> EngineProfile:
        """The profile, if all of it makes sense."""
        profile = PROFILES.get(self.profile) if isinstance(self.profile, str) else self.profile
        if profile is None:
            raise CalibrationError(f"unknown model {self.profile!r}; known: {', '.join(sorted(PROFILES))}")
        try:
            roles = parse_topology(self.topology)
        except ValueError as error:
            raise CalibrationError(str(error)) from None
        if not roles.get(Role.PREFILL) or not roles.get(Role.DECODE):
            raise CalibrationError(
                f"topology {self.topology!r} has no choice to calibrate: it needs P and D nodes, e.g. 2P_2D"
            )
        return profile


def run_phase1(plan: Plan, progress: Callable[[int, int], None]) -> list[CellResult]:
    """Measure every cell on `jobs` processes; `progress(done, total)` after each. The order does not depend
    on the jobs."""
    profile = plan.checked()
    cells = list(plan.cells or grid())
    rows_per_arm = ROWS_OF_FEW if plan.cells else ROWS_PER_ARM
    work = [(profile, plan.topology, *cell, plan.seed, plan.window, rows_per_arm) for cell in cells]
    return on_cores(_measure, work, plan.jobs, progress)


def _measure(job: tuple[EngineProfile, str, Workload, float, int, Window, int]) -> CellResult:
    return measure(*job)


def artefact_text(plan: Plan, results: Sequence[CellResult], *, date: str, command: str) -> str:
    """The artefact of a Phase 1: the same results, date and command give the same bytes. Raises FitError."""
    profile = plan.checked()
    origin = Origin(
        model=profile.model,
        hardware=profile.hardware,
        topology=plan.topology,
        engine=f"trimtab emulator, profile {profile.name} ({profile.provenance})",
        date=date,
        source="emulated",
        command=command,
        seed=plan.seed,
        samples=samples(results),
    )
    return document(origin, results, {})


def document(origin: Origin, results: Sequence[CellResult], missing: Mapping[str, str]) -> str:
    """Fit, fill and write. `missing` are cells that were asked for, with why they are not there. Raises FitError."""
    fitted = fit([row for r in results for row in r.ttft_rows], [row for r in results for row in r.step_rows])
    cells = tuple(result.cell for result in results)
    return dump(origin, LoadAwareTable.filled(fitted.model), fitted.errors, cells, missing)


def advice(results: Iterable[CellResult]) -> str:
    """Which cells to add where these were too few to fit."""
    swamped = [
        f"{cell.context}/{cell.turn2}@{cell.qps:g}"
        for cell in (result.cell for result in results)
        if min(cell.x0.success, cell.x1.success) < SUCCESS_FLOOR or min(cell.x0.n, cell.x1.n) == 0
    ]
    if swamped:
        return f"Overloaded: {', '.join(swamped)}. Add the same --cells at lower rates"
    return f"Add --cells, e.g. of {', '.join(PRESETS['quick'].patterns)}"


def doubt(fit: Mapping[str, float]) -> str:
    """Why not to serve with a table that fits this badly; empty if it fits."""
    worst = max(fit[name] for name in ("ttft_local", "ttft_transferred", "tpot"))
    if worst <= TOLERABLE:
        return ""
    return (
        f"the model misses half of the turns by more than {worst:.0%}: do not serve with this table. Something else "
        "used the machines, the fleet was overloaded, or there were too few turns"
    )


def samples(results: Iterable[CellResult]) -> int:
    """Answered later turns behind an artefact, both arms."""
    return sum(result.cell.x0.n + result.cell.x1.n for result in results)
