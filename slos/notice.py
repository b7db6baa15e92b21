"""What a receiver is told of one alert: it fires, or it is over. Sinks turn it into their own shapes.

Labels are the alert's identity, the same when it fires and when it resolves, so no number is ever in one.
Annotations are for people. Times are seconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .alerts import Change
from .objective import Slo


@dataclass(frozen=True, slots=True)
class Notice:
    """One message; `ends_s` is None while it fires."""

    change: Change
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_s: float
    ends_s: float | None
    generator_url: str


def labels(slo: Slo, service: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The identity of an SLO's breach alert. `more` are the operator's own; ours win."""
    own = {"alertname": "SLOBreach", "family": "breach", "severity": "page", "slo": slo.name}
    return {**(more or {}), **own, **({"service": service} if service else {})}
