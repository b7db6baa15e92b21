"""What a receiver is told of an incident: it fires, it still fires, or it is over. Sinks turn it into their shapes.

Labels are the incident's identity, the same when it fires and when it resolves, so no number is ever in one.
Annotations are for people. Times are seconds since the epoch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .alerts import Change
from .incidents import Family
from .objective import Slo
from .policy import Severity

LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

NAMES = {
    Family.BREACH: "SLOBreach",
    Family.BURN: "SLOBurn",
    Family.NO_DATA: "SLONoData",
    Family.BUDGET: "SLOBudgetExhausted",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """One message; `ends_s` is None while it fires."""

    change: Change
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_s: float
    ends_s: float | None
    generator_url: str


def labels(
    slo: Slo,
    service: str | None,
    more: Mapping[str, str] | None = None,
    family: Family = Family.BREACH,
    severity: Severity = Severity.PAGE,
) -> dict[str, str]:
    """The identity of an SLO's alarm. `more` are the operator's own; ours win."""
    own = {"alertname": NAMES[family], "family": family.value, "severity": severity.value, "slo": slo.name}
    return valid({**(more or {}), **own, **({"service": service} if service else {})})


def valid(given: Mapping[str, str]) -> dict[str, str]:
    """Labels that every receiver takes: names as Prometheus wants them (others have their odd characters replaced),
    values that are not empty."""
    named = {re.sub(r"[^a-zA-Z0-9_]", "_", name): str(value) for name, value in given.items()}
    return {name: value for name, value in named.items() if value and LABEL.fullmatch(name)}
