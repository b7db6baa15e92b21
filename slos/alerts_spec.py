"""The `alerts:` section of a declaration, read into an `AlertPolicy`.

    alerts:
      runbook: https://runbooks.example/slo/{slo}
      breach: {severity: page, confidence: 0.999, for: 1m, clear: 5m}
      burn:
        - {severity: page, spend: 2%, long: 1h, short: 5m, for: 1m}
      min_bad_events: 10
      no_data: {after: 15m, severity: ticket}

What is left out has the defaults of `policy.py`; a list of burn rules replaces theirs. A burn rule that is written and
can never fire for one of the SLOs is an error; of the rules that are there anyhow, those that cannot fire do nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from . import phrases, schema
from .nodes import Spot, choice, fields, items, number, scalar, whole
from .objective import Slo
from .policy import DAY_S, AlertPolicy, Breach, Burn, NoData, Severity
from .problem import quoted

MAX_BURNS = 8
MAX_WINDOW_S = 90 * DAY_S
_SEVERITIES = tuple(each.value for each in Severity)


def read_alerts(spot: Spot | None, slos: Sequence[Slo]) -> AlertPolicy:
    """The policy at `spot`; the usual one without. Problems go to the spot's."""
    policy = AlertPolicy()
    found = None if spot is None else fields(spot, tuple(schema.ALERTS))
    if found is None:
        return policy
    if "runbook" in found:
        policy = replace(policy, runbook=_runbook(found["runbook"]))
    if "breach" in found:
        policy = replace(policy, breach=_breach(found["breach"]))
    if "burn" in found:
        policy = replace(policy, burns=_burns(found["burn"], slos))
    if "min_bad_events" in found:
        least = whole(found["min_bad_events"], 1, 1_000_000, "10")
        policy = policy if least is None else replace(policy, min_bad_events=least)
    if "no_data" in found:
        policy = replace(policy, no_data=_no_data(found["no_data"]))
    return policy


def never_fires(burn: Burn, slo: Slo) -> bool:
    """Even with every turn bad the budget of this SLO does not burn so fast."""
    return burn.factor(slo.budget.over_s) >= 1.0 / slo.spendable


def _runbook(spot: Spot) -> str | None:
    text = scalar(spot, "https://runbooks.example/slo/{slo}")
    if text is None:
        return None
    fix = "write https://runbooks.example/slo/{slo} or the like"
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        good = False
    rest = text.replace("{slo}", "")
    if not good or not text.isprintable() or " " in text or "{" in rest or "}" in rest:
        shown = quoted(text) if "@" not in text else "what is there"
        spot.complain("E104", f"{shown} is no web address, without a password and with no braces but {{slo}}", fix)
        return None
    return text


def _breach(spot: Spot) -> Breach:
    found = fields(spot, tuple(schema.BREACH)) or {}
    breach = Breach()
    severity = _severity(found)
    breach = breach if severity is None else replace(breach, severity=severity)
    if "confidence" in found:
        confidence = number(found["confidence"], 0.0, 0.999999, "E204", "0.999")
        breach = breach if confidence is None else replace(breach, confidence=confidence)
    for_s, clear_s = _span(found, "for", 0.0, DAY_S, "1m"), _span(found, "clear", 0.0, DAY_S, "5m")
    breach = breach if for_s is None else replace(breach, for_s=for_s)
    return breach if clear_s is None else replace(breach, clear_s=clear_s)


def _burns(spot: Spot, slos: Sequence[Slo]) -> tuple[Burn, ...]:
    listed = items(spot) or ()
    if len(listed) > MAX_BURNS:
        spot.complain(
            "E109", f"{len(listed)} rules are more than {MAX_BURNS}", "keep two that page and two that do not"
        )
        return ()
    burns = [_burn(each, slos) for each in listed]
    return tuple(burn for burn in burns if burn is not None)


def _burn(spot: Spot, slos: Sequence[Slo]) -> Burn | None:
    found = fields(spot, tuple(schema.BURN))
    if found is None:
        return None
    for key, example in (("severity", "page"), ("spend", "2%"), ("long", "1h"), ("short", "5m")):
        if key not in found:
            spot.complain("E103", f"{key} is missing", f"write {key}: {example} or the like")
    severity = _severity(found)
    text = scalar(found["spend"], "2%") if "spend" in found else None
    spend = None if text is None else phrases.spend(text, found["spend"].complain)
    long_s = _span(found, "long", 60.0, MAX_WINDOW_S, "1h")
    short_s = _span(found, "short", 30.0, MAX_WINDOW_S, "5m")
    for_s = _span(found, "for", 0.0, DAY_S, "1m")
    if severity is None or spend is None or long_s is None or short_s is None:
        return None
    if short_s >= long_s:
        fix = f"write {phrases.span(max(30.0, long_s / 12))} or the like"
        found["short"].complain("E205", f"{phrases.span(short_s)} is not shorter than long", fix)
        return None
    burn = Burn(severity, spend, long_s, short_s, for_s or 0.0)
    for slo in slos:
        if long_s >= slo.budget.over_s:
            fix = f"write a window shorter than {phrases.span(slo.budget.over_s)}"
            found["long"].complain("E205", f"{phrases.span(long_s)} is not shorter than the budget of {slo.name}", fix)
            return None
    _reachable(burn, found, slos)
    return burn


def _reachable(burn: Burn, found: dict[str, Spot], slos: Sequence[Slo]) -> None:
    stuck = [slo for slo in slos if never_fires(burn, slo)]
    if stuck:
        slo = min(stuck, key=lambda each: 1.0 / each.spendable)
        factor, most = burn.factor(slo.budget.over_s), 1.0 / slo.spendable
        spend = 0.9 * most * burn.long_s / slo.budget.over_s
        lasts_s = burn.spend * slo.budget.over_s / (0.9 * most)
        fix = f"write spend: {spend * 100:.2g}%, or long: {math.ceil(lasts_s / 3600.0)}h"
        message = (
            f"factor {factor:.4g} can never fire for {slo.name}: with all turns bad its budget burns {most:.4g} times"
        )
        found["spend"].complain("E301", message, fix)
    inside = [slo for slo in slos if burn.spend * slo.budget.over_s / burn.long_s < 1.0]
    if inside:
        slo = inside[0]
        given = burn.spend * slo.budget.over_s / burn.long_s
        least = burn.long_s / slo.budget.over_s
        message = f"factor {given:.2g} fires while {slo.name} is inside its budget; 1 is taken"
        found["spend"].complain("W302", message, f"write spend: {least * 100:.3g}% or more")


def _no_data(spot: Spot) -> NoData:
    found = fields(spot, tuple(schema.NO_DATA)) or {}
    no_data = NoData()
    severity = _severity(found)
    no_data = no_data if severity is None else replace(no_data, severity=severity)
    after_s = _span(found, "after", 60.0, 7 * DAY_S, "15m")
    return no_data if after_s is None else replace(no_data, after_s=after_s)


def _severity(found: dict[str, Spot]) -> Severity | None:
    text = choice(found["severity"], _SEVERITIES) if "severity" in found else None
    return None if text is None else Severity(text)


def _span(found: dict[str, Spot], key: str, least_s: float, most_s: float, example: str) -> float | None:
    if key not in found:
        return None
    text = scalar(found[key], example)
    return None if text is None else phrases.span_s(text, least_s, most_s, found[key].complain)
