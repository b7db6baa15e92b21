"""`trimtab calibrate`: measure Phase 1, fit the latency model, fill the tables, write the artefact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from emulator.fleet import Role, parse_topology
from emulator.profiles import PROFILES, EngineProfile
from router.artefact import Origin, dump
from router.table import LoadAwareTable

from .fit import fit
from .phase1 import CellResult, measure
from .workloads import Workload, grid


class CalibrationError(ValueError):
    """A model or topology that cannot be calibrated; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    profile: str
    topology: str
    seed: int = 0
    jobs: int = 2

    def checked(self) -> EngineProfile:
        """The profile, if all of it makes sense."""
        if self.profile not in PROFILES:
            raise CalibrationError(f"unknown model {self.profile!r}; known: {', '.join(sorted(PROFILES))}")
        try:
            roles = parse_topology(self.topology)
        except ValueError as error:
            raise CalibrationError(str(error)) from None
        if not roles.get(Role.PREFILL) or not roles.get(Role.DECODE):
            raise CalibrationError(
                f"topology {self.topology!r} has no choice to calibrate: it needs P and D nodes, e.g. 2P_2D"
            )
        return PROFILES[self.profile]


def run_phase1(plan: Plan, progress: Callable[[int, int], None]) -> list[CellResult]:
    """Measure every cell on `jobs` processes; `progress(done, total)` after each. The order does not depend
    on the jobs."""
    profile = plan.checked()
    cells = list(grid())
    results: list[CellResult] = []
    with ProcessPoolExecutor(max_workers=plan.jobs) as pool:
        pending: Iterable[CellResult] = pool.map(
            _measure, [(profile, plan.topology, *cell, plan.seed) for cell in cells]
        )
        for done, result in enumerate(pending, start=1):
            results.append(result)
            progress(done, len(cells))
    return results


def _measure(job: tuple[EngineProfile, str, Workload, float, int]) -> CellResult:
    return measure(*job)


def artefact_text(plan: Plan, results: Sequence[CellResult], *, date: str, command: str) -> str:
    """The artefact of a Phase 1: the same results, date and command give the same bytes. Raises FitError."""
    profile = plan.checked()
    fitted = fit([row for r in results for row in r.ttft_rows], [row for r in results for row in r.step_rows])
    origin = Origin(
        model=profile.model,
        hardware=profile.hardware,
        topology=plan.topology,
        engine=f"trimtab emulator, profile {profile.name} ({profile.provenance})",
        date=date,
        source="emulated",
        command=command,
        seed=plan.seed,
        samples=sum(r.cell.x0.n + r.cell.x1.n for r in results),
    )
    return dump(origin, LoadAwareTable.filled(fitted.model), fitted.errors, tuple(r.cell for r in results))
