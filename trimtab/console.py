"""Where the command line prints, and how it fails: one message, no traceback."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from rich.console import Console

out = Console(width=None if sys.stdout.isatty() else 150)  # a log has no width of its own
err = Console(stderr=True)


def fail(message: str, code: int = 2) -> NoReturn:
    """End with a message on standard error."""
    err.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
