"""The commands `resume`, `bounds`, `weights` and `audit`: what an operator does to the control loop, and what was done.

They ask the control process. With it dead `resume` still lifts the pin, which is a file of the routers.
"""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.table import Table

from router.pin import read_pin, write_pin

from .admin import DEFAULT_URL, TokenEnv, Url, ask
from .console import fail, out
from .settings import default_state_dir

Model = Annotated[str | None, typer.Argument(help="Which model; not needed where there is one.")]
By = Annotated[str | None, typer.Option("--by", help="Your name; default: the login.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def resume(
    model: Annotated[str | None, typer.Argument(help="Which model; default: all.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="The installation's state folder; default: by --port.")] = None,
    port: Annotated[
        int, typer.Option(help="Data port of the installation, if its state folder is the default.")
    ] = 8000,
    by: By = None,
    url: Url = DEFAULT_URL,
    token_env: TokenEnv = "",
) -> None:
    """The controller goes on: lifts the pin, lets go of held weights, leaves a hold or a fallback."""
    who = by or getpass.getuser()
    lifted = _lift(state_dir or default_state_dir(port), who)
    if lifted:
        _say("the pin is lifted; routers follow the published policy within a second")
    _show(ask(url, "/api/v1/resume", "POST", {"model": model, "by": who}, token_env))


def bounds(
    model: Model = None,
    low: Annotated[float | None, typer.Option(help="The lowest price; default: as it is.")] = None,
    high: Annotated[float | None, typer.Option(help="The highest price; default: as it is.")] = None,
    by: By = None,
    url: Url = DEFAULT_URL,
    token_env: TokenEnv = "",
) -> None:
    """Show or set the prices that the controller may set. One outside goes to the nearer bound with the next tick."""
    if low is None and high is None:
        _show(ask(url, "/api/v1/controls", token_env=token_env), model)
        return
    body = {"model": model, "low": low, "high": high, "by": by or getpass.getuser()}
    _show(ask(url, "/api/v1/bounds", "POST", body, token_env), model)


def weights(
    model: Model = None,
    w_ttft: Annotated[float | None, typer.Option("--w-ttft", help="Weight of TTFT; with --w-tpot.")] = None,
    w_tpot: Annotated[float | None, typer.Option("--w-tpot", help="Weight of TPOT; with --w-ttft.")] = None,
    price: Annotated[float | None, typer.Option(help="w_tpot / w_ttft, in their place.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="They stay until `trimtab resume`.")] = False,
    by: By = None,
    url: Url = DEFAULT_URL,
    token_env: TokenEnv = "",
) -> None:
    """Show or set the weights. The law goes on from them, unless they are held."""
    if w_ttft is None and w_tpot is None and price is None:
        if hold:
            fail("--hold: give --w-ttft and --w-tpot, or --price, too")
        _show(ask(url, "/api/v1/controls", token_env=token_env), model)
        return
    given = {"w_ttft": w_ttft, "w_tpot": w_tpot, "price": price, "hold": hold}
    body = {"model": model, "by": by or getpass.getuser(), **given}
    _show(ask(url, "/api/v1/weights", "POST", body, token_env), model)


def audit(
    limit: Annotated[int, typer.Option(help="So many entries, the latest.", min=1, max=1000)] = 50,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token_env: TokenEnv = "",
) -> None:
    """What operators and the controller did: when, who, what, from what to what. Newest first."""
    rows = ask(url, f"/api/v1/audit?{urlencode({'limit': limit})}", token_env=token_env)["audit"]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        _say(f"{row['at']}  {row['actor'] or 'unknown'}  {row['action']}  {row['detail']}")
    if not rows:
        _say("nothing is on record")


def _lift(folder: Path, who: str) -> bool:
    """Lift a pin that this host's installation has; whether there was one."""
    try:
        if read_pin(folder) is None:
            return False
    except ValueError:
        pass  # damaged: away with it
    try:
        write_pin(folder, None, who)
    except OSError as error:
        fail(f"{folder}: the pin could not be lifted: {error.strerror}")
    return True


def _show(controls: dict[str, Any], model: str | None = None) -> None:
    """The models as they are now."""
    if not controls["models"]:
        _say("no turn of any model has been seen yet")
    table = Table("model", "state", "since", "price", "bounds", "why", title=None)
    for name, row in controls["models"].items():
        if model is None or name == model:
            held = " held" if row["held"] else ""
            span = f"{row['bounds']['low']:g}..{row['bounds']['high']:g}"
            table.add_row(name, row["state"], row["since"] or "", f"{_price(row['price'])}{held}", span, row["why"])
    if table.row_count:
        out.print(table)
    pin = controls["pin"]
    if pin["configured_x"] is not None:
        _say(f"pinned to x={pin['configured_x']:g} by control.pin_x: change it there")
    elif pin["x"] is not None:
        _say(f"pinned to x={pin['x']:g}; `trimtab resume` or `trimtab pin off` lifts it")


def _price(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
