"""The command `reproduce`: the paper's figures and tables from virtual time, beside the paper and what was measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dashboards.scenario_plot import PlotUnavailable
from slos.problem import did_you_mean

from .console import check_target, command_line, commit, fail, out, progress_bar, versions
from .measured import MeasuredError
from .reproduce import draw
from .reproduce.chapters import CHAPTERS
from .reproduce.document import Provenance, document
from .reproduce.fit import lines
from .reproduce.lab import Lab
from .reproduce.readings import Readings, read
from .reproduce.report import page
from .reproduce.target import Chapter, Verdict

SEED = 0
COLORS = {Verdict.HOLDS: "green", Verdict.MISSES: "red", Verdict.SHOWN: "dim"}


def reproduce(
    measured: Annotated[
        Path | None,
        typer.Option(help="Folder with the published measurements (points_3060.csv and, if there, others)."),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the report here: one file, with plots.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write fit and targets here.")] = None,
    only: Annotated[str | None, typer.Option(help=f"Names with commas between, of: {', '.join(CHAPTERS)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points and conversations: about a minute.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; default: all cores.")] = os.cpu_count() or 1,
) -> None:
    """Reproduce the PPD paper in virtual time: every figure and table beside what the paper says."""
    for target in (html_file, json_file):
        if target is not None:
            check_target(target)
    names = _names(only)
    try:
        if html_file is not None:
            draw.available()
        readings = read(measured) if measured is not None else Readings()
    except (PlotUnavailable, MeasuredError, UnicodeDecodeError) as error:
        fail(str(error))
    began_s = time.monotonic()
    with progress_bar("reproducing") as advance:
        lab = Lab(readings, quick=quick, jobs=jobs, seed=SEED, progress=advance)
        chapters = {name: CHAPTERS[name](lab) for name in names}
    about = _provenance(lab, measured, time.monotonic() - began_s)
    for chapter in chapters.values():
        out.print(_table(chapter))
    _say(chapters, about)
    if json_file is not None:
        fits = lines(lab) if "fit" in names else []
        json_file.write_text(document(chapters, fits, about), encoding="utf-8")
    if html_file is not None:
        html_file.write_text(page(chapters, about), encoding="utf-8")
        out.print(f"{html_file}: the report", markup=False, highlight=False, soft_wrap=True)


def _names(only: str | None) -> tuple[str, ...]:
    wanted = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    for name in wanted:
        if name not in CHAPTERS:
            fail(f"--only: {did_you_mean(name, tuple(CHAPTERS))}")
    return tuple(name for name in CHAPTERS if name in wanted) if wanted else tuple(CHAPTERS)


def _provenance(lab: Lab, measured: Path | None, took_s: float) -> Provenance:
    known = lab.readings
    text = "nothing: give --measured DIR"
    if measured is not None:
        text = f"{len(known.points):,} points, {len(known.real):,} runs of real conversations"
        if known.missing:
            text += f"; not in the folder: {', '.join(known.missing)}"
    return Provenance(
        "emulated",
        command_line(),
        commit().removeprefix("commit "),
        lab.seed,
        lab.quick,
        text,
        versions(),
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        took_s,
        lab.simulated,
    )


def _table(chapter: Chapter) -> Table:
    table = Table(title=chapter.title, title_justify="left")
    table.add_column("what", ratio=1)
    for column in ("paper", "measured", "Trimtab", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for found in chapter.findings:
        unit, verdict = found.target.unit, found.verdict
        table.add_row(
            escape(found.target.what),
            unit.text(found.target.paper),
            unit.text(found.measured),
            unit.text(found.trimtab),
            unit.error_text(found.error),
            "" if verdict is Verdict.SHOWN else verdict.value,
            style=COLORS[verdict] if verdict is Verdict.MISSES else None,
        )
    return table


def _say(chapters: Mapping[str, Chapter], about: Provenance) -> None:
    verdicts = [found.verdict for chapter in chapters.values() for found in chapter.findings]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict)
    line = f"{counts} · source: {about.source} · {about.command} · {about.commit} · seed {about.seed}"
    out.print(f"{line} · {about.took_s:.0f} s", markup=False, highlight=False, soft_wrap=True)
