"""The command `alerts`: what fires, who must not be told, and whether anybody would be."""

from __future__ import annotations

import getpass
import json
import re
from typing import Annotated, Any
from urllib.parse import quote

import typer

from .admin import DEFAULT_URL, TokenEnv, Url, ask
from .console import fail, out

alerts_app = typer.Typer(no_args_is_help=True, help="Alerts: what fires, silences, a test.")
_LENGTH = re.compile(r"(\d{1,5})([mhdw])")
_UNITS_S = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0}
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
By = Annotated[str | None, typer.Option("--by", help="Your name; default: the login.")]


@alerts_app.command("list")
def list_alerts(url: Url = DEFAULT_URL, token_env: TokenEnv = "", as_json: AsJson = False) -> None:
    """What fires now, and the silences in force. Exit code 1 while a page fires."""
    alerts = ask(url, "/api/v1/alerts", token_env=token_env)
    silences = ask(url, "/api/v1/silences", token_env=token_env)
    active = [row for row in silences["silences"] if row["active"]]
    if as_json:
        _say(json.dumps({**alerts, "silences": active}, indent=1))
    else:
        for row in alerts["incidents"]:
            _say(f"{row['severity']:7} {row['state']:9} since {row['since']}  {row['summary']}")
        if not alerts["incidents"]:
            _say("nothing fires")
        for row in active:
            why = f"{row['by']}: {row['comment']}"
            _say(f"silence {row['id']} until {row['ends']}: {', '.join(row['matchers'])} ({why})")
        _say(f"told: {', '.join(alerts['receivers'])}; waiting: {_waiting(alerts['waiting'])}")
    if any(row["severity"] == "page" and row["state"] != "silenced" for row in alerts["incidents"]):
        raise typer.Exit(1)


@alerts_app.command()
def silence(
    matchers: Annotated[list[str], typer.Argument(metavar="LABEL=VALUE...", help="E.g. slo=chat-* severity!=page.")],
    length: Annotated[str, typer.Option("--for", help="How long, e.g. 2h.")],
    comment: Annotated[str, typer.Option(help="Why.")],
    by: By = None,
    url: Url = DEFAULT_URL,
    token_env: TokenEnv = "",
) -> None:
    """Hold back what is told of alerts that match all of these; measuring goes on."""
    body = {"matchers": matchers, "for_s": _seconds(length), "by": by or getpass.getuser(), "comment": comment}
    made = ask(url, "/api/v1/silences", "POST", body, token_env)
    _say(f"silence {made['id']} until {made['ends']}; `trimtab alerts unsilence {made['id']}` ends it")
    if made["note"]:
        _say(f"note: {made['note']}")


@alerts_app.command()
def unsilence(
    silence_id: Annotated[str, typer.Argument(metavar="ID", help="As `trimtab alerts list` prints it.")],
    by: By = None,
    url: Url = DEFAULT_URL,
    token_env: TokenEnv = "",
) -> None:
    """End a silence now."""
    who = quote(by or getpass.getuser())
    ask(url, f"/api/v1/silences/{quote(silence_id, safe='')}?by={who}", "DELETE", None, token_env)
    _say(f"silence {silence_id} is over")


@alerts_app.command("test")
def tell_all(by: By = None, url: Url = DEFAULT_URL, token_env: TokenEnv = "") -> None:
    """Tell every receiver that this is a test. Exit code 1 where one did not take it."""
    results: dict[str, Any] = ask(url, "/api/v1/alerts/test", "POST", {"by": by or getpass.getuser()}, token_env)
    for receiver, result in results["results"].items():
        _say(f"{receiver}: {result}")
    if any(result != "delivered" for result in results["results"].values()):
        raise typer.Exit(1)


def _seconds(text: str) -> float:
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        fail(f"--for {text!r} is no length of time; write a whole number with m, h, d or w, e.g. 2h")
    return int(found[1]) * _UNITS_S[found[2]]


def _waiting(waiting: dict[str, int]) -> str:
    found = [f"{count} for {name}" for name, count in waiting.items() if count]
    return ", ".join(found) or "nothing"


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
