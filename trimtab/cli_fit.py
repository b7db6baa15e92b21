"""`trimtab fit`: an engine profile from measured points; and how other commands take one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from emulator.profile_file import ProfileError, dump, load
from emulator.profiles import LLAMA_3_1_8B_H100_AS_MEASURED, PROFILES, EngineProfile
from router.artefact import ArtefactError
from router.artefact import load as load_artefact

from .agreement import PURE, comparable, line
from .console import check_target, fail, out, progress_bar
from .grid import Conditions, run_points
from .measured import MeasuredError, Result, read_points
from .offline_table import measured_cells, trade_offs
from .profile_fit import ProfileFit, ProfileFitError, fit_profile, rows_of_artefact, rows_of_points

Profile = Annotated[Path | None, typer.Option(help="Engine profile in a file, e.g. of `trimtab fit`.")]


def engine_profile(model: str | None, file: Path | None) -> EngineProfile:
    """The profile that the options name, or the end with a message."""
    if file is not None:
        try:
            return load(file.read_text(encoding="utf-8"), str(file))
        except OSError as error:
            fail(f"{file}: {error.strerror}")
        except (ProfileError, UnicodeDecodeError) as error:
            fail(str(error))
    if model not in PROFILES:
        fail(f"unknown model {model!r}; known: {', '.join(sorted(PROFILES))}")
    return PROFILES[model]


def fit(
    data: Annotated[Path, typer.Argument(help="Folder with points_3060.csv, or a table artefact.")],
    target: Annotated[Path, typer.Option("--out", help="Where to write the profile.")],
    name: Annotated[str, typer.Option(help="The profile's name.")] = "fitted",
    base: Annotated[
        str, typer.Option(help="Shipped profile to start from; what is not fitted stays its.")
    ] = LLAMA_3_1_8B_H100_AS_MEASURED.name,
    base_profile: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    check: Annotated[int, typer.Option(min=0, help="Held-out points to simulate with base and fit.")] = 60,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; default: all cores.")] = os.cpu_count() or 1,
) -> None:
    """Fit an engine profile's constants to measured points, and say how far off it is on points held out."""
    check_target(target)
    start = engine_profile(base, base_profile)
    points: list[Result] = []
    try:
        if data.is_dir():
            points = read_points(data)
            kept = [point for at, point in enumerate(points) if at % 3]
            found = fit_profile(rows_of_points(kept, start), start, name, f"{len(kept)} points in {data.name}")
        else:
            artefact = load_artefact(data.read_text(encoding="utf-8"), str(data))
            what = f"{data.name} ({artefact.origin.source}: {artefact.origin.engine})"
            found = fit_profile(rows_of_artefact(artefact, start), start, name, what)
    except OSError as error:
        fail(f"{data}: {error.strerror}")
    except (MeasuredError, ArtefactError, ProfileFitError, UnicodeDecodeError) as error:
        fail(str(error))
    target.write_text(dump(found.profile), encoding="utf-8")
    _say(found, start)
    if points:
        _simulated(points, start, found.profile, check, jobs)
        _trade_offs(points)
    out.print(f"{target}: profile {name}", markup=False, highlight=False, soft_wrap=True)


def _say(found: ProfileFit, start: EngineProfile) -> None:
    constants = Table("constant", start.name, "fitted", title="Constants")
    for constant, (before, after) in found.moved.items():
        constants.add_row(constant, f"{before:.5g}", f"{after:.5g}")
    out.print(constants)
    errors = Table("by formula", "rows", start.name, "fitted", title="Mean absolute error on rows held out")
    for kind, error in found.errors.items():
        if error.rows:
            errors.add_row(kind, str(error.rows), f"{error.base:.1%}", f"{error.fitted:.1%}")
        else:
            errors.add_row(kind, "0", "not checked", "not checked")
    out.print(errors)


def _simulated(points: list[Result], start: EngineProfile, fitted: EngineProfile, most: int, jobs: int) -> None:
    held_out = [p for p in comparable(points[::3]) if p.point.config in PURE]
    some = held_out[:: max(1, len(held_out) // most)][:most] if most else []
    if not some:
        return
    table = Table("simulated", "points", "TPOT", "second turns' TTFT, P50", title="The same, by the simulator")
    for profile in (start, fitted):
        with progress_bar(f"simulating {profile.name}") as advance:
            results = run_points([p.point for p in some], Conditions(profile), jobs=jobs, progress=advance)
        found = line(profile.name, list(zip(some, results, strict=True)))
        table.add_row(profile.name, str(len(some)), f"{found.tpot.mape:.1%}", f"{found.ttft.mape:.1%}")
    out.print(table)


def _trade_offs(points: list[Result]) -> None:
    """What a table of the paper's kind would hold."""
    table = Table("P:D", "cells", "failed", "local wins both", "transfer wins both", "trade-off", "price, quartiles")
    table.title = "Trade-offs in these points: relative TTFT gained / relative TPOT lost by x = 1"
    for topology in ("1P_3D", "2P_2D", "3P_1D"):
        try:
            found = trade_offs(measured_cells(points, topology))
        except ValueError:
            continue
        quartiles = "-" if found.price_quartiles is None else " / ".join(f"{p:.1f}" for p in found.price_quartiles)
        counts = (found.cells, found.failed, found.local_dominates, found.transfer_dominates, found.trade_off)
        table.add_row(topology, *(str(count) for count in counts), quartiles)
    if table.row_count:
        out.print(table)
