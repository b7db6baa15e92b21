"""The command `nodes`: who there is, nodes added by hand, drains.

`list` asks the admin API. The orders are a file in the installation's state directory, so the others work with the
control process dead; only a node's name, in the place of its URL, has to be asked for.
"""

from __future__ import annotations

import datetime
import getpass
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from router.membership.orders import Added, Drained, Orders, change_orders

from .console import fail, out
from .settings import default_state_dir

TIMEOUT_S = 5.0

nodes_app = typer.Typer(no_args_is_help=True, help="The engines behind the router: list, add, remove, drain, undrain.")
Admin = Annotated[str, typer.Option(help="Where the control process listens.")]
StateDir = Annotated[Path | None, typer.Option(help="The installation's state folder; default: by --port.")]
Port = Annotated[int, typer.Option(help="Data port of the installation, if its state folder is the default.")]
Which = Annotated[str, typer.Argument(help="The node's URL, or its name (D0) where the control process runs.")]
ADMIN = "http://127.0.0.1:9400"


@nodes_app.command("list")
def list_nodes(admin: Admin = ADMIN, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Nodes with their state and why, and the sources that tell of them."""
    found = _ask(admin)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    nodes = Table("node", "role", "state", "why", "running", "weight", "url", title=None)
    for each in found["nodes"]:
        running, weight = str(each["sequences"]), f"{each['weight']:g}"
        nodes.add_row(each["id"], each["role"], each["state"], each["why"], running, weight, each["url"])
    out.print(nodes)
    for source in found["sources"]:
        told = "nothing yet" if source["age_s"] is None else f"{source['nodes']} nodes, {source['age_s']:.0f} s ago"
        problem = f": {source['problem']}" if source["problem"] else ""
        out.print(f"source {source['name']}: {told}{problem}", markup=False, highlight=False, soft_wrap=True)
    if not found["nodes_as_seen_by"]:
        out.print("no router reports", highlight=False)
    if found["problem"]:
        fail(found["problem"])


@nodes_app.command()
def add(
    url: Annotated[str, typer.Argument(help="http://HOST:PORT")],
    role: Annotated[str, typer.Option(help="prefill, decode or replica.")],
    address: Annotated[str, typer.Option(help="Where it hands over, if the connector needs it.")] = "",
    model: Annotated[str, typer.Option(help="What it serves; needed where several models are served.")] = "",
    weight: Annotated[float, typer.Option(help="Its share of new work, against 1 of the others.")] = 1.0,
    state_dir: StateDir = None,
    port: Port = 8000,
) -> None:
    """One node more, until it is removed."""
    one = Added(url, role, address, model, getpass.getuser(), _now(), weight)
    _order(state_dir, port, lambda orders: orders.add(one))
    out.print(f"{url} joins as {role}; routers follow within a second", highlight=False)


@nodes_app.command()
def remove(
    url: Annotated[str, typer.Argument(help="As it was added.")], state_dir: StateDir = None, port: Port = 8000
) -> None:
    """Away with a node that was added: it drains first."""
    _order(state_dir, port, lambda orders: orders.remove(url))
    out.print(f"{url} drains and leaves", highlight=False)


@nodes_app.command()
def drain(node: Which, state_dir: StateDir = None, port: Port = 8000, admin: Admin = ADMIN) -> None:
    """No new turns for a node: its streams end, its conversations move with their next turn."""
    one = Drained(_url(node, admin), getpass.getuser(), _now())
    _order(state_dir, port, lambda orders: orders.drain(one))
    out.print(f"{one.url} drains; `trimtab nodes undrain {node}` lifts it", highlight=False)


@nodes_app.command()
def undrain(node: Which, state_dir: StateDir = None, port: Port = 8000, admin: Admin = ADMIN) -> None:
    """A drained node is used again."""
    url = _url(node, admin)
    _order(state_dir, port, lambda orders: orders.undrain(url))
    out.print(f"{url} is used again; routers follow within a second", highlight=False)


def _order(state_dir: Path | None, port: int, change: Callable[[Orders], Orders]) -> None:
    folder = state_dir or default_state_dir(port)
    if not folder.is_dir():
        fail(f"{folder}: no installation keeps its state here; give --state-dir or --port")
    try:
        change_orders(folder, change)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{folder}: {error.strerror}")


def _url(node: str, admin: str) -> str:
    if "://" in node:
        return node
    known = {each["id"]: each["url"] for each in _ask(admin)["nodes"]}
    if node not in known:
        fail(f"{node!r} is no node; there are {', '.join(sorted(known)) or 'none'}")
    return str(known[node])


def _ask(admin: str) -> Any:
    if not admin.startswith(("http://", "https://")):
        fail(f"{admin!r} is no address; write http://HOST:PORT")
    try:
        with urllib.request.urlopen(f"{admin.rstrip('/')}/api/v1/nodes", timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        fail(f"{admin} answers {error.code}; is it the admin port of this version?")
    except (OSError, ValueError) as error:
        fail(f"nobody answers at {admin} ({type(error).__name__}); name the node by its URL, or give --admin")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
