"""`trimtab config check`: is this trimtab.yaml one, and what does it come to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
import yaml

from .config_check import check, effective
from .console import err

config_app = typer.Typer(no_args_is_help=True, help="The configuration file.")


@config_app.callback()
def _group() -> None:
    """The configuration file."""


@config_app.command("check")
def config_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="trimtab.yaml")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print what the file comes to.")] = False,
) -> None:
    """Say all that is wrong with a trimtab.yaml, with line and column; else print what it comes to, without secrets."""
    settings, problems = check(file)
    for problem in problems:
        err.print(str(problem), style="red", markup=False, highlight=False, soft_wrap=True)
    if settings is None:
        raise typer.Exit(2)
    if not quiet:
        print(yaml.safe_dump(effective(settings, os.environ), sort_keys=False, allow_unicode=True), end="")
