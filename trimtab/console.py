"""Where the command line prints, and how it fails: one message, no traceback."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from . import __version__

out = Console(width=None if sys.stdout.isatty() else 150)  # a log has no width of its own
err = Console(stderr=True)


def fail(message: str, code: int = 2) -> NoReturn:
    """End with a message on standard error."""
    err.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def check_target(path: Path) -> None:
    """A file that can be written here, or the end."""
    if not path.parent.is_dir():
        fail(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        fail(f"{path}: is a folder; name a file in it")


@contextmanager
def progress_bar(label: str) -> Iterator[Advance]:
    """A bar on standard error, where that is a terminal; call what comes back with (done, total)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield Advance(bar, bar.add_task(label, total=None))


class Advance:
    """How far the work has come."""

    def __init__(self, bar: Progress, task: object) -> None:
        self._bar, self._task = bar, task

    def __call__(self, done: float, total: int, doing: str | None = None) -> None:
        """`done` of `total`; `doing` replaces the label."""
        self._bar.update(self._task, completed=done, total=total, description=doing)  # type: ignore[arg-type]


def command_line() -> str:
    """What was typed, for provenance."""
    return shlex.join(["trimtab", *sys.argv[1:]])


@cache
def versions() -> dict[str, str]:
    """Of this package, of Python, and of the libraries that results depend on: for provenance."""
    libraries = {name: metadata.version(name) for name in ("numpy", "scipy", "joblib")}
    return {"trimtab": __version__, "python": platform.python_version(), **libraries}


def commit() -> str:
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
