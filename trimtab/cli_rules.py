"""`trimtab slo rules`: Prometheus rules of an SLO file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slos.files import load_slo_file
from slos.rules import RuleOptions, rule_file
from slos.spec import SpecError

from .console import check_target, err, fail, out


def rules(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="SLO file.")],
    to: Annotated[Path | None, typer.Option("--out", help="Where to write; without it, print.")] = None,
    job: Annotated[str, typer.Option(help="job_name under which Prometheus scrapes the admin port.")] = "trimtab",
    match: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=VALUE", help="Another label of the series; repeatable.")
    ] = None,
    dashboard: Annotated[str, typer.Option(metavar="URL", help="For the annotations; {slo} is the name.")] = "",
) -> None:
    """Write Prometheus recording and alerting rules for the SLOs of a file."""
    if to is not None:
        check_target(to)
    try:
        declaration = load_slo_file(file)
        found = rule_file(declaration, RuleOptions(job, _pairs(match or ()), dashboard or None))
    except SpecError as error:
        fail("\n".join(str(problem) for problem in error.problems))
    except ValueError as error:
        fail(f"{file}: {error}")
    for each in found.left_out:
        err.print(f"left out: {each}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if to is None:
        print(found.text(), end="")
        return
    try:
        to.write_text(found.text(), encoding="utf-8")
    except OSError as error:
        fail(f"{to}: cannot be written: {error.strerror}")
    count = sum(len(group.rules) for group in found.groups)
    out.print(f"{to}: {count} rules", markup=False, highlight=False, soft_wrap=True)


def _pairs(match: list[str] | tuple[()]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in match:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ValueError(f"--match {text!r} is no LABEL=VALUE; write --match cluster=eu or the like")
        pairs.append((name, value))
    return tuple(pairs)
