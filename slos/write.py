"""A declaration as plain values and as YAML: what `spec.py` reads back as the same declaration.

The short form of each promise, and only what differs from the defaults. Comments, order of keys and presets of the file
that it was read from are gone.
"""

from collections.abc import Iterable, Mapping

import yaml

from . import phrases
from .allowance import REQUESTS_28D, Budget, Method
from .objective import Condition, Match, Signal, Slo
from .policy import BURNS, AlertPolicy, Breach, Burn, Declaration, NoData

Values = dict[str, object]


def to_yaml(declaration: Declaration) -> str:
    """The text of an SLO file."""
    return dump([declaration_values(declaration)])


def dump(documents: Iterable[Values]) -> str:
    """YAML without anchors, keys as they come."""
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=1000)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def declaration_values(declaration: Declaration) -> Values:
    """The same as plain values."""
    values: Values = {"version": 1}
    if declaration.service is not None:
        values["service"] = declaration.service
    if declaration.labels:
        values["labels"] = dict(declaration.labels)
    if declaration.rps is not None:
        values["traffic"] = {"rps": declaration.rps}
    values["slos"] = [slo_values(slo) for slo in declaration.slos]
    alerts = alerts_values(declaration.alerts)
    return {**values, "alerts": alerts} if alerts else values


def slo_values(slo: Slo) -> Values:
    """One objective."""
    values: Values = {"name": slo.name}
    percent = phrases.percent(slo.objective)
    if slo.signal is Signal.GOODPUT:
        values |= {"all_of": conditions_values(slo.conditions), "percent": float(percent)}
    elif slo.signal is Signal.SUCCESS:
        values["objective"] = f"success >= {percent}%"
    else:
        values["objective"] = f"p{percent}({slo.signal.value}) <= {limit_text(slo.threshold_s)}"
    match, budget = match_values(slo.match), budget_values(slo.budget)
    values |= {"match": match} if match else {}
    values |= {"budget": budget} if budget else {}
    values |= {"description": slo.description} if slo.description else {}
    values |= {"labels": dict(slo.labels)} if slo.labels else {}
    return values


def conditions_values(conditions: tuple[Condition, ...]) -> list[str]:
    """The list under all_of."""
    return [
        "success" if each.signal is Signal.SUCCESS else f"{each.signal.value} <= {limit_text(each.threshold_s)}"
        for each in conditions
    ]


def limit_text(threshold_s: float | None) -> str:
    """What a latency may be."""
    return phrases.ASKED if threshold_s is None else phrases.duration(threshold_s)


def match_values(match: Match) -> Values:
    """Only what leaves turns out."""
    values: Values = {}
    if match.models != ("*",):
        values["model"] = _one_or_more(match.models)
    if (match.turn_min, match.turn_max) != (1, None):
        low, high = match.turn_min, match.turn_max
        values["turn"] = f">={low}" if high is None else str(low) if low == high else f"{low}..{high}"
    if match.streaming is not None:
        values["streaming"] = match.streaming
    if match.classes:
        values["class"] = _one_or_more(match.classes)
    if match.tenants:
        values["tenant"] = _one_or_more(match.tenants)
    if match.asked is not None:
        values["asked"] = match.asked
    return values


def budget_values(budget: Budget) -> Values:
    """Only what is not usual."""
    values: Values = {}
    if budget.over_s != REQUESTS_28D.over_s:
        values["over"] = phrases.span(budget.over_s)
    if budget.method is Method.SLICES:
        values |= {"method": budget.method.value, "percent": float(phrases.percent(budget.good_slices))}
    if budget.slice_s != REQUESTS_28D.slice_s:
        values["slice"] = phrases.span(budget.slice_s)
    if budget.min_samples != REQUESTS_28D.min_samples:
        values["min_samples"] = budget.min_samples
    return values


def alerts_values(alerts: AlertPolicy) -> Values:
    """Only what is not usual."""
    values: Values = {}
    if alerts.runbook is not None:
        values["runbook"] = alerts.runbook
    if alerts.breach != Breach():
        breach = alerts.breach
        values["breach"] = {
            "severity": breach.severity.value,
            "confidence": breach.confidence,
            "for": phrases.span(breach.for_s),
            "clear": phrases.span(breach.clear_s),
        }
    if alerts.burns != BURNS:
        values["burn"] = [_burn(burn) for burn in alerts.burns]
    if alerts.min_bad_events != AlertPolicy().min_bad_events:
        values["min_bad_events"] = alerts.min_bad_events
    if alerts.no_data != NoData():
        after = phrases.span(alerts.no_data.after_s)
        values["no_data"] = {"after": after, "severity": alerts.no_data.severity.value}
    return values


def _burn(burn: Burn) -> Mapping[str, object]:
    return {
        "severity": burn.severity.value,
        "spend": f"{phrases.percent(burn.spend)}%",
        "long": phrases.span(burn.long_s),
        "short": phrases.span(burn.short_s),
        "for": phrases.span(burn.for_s),
    }


def _one_or_more(texts: tuple[str, ...]) -> object:
    return texts[0] if len(texts) == 1 else list(texts)
