"""The commands `scenarios list | run | check | tune`: the suite that the controller is held against."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.table import Table

from dashboards.scenario_plot import PlotUnavailable

from .console import check_target, command_line, commit, err, fail, out, progress_bar
from .runs import BACKENDS, BackendMissing, Run
from .suite.catalogue import Entry, entries_named
from .suite.keep import keep_in
from .suite.play import Played, cpu_s_of, play_entry, runs_of
from .suite.policies import CONTROLLER, cast_of
from .suite.report import write_report
from .suite.result import as_json
from .suite.split import Split, shipped_split
from .suite.tuning import CHECK_SEEDS, CHECKED, TUNED_GRID, measure, ranked, run_all
from .suite.verdicts import verdicts

ALL_CORES = os.cpu_count() or 1
INTERRUPTED = 130
"""The shell's exit code for Ctrl-C."""
Names = Annotated[list[str] | None, typer.Argument(help="Scenarios; default: all.", metavar="NAME")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes; default: all cores.")]

scenarios_app = typer.Typer(no_args_is_help=True, help="The scenario suite in virtual time.")


@scenarios_app.command("list")
def list_scenarios() -> None:
    """Name, kind and use of every scenario."""
    split = shipped_split()
    table = Table("scenario", "sided", "use", "min", "phases")
    for entry in entries_named(()):
        phases = " | ".join(phase.label for phase in entry.scenario.phases)
        use = split.use_of(entry.name).replace("_", " ")
        table.add_row(entry.name, entry.sided.value, use, f"{entry.scenario.duration_s / 60:.0f}", phases)
    out.print(table)


@scenarios_app.command()
def run(
    names: Names = None,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="How many of the held-out seeds, from the first.")] = 20,
    full: Annotated[
        bool, typer.Option("--full", help="Every policy and the oracle, everywhere, on all seeds.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    report: Annotated[Path | None, typer.Option(help="A folder for a page and a picture a scenario.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="A folder for finished runs, by code: what is there is not run again.")
    ] = None,
    jobs: Jobs = ALL_CORES,
    backend: Annotated[
        str | None, typer.Option(help=f"Of joblib: {', '.join(BACKENDS)}. ray: on the cluster at RAY_ADDRESS.")
    ] = None,
) -> None:
    """Run scenarios: the controller, its rivals and the oracle. Ctrl-C keeps the scenarios that are done."""
    if backend is not None and backend not in BACKENDS:
        fail(f"--backend {backend}: write one of {', '.join(BACKENDS)}")
    entries = _entries(names or ())
    if json_file is not None:
        check_target(json_file)
    if report is not None and not report.is_dir():
        fail(f"--report {report}: name a folder that exists")
    try:
        run_job = None if keep is None else keep_in(keep)
    except OSError as error:
        fail(f"--keep {keep}: {error.strerror}")
    split = shipped_split()
    chosen = split.held_out_seeds[:seeds]
    casts = [cast_of(entry, split, chosen, full=full) for entry in entries]
    total = sum(map(runs_of, casts))
    cost_min = sum(map(cpu_s_of, entries, casts)) / 60
    out.print(f"{total} runs, about {cost_min:.0f} minutes of one core", highlight=False)
    found: list[Played] = []
    stopped = False
    try:
        with progress_bar("scenarios in virtual time") as advance:
            count = 0

            def one(runs: int) -> None:
                nonlocal count
                count += runs
                advance(count, total)

            for entry, cast in zip(entries, casts, strict=True):
                found.append(play_entry(entry, cast, jobs, one, backend, run_job))
                j = found[-1].outcome.attainment(CONTROLLER)
                out.print(f"{entry.name}: controller J {100 * j:.2f} %", highlight=False)
                _write_json(found, split, json_file)
    except KeyboardInterrupt:
        stopped = True
    except BackendMissing as error:
        fail(str(error))
    if found:
        _show(found, split, report)
    if stopped:
        text = f"stopped: {len(found)} of {len(entries)} scenarios were done"
        err.print(f"{text}{'' if found else '; nothing was written'}", style="yellow", highlight=False)
        raise typer.Exit(INTERRUPTED)


def _write_json(found: Sequence[Played], split: Split, json_file: Path | None) -> None:
    """After each scenario, so that what is done outlives whatever stops the rest."""
    if json_file is not None:
        json_file.write_text(as_json(found, split, command_line(), commit()), encoding="utf-8")


def _show(found: Sequence[Played], split: Split, report: Path | None) -> None:
    out.print(_summary(found))
    judged = verdicts(found, split)
    for kind in ("must", "target"):
        asked = [verdict for verdict in judged if verdict.kind == kind]
        met, missed = (sum(verdict.met is value for verdict in asked) for value in (True, False))
        out.print(f"{kind}s: {met} met, {missed} not met, {len(asked) - met - missed} unknown", highlight=False)
    if report is not None:
        try:
            write_report(found, split, command_line(), commit(), report)
        except PlotUnavailable as error:
            fail(str(error))


def _summary(found: Sequence[Played]) -> Table:
    table = Table("scenario", "J %", "− price_0.4", "− best fixed rule", "recovered", "holds all", "settle")
    for played in found:
        best = played.best_of(played.fixed)
        recovery = played.gap_recovery
        settled = [
            each.ticks
            for (policy, _), measures in played.measures.items()
            if policy == CONTROLLER
            for each in measures.settled
        ]
        table.add_row(
            played.entry.name,
            f"{100 * played.outcome.attainment(CONTROLLER):.2f}",
            f"{100 * played.margin(CONTROLLER, 'price_0.4').mean:+.2f}",
            f"{100 * played.margin(CONTROLLER, best).mean:+.2f} {best}",
            "" if recovery is None else f"{100 * recovery:.0f} %",
            f"{played.outcome.holds_all(CONTROLLER):.2f}",
            f"{fmean(settled):.1f}" if settled else "",
        )
    return table


@scenarios_app.command()
def check(names: Names = None, jobs: Jobs = ALL_CORES) -> None:
    """Constants and fixed rules on the seeds that loads were chosen on, by phase; the controller has no part."""
    for entry in _entries(names or ()):
        with progress_bar(entry.name) as advance:
            runs = run_all(entry.scenario, CHECKED, CHECK_SEEDS, jobs, advance)
        out.print(_checked(entry, runs))


def _checked(entry: Entry, runs: dict[str, list[Run]]) -> Table:
    phases = entry.scenario.phases
    table = Table("policy", "J %", "all", *(phase.label for phase in phases), title=entry.scenario.title)
    for policy, each in sorted(runs.items(), key=lambda item: -fmean(run.score.attainment for run in item[1])):
        cells = []
        for at in range(len(phases)):
            scores = [run.score.phases[at] for run in each]
            hold = fmean(score.hold for score in scores)
            over = fmean(score.over for score in scores)
            attained = fmean(score.attainment or 0.0 for score in scores)
            cells.append(f"{100 * attained:.2f} · {hold:.1f} · {100 * over:.1f}")
        j, held = fmean(run.score.attainment for run in each), fmean(run.score.holds_all for run in each)
        table.add_row(policy, f"{100 * j:.2f}", f"{held:.1f}", *cells)
    table.caption = "By phase: J % · share of seeds that hold both objectives · % over on the worse side."
    return table


@scenarios_app.command()
def tune(jobs: Jobs = ALL_CORES) -> None:
    """Rank the rivals' numbers on the tuning scenarios and seeds, for the `frozen` part of the split file. Ctrl-C
    keeps the scenarios that are done.
    """
    split = shipped_split()
    found: dict[str, dict[str, float]] = {}
    stopped = False
    try:
        with progress_bar("rivals on the tuning scenarios") as advance:
            for name, by_policy in measure(entries_named(split.tuning), TUNED_GRID, split.tuning_seeds, jobs, advance):
                found[name] = by_policy
                best = max(by_policy, key=by_policy.__getitem__)
                out.print(f"{name}: best {best}, J {100 * by_policy[best]:.2f} %", highlight=False)
    except KeyboardInterrupt:
        stopped = True
    out.print(_ranked(found))
    if stopped:
        err.print(f"stopped: {len(found)} of {len(split.tuning)} scenarios were done", style="yellow", highlight=False)
        raise typer.Exit(INTERRUPTED)


def _ranked(found: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table("policy", "J %", *found)
    for each in ranked(found):
        by = (f"{100 * each.by_scenario[name]:.2f}" for name in found)
        table.add_row(each.policy, f"{100 * each.attainment:.2f}", *by)
    return table


def _entries(names: Sequence[str]) -> tuple[Entry, ...]:
    try:
        return entries_named(names)
    except ValueError as error:
        fail(str(error))
