"""`trimtab slo`: check, explain, presets, schema, import, export. All of it reads files; `check --live` also asks a
running installation."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slos.explain import explain as explained
from slos.files import read_text
from slos.openslo import read_openslo, to_openslo
from slos.policy import Declaration
from slos.presets import PERCENT, PRESETS
from slos.problem import CODES, Problem, SpecError, quoted
from slos.promise import promise
from slos.schema import json_schema
from slos.spec import check_slos, load_slos
from slos.write import to_yaml

from .console import check_target, err, fail
from .settings_file import check_settings

LIVE_TIMEOUT_S = 5.0

slo_app = typer.Typer(no_args_is_help=True, help="Service level objectives.")


class Format(StrEnum):
    """How `check` prints."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


File = Annotated[Path, typer.Argument(help="SLO file.")]
Rps = Annotated[float | None, typer.Option(min=0.001, help="Turns a second that you expect; else the file's traffic.")]
To = Annotated[Path | None, typer.Option("--to", help="Write to this file instead of standard output.")]


@slo_app.command("check")
def check(
    files: Annotated[list[Path], typer.Argument(help="SLO files, or a trimtab.yaml that holds SLOs.")],
    rps: Rps = None,
    strict: Annotated[bool, typer.Option("--strict", help="Advice (W codes) fails too.")] = False,
    how: Annotated[Format, typer.Option("--format", help="text, json or github.")] = Format.TEXT,
    live: Annotated[
        str | None, typer.Option("--live", help="Admin URL of a running installation: do the SLOs count any turn?")
    ] = None,
) -> None:
    """Read SLO files and say what is wrong with them, with file, line and a fix."""
    found: list[Problem] = []
    declared: list[tuple[Path, Declaration]] = []
    for path in files:
        declaration, problems = _checked(path, rps)
        if declaration is not None:
            declared.append((path, declaration))
            problems = (*problems, *(_unseen(declaration, live) if live is not None else ()))
        found += problems
    if how is Format.JSON:
        typer.echo(json.dumps({"problems": [_item(each) for each in found]}, indent=1))
    else:
        for problem in found:
            _print(problem, how)
    if how is Format.TEXT:
        for path, declaration in declared:
            for slo in declaration.slos:
                typer.echo(f"{path}: {slo.name}: {promise(slo)}")
    if any(strict or not problem.advice for problem in found):
        raise typer.Exit(2)


@slo_app.command("explain")
def explain(file: File, rps: Rps = None) -> None:
    """Say in plain words what each SLO counts, how much its budget allows, and what its alerts need."""
    typer.echo(explained(_load(file), rps))


@slo_app.command("presets")
def presets() -> None:
    """List the presets: published limits on TTFT and TPOT."""
    for name, limits in PRESETS.items():
        typer.echo(
            f"{name:34s} p{PERCENT:g}(ttft) <= {limits.ttft_ms:g}ms   p{PERCENT:g}(tpot) <= {limits.tpot_ms:g}ms"
        )


@slo_app.command("schema")
def schema(to: To = None) -> None:
    """Print the JSON Schema of SLO files, for editors."""
    _write(json.dumps(json_schema(), indent=2) + "\n", to)


@slo_app.command("export")
def export(file: File, to: To = None) -> None:
    """Write an SLO file as OpenSLO v1 documents."""
    _write(to_openslo(_load(file)), to)


@slo_app.command("import")
def import_(file: Annotated[Path, typer.Argument(help="OpenSLO v1 documents.")], to: To = None) -> None:
    """Turn OpenSLO v1 documents into an SLO file. What has no counterpart is refused by name."""
    try:
        declaration, problems = read_openslo(read_text(file), str(file))
    except SpecError as error:
        declaration, problems = None, error.problems
    for problem in problems:
        _print(problem, Format.TEXT)
    if declaration is None:
        raise typer.Exit(2)
    _write(to_yaml(declaration), to)


def _load(path: Path) -> Declaration:
    try:
        return load_slos(read_text(path), str(path))
    except SpecError as error:
        fail("\n".join(str(problem) for problem in error.problems))


def _checked(path: Path, rps: float | None) -> tuple[Declaration | None, Sequence[Problem]]:
    try:
        text = read_text(path)
        if re.search(r"^models:", text, re.MULTILINE):
            return check_settings(text, str(path), path.parent, rps)
        return check_slos(text, str(path), rps)
    except SpecError as error:
        return None, error.problems


def _unseen(declaration: Declaration, admin: str) -> Iterable[Problem]:
    """SLOs that a running installation knows and that have not counted a turn there, or that it does not know."""
    url = f"{admin.rstrip('/')}/api/v1/slos"
    try:
        if not url.startswith(("http://", "https://")):
            raise ValueError("no http:// address")
        with urllib.request.urlopen(url, timeout=LIVE_TIMEOUT_S) as response:
            rows = {row["slo"]: row for row in json.load(response)["slos"]}
            valid = {name: int(row["valid"]) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"--live {quoted(admin)}: no answer from an installation's admin address ({type(error).__name__})")
    for slo in declaration.slos:
        if slo.name not in valid:
            message, fix = f"{slo.name} is not declared there", "run it with this file, or name another --live"
        elif not valid[slo.name]:
            message, fix = f"{slo.name} has counted no turn there", "check its match, or send some traffic"
        else:
            continue
        yield Problem(declaration.source, max(1, slo.line), 1, "E401", message, fix)


def _item(problem: Problem) -> dict[str, object]:
    return {**asdict(problem), "advice": problem.advice, "about": CODES.get(problem.code, "")}


def _print(problem: Problem, how: Format) -> None:
    if how is Format.GITHUB:
        kind = "warning" if problem.advice else "error"
        place = f"file={_escaped(problem.source)},line={problem.line},col={problem.column},title={problem.code}"
        typer.echo(f"::{kind} {place}::{_escaped(f'{problem.message}; {problem.fix}', colon=False)}")
    else:
        style = "yellow" if problem.advice else "red"
        err.print(str(problem), style=style, markup=False, highlight=False, soft_wrap=True)


def _escaped(text: str, *, colon: bool = True) -> str:
    """As workflow commands want it."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if colon else text


def _write(text: str, to: Path | None) -> None:
    if to is None:
        typer.echo(text, nl=False)
        return
    check_target(to)
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{to}: {error.strerror}")
