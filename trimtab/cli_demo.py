"""The command `demo`: scenarios and traces in virtual time, and a live run in front of real sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dashboards.scenario_plot import PlotUnavailable, draw
from router.artefact import ArtefactError
from slos.files import load_slo_file
from slos.objective import Outcome as Ended
from slos.spec import SpecError

from .console import check_target, command_line, commit, fail, out, progress_bar
from .demo import PLOTTED, as_json, from_trace, run_all, scenario_named
from .installation import LiveError
from .live import run_live
from .picture import as_view
from .runs import Outcome, Run
from .scenarios import H2, Scenario, with_slos
from .tabulate import result_table
from .traces import Cut, TraceError, load_traces

BESIDE_LIVE = ("price_0.4", "dynamo", "threshold_1536", "x0", "x1")
"""What the live run is shown beside, in virtual time on the same seed."""
LIVE = "live over HTTP"


def demo(
    headless: Annotated[
        bool, typer.Option("--headless", help="Virtual time only, unless --live: a table, a picture, JSON.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="With --headless: the live run without the table first.")
    ] = False,
    scenario: Annotated[str, typer.Option(help="H1, H2, H3 or H4, in virtual time.")] = "H1",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 3,
    seconds: Annotated[float | None, typer.Option(min=30, help="Length of the live run; default: 340.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Replay recorded conversations instead, in virtual time.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Of a trace, at most so many.")] = None,
    output_cap: Annotated[
        int | None, typer.Option(min=1, help="Of a trace, at most so many output tokens a turn.")
    ] = None,
    slo: Annotated[Path | None, typer.Option(help="Other SLOs than the scenario's own.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Only this policy beside the controller; repeatable.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the first seed here (.png or .svg).")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; default: all cores.")] = os.cpu_count() or 1,
) -> None:
    """The controller, the paper's table and fixed rules on the same traffic: in virtual time, then live."""
    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        fail(f"--plot {plot}: the name must end in .png or .svg")
    for target in (json_file, plot):
        if target is not None:
            check_target(target)
    try:
        promised = load_slo_file(slo).slos if slo is not None else None
        if not (headless and live):
            chosen = scenario_named(scenario)
            if trace is not None:
                plans = load_traces(trace, limit=limit, cut=Cut(output_tokens=output_cap))
                chosen = from_trace(chosen, str(trace), plans)
            if promised is not None:
                chosen = with_slos(chosen, promised)
            outcome = _virtual(chosen, range(seeds), jobs, policy or ())
            _show(outcome)
        if live or not headless:
            short = H2 if seconds is None else H2.lasting(seconds)
            if promised is not None:
                short = with_slos(short, promised)
            outcome = _live(short, jobs)
            _show(outcome)
    except (ValueError, SpecError, ArtefactError, TraceError, LiveError) as error:
        fail(str(error))
    if json_file is not None:
        json_file.write_text(as_json(outcome, command_line(), commit()), encoding="utf-8")
    if plot is not None:
        try:
            draw(as_view(outcome, command_line(), commit(), PLOTTED), plot)
        except PlotUnavailable as error:
            fail(str(error))


def _virtual(scenario: Scenario, seeds: Sequence[int], jobs: int, policies: Sequence[str]) -> Outcome:
    with progress_bar(f"{scenario.name} in virtual time") as advance:
        return run_all(scenario, seeds, jobs, advance, policies)


def _live(scenario: Scenario, jobs: int) -> Outcome:
    """The live run, and virtual ones of the same traffic to set it beside."""
    out.print(
        f"\nlive: {scenario.title}, {scenario.duration_s:.0f} s, emulated engines on the loopback", highlight=False
    )
    result = asyncio.run(run_live(scenario, 0, lambda text: out.print(text, markup=False, highlight=False)))
    wrong = sum(turn.outcome is Ended.COMPLETED and not turn.text_matches for turn in result.turns)
    over = f"live run over: {len(result.turns)} turns in {result.wall_s:.0f} s"
    out.print(f"{over}, {wrong} answers differ from the engine's own text", highlight=False)
    outcome = _virtual(scenario, range(1), jobs, BESIDE_LIVE)
    return Outcome(outcome.scenario, outcome.seeds, {**outcome.runs, LIVE: (Run(LIVE, 0, result.score, (), ()),)})


def _show(outcome: Outcome) -> None:
    out.print(result_table(outcome, command_line(), commit(), out.width))
    _warn(outcome)


def _warn(outcome: Outcome) -> None:
    seen: dict[str, list[int]] = {}
    for run in outcome.runs.get("controller", ()):
        for warning in run.warnings:
            seen.setdefault(warning, []).append(run.seed)
    for warning, in_seeds in seen.items():
        listed = ", ".join(map(str, in_seeds))
        out.print(f"infeasible for half a minute or more (seeds {listed}): {warning}", style="yellow", markup=False)
