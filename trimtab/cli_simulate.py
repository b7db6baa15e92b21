"""The command `simulate`: a scenario file in virtual time, once or swept."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dashboards.scenario_plot import PlotUnavailable, draw
from dashboards.sweep_plot import draw_sweep
from slos.problem import SpecError

from .console import check_target, command_line, commit, err, fail, out, progress_bar
from .experiment import Result, Stopped, as_json, play
from .picture import as_sweep, as_view
from .report import stopped_text, tables
from .runs import BACKENDS, BackendMissing
from .scenario_file import with_choice
from .sweep import Point, load_points

DRAWN = 6
"""Policies in the picture of a scenario, in the file's order."""
INTERRUPTED = 130
"""The shell's exit code for Ctrl-C."""


def simulate(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0, instead of the file's.")] = None,
    policies: Annotated[str | None, typer.Option(help="Names with commas between, instead of the file's.")] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help="PATH=V1,V2,…: also run with other values; repeatable.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where paths of traces begin; default: the file's folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw here: a .png or .svg, or a folder for all pictures.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; default: all cores.")] = os.cpu_count() or 1,
    backend: Annotated[
        str | None, typer.Option(help=f"Of joblib: {', '.join(BACKENDS)}. ray: on the cluster at RAY_ADDRESS.")
    ] = None,
) -> None:
    """Run a scenario file in virtual time: every policy on every seed, at every point of a sweep."""
    if backend is not None and backend not in BACKENDS:
        fail(f"--backend {backend}: write one of {', '.join(BACKENDS)}")
    if json_file is not None:
        check_target(json_file)
    if plot is not None and not plot.is_dir():
        if plot.suffix.lower() not in (".png", ".svg"):
            fail(f"--plot {plot}: name a .png or .svg, or a folder that exists")
        check_target(plot)
    points = _points(scenario, sweep or (), data, policies, seeds)
    try:
        with progress_bar(f"{scenario.name} in virtual time") as advance:
            results = play(points, jobs, advance, backend=backend, ticks=plot is not None)
    except Stopped as stopped:
        err.print(stopped_text(stopped), style="yellow", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except BackendMissing as error:
        fail(str(error))
    for table in tables(results, command_line(), commit()):
        out.print(table)
    _warn(results)
    if json_file is not None:
        json_file.write_text(as_json(results, command_line(), commit()), encoding="utf-8")
    if plot is not None:
        try:
            _draw(results, plot)
        except PlotUnavailable as error:
            fail(str(error))


def _points(
    scenario: Path, sweeps: Sequence[str], data: Path | None, policies: str | None, seeds: int | None
) -> tuple[Point, ...]:
    try:
        points = load_points(scenario, sweeps=sweeps, data=data)
    except SpecError as error:
        for problem in error.problems:
            err.print(str(problem), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    names = tuple(name.strip() for name in (policies or "").split(",") if name.strip())
    try:
        return tuple(Point(point.at, with_choice(point.experiment, names, seeds)) for point in points)
    except ValueError as error:
        fail(f"--policies: {error}")


def _warn(results: Sequence[Result]) -> None:
    for result in results:
        for policy, runs in result.outcome.runs.items():
            for warning in sorted({warning for run in runs for warning in run.warnings}):
                in_seeds = [run.seed for run in runs if warning in run.warnings]
                where = "".join(f"{path} = {value}, " for path, value in result.at)
                listed = ", ".join(map(str, in_seeds))
                text = f"infeasible for half a minute or more ({where}{policy}, seeds {listed}): {warning}"
                out.print(text, style="yellow", markup=False, soft_wrap=True)


def _draw(results: Sequence[Result], target: Path) -> None:
    """A file is the sweep, or the one scenario; a folder takes the sweep and every point of it."""
    swept = len(results) > 1
    if not target.is_dir():
        if swept:
            draw_sweep(as_sweep(results, command_line(), commit()), target)
        else:
            _draw_point(results[0], target)
        return
    name = results[0].outcome.scenario.name
    if swept:
        draw_sweep(as_sweep(results, command_line(), commit()), target / f"{_plain(name)}-sweep.png")
    for result in results:
        at = "".join(f"-{path.rsplit('.', 1)[-1]}-{value}" for path, value in result.at)
        _draw_point(result, target / f"{_plain(name + at)}.png")


def _draw_point(result: Result, target: Path) -> None:
    names = list(result.outcome.runs)[:DRAWN]
    draw(as_view(result.outcome, command_line(), commit(), names), target)


def _plain(name: str) -> str:
    """A file name of letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "scenario"
