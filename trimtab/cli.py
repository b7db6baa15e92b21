"""`trimtab`: the command line. Bad input ends with one clear message and exit code 2, never with a traceback."""

from __future__ import annotations

import datetime
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dashboards.scenario_plot import PlotUnavailable, draw
from router.artefact import ArtefactError
from slos.files import load_slo_file
from slos.spec import SpecError

from . import __version__, cli_serve
from .calibrate import CalibrationError, Plan, artefact_text, run_phase1
from .console import err, fail, out
from .demo import Outcome, as_json, as_view, run_all, scenario_named, with_slos
from .fit import FitError
from .tabulate import result_table

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
slo_app = typer.Typer(no_args_is_help=True, help="Service level objectives.")
app.add_typer(slo_app, name="slo")
for command in (cli_serve.serve, cli_serve.emulate, cli_serve.router, cli_serve.control, cli_serve.pin):
    app.command()(command)


def main() -> None:
    """Entry point of the console script."""
    app()


def _check_target(path: Path) -> None:
    if not path.parent.is_dir():
        fail(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        fail(f"{path}: is a folder; name a file in it")


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"trimtab {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Trimtab: P99 promises that hold on vLLM with separate prefill and decode nodes."""


@app.command()
def demo(
    headless: Annotated[
        bool, typer.Option("--headless", help="Virtual time, no sockets: a table, a picture, JSON.")
    ] = False,
    scenario: Annotated[str, typer.Option(help="H1, H3 or H4.")] = "H1",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 3,
    slo: Annotated[Path | None, typer.Option(help="Other SLOs than the scenario's own.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Only this policy beside the controller; repeatable.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the first seed here (.png or .svg).")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; default: all cores.")] = os.cpu_count() or 1,
) -> None:
    """Run a scenario of two-sided drift with the controller, the paper's table and fixed rules on the same
    seeds."""
    if not headless:
        fail("trimtab demo: the live demo is not part of this version; add --headless")
    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        fail(f"--plot {plot}: the name must end in .png or .svg")
    for target in (json_file, plot):
        if target is not None:
            _check_target(target)
    try:
        chosen = scenario_named(scenario)
        if slo is not None:
            chosen = with_slos(chosen, load_slo_file(slo).slos)
        with _progress(f"{chosen.name} in virtual time") as advance:
            outcome = run_all(chosen, range(seeds), jobs, advance, policy or ())
    except (ValueError, SpecError, ArtefactError) as error:
        fail(str(error))
    command, commit = _command(), _commit()
    out.print(result_table(outcome, command, commit))
    _warn(outcome)
    if json_file is not None:
        json_file.write_text(as_json(outcome, command, commit), encoding="utf-8")
    if plot is not None:
        try:
            draw(as_view(outcome, command, commit), plot)
        except PlotUnavailable as error:
            fail(str(error))


@app.command()
def calibrate(
    model: Annotated[str, typer.Option(help="Engine profile, e.g. llama-3.1-70b-h100-tp4.")],
    topology: Annotated[str, typer.Option(help="Prefill and decode nodes, e.g. 2P_2D.")],
    target: Annotated[Path, typer.Option("--out", help="Where to write the table artefact.")],
    seed: Annotated[int, typer.Option(min=0)] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; default: all cores.")] = os.cpu_count() or 1,
    date: Annotated[str | None, typer.Option(help="Date in the artefact; default: today (UTC).")] = None,
) -> None:
    """Measure Phase 1 on emulated engines and write both tables: the load-aware one and the paper's."""
    _check_target(target)
    day = date or datetime.datetime.now(datetime.UTC).date().isoformat()
    plan = Plan(model, topology, seed, jobs)
    command = f"trimtab calibrate --model {model} --topology {topology} --seed {seed}"
    try:
        with _progress(f"{model} {topology}: cells") as advance:
            results = run_phase1(plan, advance)
        text = artefact_text(plan, results, date=day, command=command)
    except (CalibrationError, FitError) as error:
        fail(str(error))
    target.write_text(text, encoding="utf-8")
    out.print(f"{target}: {len(results)} cells, source: emulated", markup=False, highlight=False, soft_wrap=True)


@slo_app.command("check")
def slo_check(files: Annotated[list[Path], typer.Argument(help="YAML files.")]) -> None:
    """Read SLO files and say what is wrong with them, with file, line and a fix."""
    failed = False
    for path in files:
        try:
            found = load_slo_file(path)
        except SpecError as error:
            failed = True
            for problem in error.problems:
                err.print(str(problem), style="red", markup=False, highlight=False, soft_wrap=True)
            continue
        for entry in found.slos:
            limit = f"<= {entry.threshold_s * 1e3:g} ms" if entry.threshold_s is not None else ""
            out.print(
                f"{path}: {entry.name}: {entry.objective:.3%} of turns {entry.signal.value} {limit}".rstrip(),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    if failed:
        raise typer.Exit(2)


def _warn(outcome: Outcome) -> None:
    seen: dict[str, list[int]] = {}
    for run in outcome.runs.get("controller", ()):
        for warning in run.warnings:
            seen.setdefault(warning, []).append(run.seed)
    for warning, in_seeds in seen.items():
        listed = ", ".join(map(str, in_seeds))
        out.print(f"infeasible for at least a minute (seeds {listed}): {warning}", style="yellow", markup=False)


@contextmanager
def _progress(label: str) -> Iterator[_Advance]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield _Advance(bar, bar.add_task(label, total=None))


class _Advance:
    def __init__(self, bar: Progress, task: object) -> None:
        self._bar, self._task = bar, task

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)  # type: ignore[arg-type]


def _command() -> str:
    return shlex.join(["trimtab", *sys.argv[1:]])


def _commit() -> str:
    """The commit of this checkout, `unknown` outside one."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return f"version {__version__}"
    return f"commit {found.stdout.strip()}"
