"""`trimtab doctor`: looks at engines and says what to change, one line a finding."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from router.turn import Role
from slos.spec import SpecError

from . import __version__
from .console import fail, out
from .doctor.checks import diagnose
from .doctor.facts import Facts
from .doctor.findings import Finding, Level, document, failed, summary
from .doctor.gather import Target
from .doctor.visit import Visit, assumed_of, visit
from .processes import StartError, secret_from_env
from .settings import Settings, check_addresses
from .settings_file import load_settings

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.UNKNOWN: "dim"}


def doctor(
    urls: Annotated[list[str] | None, typer.Argument(metavar="[URL]...", help="Engines whose role is seen.")] = None,
    prefill: Annotated[list[str] | None, typer.Option(help="URL of a prefill node; repeatable.")] = None,
    decode: Annotated[list[str] | None, typer.Option(help="URL of a decode node; repeatable.")] = None,
    replica: Annotated[list[str] | None, typer.Option(help="URL of a replica; repeatable.")] = None,
    config: Annotated[Path | None, typer.Option(help="trimtab.yaml whose engines are looked at too.")] = None,
    probing: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Send tiny requests, or only read. Default: send.")
    ] = True,
    lease: Annotated[bool, typer.Option("--lease", help="Measure how long P keeps a prompt: about 30 s more.")] = False,
    api_key_env: Annotated[str, typer.Option(metavar="NAME", help="Environment variable with the engines' key.")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds for each request.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check that engines have what the router needs, and say what to change."""
    try:
        settings = Settings() if config is None else load_settings(config)
        pools = {
            "prefill": (*settings.prefill, *(prefill or ())),
            "decode": (*settings.decode, *(decode or ())),
            "replica": (*settings.replica, *(replica or ())),
        }
        check_addresses(**pools, engine=tuple(urls or ()))
        key = secret_from_env(api_key_env or settings.engine_key_env)
    except SpecError as error:
        fail("\n".join(str(problem) for problem in error.problems))
    except (ValueError, StartError) as error:
        fail(str(error))
    targets = [Target(url.rstrip("/"), Role(name)) for name, named in pools.items() for url in named]
    targets += [Target(url.rstrip("/"), None) for url in urls or ()]
    if not targets:
        fail("name engines: trimtab doctor URL..., or --prefill, --decode and --replica URL, or --config trimtab.yaml")
    if lease and not probing:
        fail("--lease sends a request: leave out --no-probe")
    assumed = assumed_of(settings, probed=probing)
    facts = asyncio.run(visit(Visit(tuple(targets), assumed, timeout, key, lease)))
    findings = diagnose(facts)
    if as_json:
        print(json.dumps(_document(facts, findings), indent=2))
    else:
        _print(facts, findings)
    raise typer.Exit(1 if failed(findings) else 0)


def _print(facts: Facts, findings: list[Finding]) -> None:
    for node in facts.nodes:
        role = "role unknown" if node.role is None else node.role.value
        out.print(f"{node.name}  {node.url}  {role}", markup=False, highlight=False, soft_wrap=True)
    width = max((len(" ".join(found.nodes)) for found in findings), default=1)
    for found in findings:
        out.print(found.line(width), style=_STYLES[found.level], markup=False, highlight=False, soft_wrap=True)
    out.print(summary(findings), markup=False, highlight=False)


def _document(facts: Facts, findings: list[Finding]) -> dict[str, object]:
    nodes = [
        {
            "name": node.name,
            "url": node.url,
            "role": None if node.role is None else node.role.value,
            "version": node.version,
            "models": [model.id for model in node.models or ()],
        }
        for node in facts.nodes
    ]
    ok = not failed(findings)
    return {"trimtab": __version__, "ok": ok, "nodes": nodes, "findings": document(findings)}
