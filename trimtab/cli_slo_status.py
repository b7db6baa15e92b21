"""The command `slo status`: what operators ask first, of every SLO, and what the controller does about it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from slos.wording import duration, percent

from .admin import DEFAULT_URL, TokenEnv, Url, ask
from .console import fail, out


def slo_status(
    names: Annotated[list[str] | None, typer.Argument(metavar="[SLO]...", help="Only these.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    url: Url = DEFAULT_URL,
    token_env: TokenEnv = "",
) -> None:
    """Whether the SLOs are kept, what is left of their budgets, and what the controller does."""
    found = ask(url, "/api/v1/slos", token_env=token_env)
    status = ask(url, "/api/v1/status", token_env=token_env)
    rows = [row for row in found["slos"] if not names or row["slo"] in names]
    strange = sorted(set(names or ()) - {row["slo"] for row in rows})
    if strange:
        known = ", ".join(row["slo"] for row in found["slos"]) or "none"
        fail(f"no SLO {strange[0]!r} is declared here; known: {known}")
    history = ask(url, "/api/v1/slos/history", token_env=token_env)["history"]
    for row in rows:
        row["earlier"] = [one for one in history if one["slo"] == row["slo"] and not one["current"]]
    controller = controller_of(status)
    if as_json:
        text = json.dumps({"source": found["source"], "controller": controller, "slos": rows}, indent=1)
    else:
        text = as_text(rows, controller)
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def controller_of(status: dict[str, Any]) -> dict[str, object]:
    """What of the status is about the controller."""
    publication = status["publication"]
    return {
        "state": status["state"],
        "health": status["health"],
        "headline": status["headline"],
        "weights_changed_at": publication["published_at"],
        "weights_changed_by": publication["provenance"],
        "version": publication["version"],
        "prices": {name: model["price"] for name, model in status["models"].items()},
        "warnings": status["warnings"],
    }


def as_text(rows: list[dict[str, Any]], controller: dict[str, Any]) -> str:
    """All of it for a terminal."""
    lines: list[str] = []
    for row in rows:
        lines += [f"{row['slo']}: {row['promise']}", *(f"  {name:10} {text}" for name, text in _parts(row)), ""]
    if not rows:
        lines += ["no SLO is declared", ""]
    health = "" if controller["health"] == "ok" else f", {controller['health']}"
    lines.append(f"controller: {controller['state']}{health}. {controller['headline']}")
    changed = f"version {controller['version']} at {controller['weights_changed_at']}"
    lines.append(f"  weights    {changed}: {controller['weights_changed_by'] or 'no reason is known'}")
    lines += [f"  warning    {text}" for text in controller["warnings"]]
    return "\n".join(lines)


def _parts(row: dict[str, Any]) -> list[tuple[str, str]]:
    good = row["good_share"]
    counted = "no turn yet" if good is None else f"{percent(good)} of {row['valid']:,} turns since counting began"
    found = [("verdict", f"{row['verdict']}: {row['why']}"), ("good", counted)]
    percentile = row["percentile_ms"]
    if percentile is not None:
        name = f"P{row['objective'] * 100:g}"
        found.append((name, f"{_between(percentile)}, n = {percentile['n']:,}"))
    budget = row["budget"]
    if budget is not None:
        found.append(("budget", _budget(budget)))
    if row["burn"]:
        rates = ", ".join(f"{window} {_number(rate)}" for window, rate in row["burn"].items())
        found.append(("burn", f"{rates} times what is allowed"))
    if budget is not None:
        found.append(("exhausted", _exhausted(budget)))
    alert = row["alert"]
    since = f" since {alert['since']}: {alert['summary']}" if alert.get("since") else ""
    found.append(("alert", f"{alert['state']}{since}"))
    for one in row["earlier"]:
        share = (
            "no turn" if one["good_share"] is None else f"{percent(one['good_share'])} of {one['valid']:,} turns good"
        )
        found.append(("earlier", f"{one['from']} to {one['to']}, another promise ({one['revision']}): {share}"))
    return found


def _budget(budget: dict[str, Any]) -> str:
    unit = "slices" if budget["method"] == "slices" else "turns"
    if budget["left"] is None:
        return "nothing counted yet"
    seen = f"{duration(budget['seen_s'])} of {duration(budget['over_s'])} seen"
    measured = "" if budget["measured"] is None else f", {percent(budget['measured'])} of the slices measured"
    if budget["left"] < 0:
        too_many = f"{-budget['bad_left']:,} bad {unit} too many"
        return f"overspent by {percent(-budget['left'])}, {too_many} ({seen}{measured})"
    return f"{percent(budget['left'])} left, {budget['bad_left']:,} bad {unit} ({seen}{measured})"


def _exhausted(budget: dict[str, Any]) -> str:
    if budget["exhausted_in_s"] is None:
        return "not in sight at this rate"
    if budget["exhausted_in_s"] == 0:
        return "now"
    return f"in {duration(budget['exhausted_in_s'])}, {budget['exhausted_at']}"


def _between(percentile: dict[str, Any]) -> str:
    if percentile["estimate"] is None:
        return "too few turns"
    low, high = percentile["low"], percentile["high"]
    bounds = f"{_ms(low)} to {'no upper bound yet' if high is None else _ms(high)}"
    return f"{_ms(percentile['estimate'])} ({bounds})"


def _ms(value: float | str | None) -> str:
    if value is None:
        return "no lower bound yet"
    return "no answer" if isinstance(value, str) else duration(float(f"{value / 1e3:.3g}"))


def _number(value: float | str | None) -> str:
    return "–" if value is None else f"{value:.3g}" if not isinstance(value, str) else value
