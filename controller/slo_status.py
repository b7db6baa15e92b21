"""What operators ask first about one SLO, as JSON: verdict, percentile with bounds, budget, burn, alert, and why.

    {"verdict": "breach", "slice": {"valid", "bad", "bad_share", "p_value"},
     "percentile_ms": {"estimate", "low", "high", "n"},
     "budget": {"method", "left", "bad_left", "exhausted_in_s", "exhausted_at", "measured", "over_s"},
     "burn": {"5m": 6.1, ...}, "alert": {"state", "since", "family", "severity", "summary"}, "revision", "why"}

The page, the command and the API show this and compute nothing themselves.
"""

from __future__ import annotations

from math import isfinite

from slos.incidents import Incident
from slos.objective import Slo
from slos.revisions import revision
from slos.wording import budget_left, duration, percent

from .alerting import Alerting
from .judging import SHOWN_BURNS_S, Standing, span
from .loop import ControlLoop
from .status import iso, number


def slo_status(loop: ControlLoop, alerting: Alerting, slo: Slo) -> dict[str, object]:
    """All of it, for one SLO that is declared."""
    now_s = loop.monotonic()
    estimate = loop.percentiles.estimate(slo.name, now_s)
    percentile = None
    if estimate is not None:
        percentile = {
            "estimate": _ms(estimate.value),
            "low": _ms(estimate.low),
            "high": _ms(estimate.high),
            "n": int(estimate.n),
        }
    standing = alerting.standing(slo.name)
    found: dict[str, object] = {"revision": revision(slo), "percentile_ms": percentile, "alert": _alert(alerting, slo)}
    if standing is None:
        return {**found, "verdict": "unknown", "slice": None, "budget": None, "burn": {}, "why": "not judged yet"}
    budget, window = standing.budget, standing.window
    return {
        **found,
        "verdict": standing.verdict,
        "slice": {
            "valid": window.valid,
            "bad": window.bad,
            "bad_share": number(window.bad / window.valid if window.valid else None),
            "p_value": number(standing.p_value),
        },
        "budget": {
            "method": budget.method.value,
            "over_s": slo.budget.over_s,
            "seen_s": budget.elapsed_s,
            "left": number(budget.left) if budget.known else None,
            "bad_left": budget.bad_left if budget.known else None,
            "spent": budget.spent,
            "exhausted_in_s": number(standing.exhausted_in_s),
            "exhausted_at": None
            if standing.exhausted_in_s is None
            else iso(loop.ledgers.now_s + standing.exhausted_in_s),
            "measured": number(budget.measured),
        },
        "burn": {span(window_s): number(standing.burns[window_s].rate) for window_s in SHOWN_BURNS_S},
        "why": why(standing),
    }


def why(standing: Standing) -> str:
    """The verdict in a sentence."""
    slo, window = standing.slo, standing.window
    last = f"in the last {duration(slo.budget.slice_s)}"
    if standing.verdict == "unknown":
        told = f"{window.valid:,} turns {last} are too few to say; {slo.budget.min_samples} are needed"
    else:
        share = percent(window.bad / window.valid)
        told = f"{share} of {window.valid:,} turns {last} were bad, {percent(slo.epsilon)} is allowed"
        if standing.verdict == "breach" and standing.p_value is not None:
            odds = 1.0 / max(standing.p_value, 1e-9)
            told += f"; chance alone does that {f'once in {odds:,.0f} times' if odds < 1e6 else 'never'}"
    left = budget_left(slo, standing.budget, standing.exhausted_in_s)
    return f"{told}; {left}" if left else told


def incident_row(incident: Incident) -> dict[str, object]:
    """An open incident as JSON."""
    return {
        "about": incident.about,
        "state": "silenced" if incident.silenced else "flapping" if incident.flapping else "firing",
        "lane": incident.lane.value,
        "family": incident.family.value,
        "severity": incident.labels.get("severity", ""),
        "since": iso(incident.starts_s),
        "told_at": None if incident.told_s is None else iso(incident.told_s),
        "summary": incident.said,
        "labels": dict(incident.labels),
        "annotations": dict(incident.annotations),
        "key": incident.key,
    }


def _alert(alerting: Alerting, slo: Slo) -> dict[str, object]:
    about = [one for one in alerting.incidents if one.about == slo.name]
    if not about:
        return {"state": alerting.judging.alert(slo.name).state.value, "since": None, "family": None}
    row = incident_row(min(about, key=lambda one: (one.labels.get("severity") != "page", one.starts_s)))
    return {name: row[name] for name in ("state", "since", "family", "severity", "summary")}


def _ms(value_s: float | None) -> float | str | None:
    return number(value_s if value_s is None or not isfinite(value_s) else value_s * 1e3)
