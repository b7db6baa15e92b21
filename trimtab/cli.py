"""`trimtab`: the command line. Bad input ends with one clear message and exit code 2, never with a traceback."""

from __future__ import annotations

from typing import Annotated

import typer

from . import (
    __version__,
    cli_calibrate,
    cli_controls,
    cli_demo,
    cli_doctor,
    cli_fit,
    cli_reproduce,
    cli_rules,
    cli_serve,
    cli_simulate,
)
from .cli_alerts import alerts_app
from .cli_config import config_app
from .cli_engines import engines_app
from .cli_nodes import nodes_app
from .cli_scenarios import scenarios_app
from .cli_slo import slo_app
from .cli_slo_status import slo_status
from .console import out

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(slo_app, name="slo")
app.add_typer(engines_app, name="engines")
app.add_typer(config_app, name="config")
app.add_typer(alerts_app, name="alerts")
slo_app.command("status")(slo_status)
app.add_typer(nodes_app, name="nodes")
app.add_typer(scenarios_app, name="scenarios")
slo_app.command("rules")(cli_rules.rules)
app.command("demo")(cli_demo.demo)
app.command("calibrate")(cli_calibrate.calibrate)
app.command("doctor")(cli_doctor.doctor)
app.command("simulate")(cli_simulate.simulate)
app.command("fit")(cli_fit.fit)
app.command("reproduce")(cli_reproduce.reproduce)
app.command()(cli_controls.resume)
app.command()(cli_controls.bounds)
app.command()(cli_controls.weights)
app.command()(cli_controls.audit)
for command in (cli_serve.serve, cli_serve.emulate, cli_serve.router, cli_serve.control, cli_serve.pin):
    app.command()(command)


def main() -> None:
    """Entry point of the console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"trimtab {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Trimtab: SLO-driven routing for vLLM with separate prefill and decode nodes."""
