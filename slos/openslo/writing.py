"""A declaration as OpenSLO v1 documents: one Service, one SLO each.

Durations there are whole minutes, hours, days or weeks, and label values are short words: what is finer stands in an
annotation beside the nearest that is allowed.
"""

import json
import re

from .. import phrases
from ..allowance import REQUESTS_28D, Method
from ..objective import Signal, Slo
from ..policy import Declaration
from ..write import alerts_values, conditions_values, dump, limit_text, match_values

API_VERSION = "openslo/v1"
SOURCE_TYPE = "Trimtab"
PREFIX = "trimtab.dev/"
UNNAMED = "trimtab"
"""The service of a declaration that names none: OpenSLO wants one."""

_LABEL_VALUE = re.compile(r"[a-z0-9A-Z][a-z0-9A-Z._-]{0,62}")

Values = dict[str, object]


def to_openslo(declaration: Declaration) -> str:
    """YAML, several documents."""
    documents = [_service(declaration), *(_slo(slo, declaration.service or UNNAMED) for slo in declaration.slos)]
    return dump(documents)


def _service(declaration: Declaration) -> Values:
    notes: dict[str, str] = {}
    if declaration.service is None:
        notes["unnamed"] = "true"
    alerts = alerts_values(declaration.alerts)
    if alerts:
        notes["alerts"] = json.dumps(alerts, ensure_ascii=False)
    if declaration.rps is not None:
        notes["rps"] = f"{declaration.rps:.12g}"
    metadata = _metadata(declaration.service or UNNAMED, declaration.labels, notes)
    return {"apiVersion": API_VERSION, "kind": "Service", "metadata": metadata, "spec": {}}


def _metadata(name: str, labels: tuple[tuple[str, str], ...], notes: dict[str, str]) -> Values:
    short = {key: text for key, text in labels if _LABEL_VALUE.fullmatch(text)}
    if len(short) < len(labels):
        notes = {**notes, "labels": json.dumps(dict(labels), ensure_ascii=False)}
    metadata: Values = {"name": name}
    if short:
        metadata["labels"] = short
    if notes:
        metadata["annotations"] = {f"{PREFIX}{key}": text for key, text in notes.items()}
    return metadata


def _slo(slo: Slo, service: str) -> Values:
    budget, notes = slo.budget, dict[str, str]()
    over = _shorthand(budget.over_s)
    if over is None:
        over = f"{max(1, round(budget.over_s / 60))}m"
        notes["over"] = phrases.span(budget.over_s)
    if budget.min_samples != REQUESTS_28D.min_samples:
        notes["min-samples"] = str(budget.min_samples)
    if budget.method is Method.SLICES:
        objective: Values = {
            "target": budget.good_slices,
            "timeSliceTarget": slo.objective,
            "timeSliceWindow": _shorthand(budget.slice_s) or budget.slice_s / 60,
        }
    else:
        objective = {"target": slo.objective}
        if budget.slice_s != REQUESTS_28D.slice_s:
            notes["slice"] = phrases.span(budget.slice_s)
    spec: Values = {"description": slo.description} if slo.description else {}
    spec |= {
        "service": service,
        "indicator": {"metadata": {"name": slo.name}, "spec": {"ratioMetric": _ratio(slo)}},
        "timeWindow": [{"duration": over, "isRolling": True}],
        "budgetingMethod": "Timeslices" if budget.method is Method.SLICES else "Occurrences",
        "objectives": [objective],
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "SLO",
        "metadata": _metadata(slo.name, slo.labels, notes),
        "spec": spec,
    }


def _ratio(slo: Slo) -> Values:
    match = match_values(slo.match)
    about: Values = {"match": match} if match else {}
    good: Values = {"signal": slo.signal.value}
    if slo.signal is Signal.GOODPUT:
        good["all_of"] = conditions_values(slo.conditions)
    elif slo.signal is not Signal.SUCCESS:
        good["max"] = limit_text(slo.threshold_s)
    return {
        "counter": True,
        "good": {"metricSource": {"type": SOURCE_TYPE, "spec": good | about}},
        "total": {"metricSource": {"type": SOURCE_TYPE, "spec": about}},
    }


def _shorthand(seconds: float) -> str | None:
    """Minutes, hours, days or weeks, in whole numbers."""
    text = phrases.span(seconds)
    return text if re.fullmatch(r"[1-9][0-9]*[mhdw]", text) else None
