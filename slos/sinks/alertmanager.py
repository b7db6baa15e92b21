"""What Alertmanager takes at POST /api/v2/alerts, checked here, for a batch with one bad alert is answered with 400.

    [{"labels": {...}, "annotations": {...}, "startsAt": ..., "endsAt": ..., "generatorURL": ...}, ...]

An alert is its labels. One that fires is posted again every minute with an end four minutes ahead, so that it resolves
by itself should we fall silent; one that is over is posted with its end, and on for five minutes. Annotations are in
every post: one without would wipe them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..notice import LABEL
from .webhook import fingerprint, timestamp

RESEND_S = 60.0
ENDS_IN_S = 4 * RESEND_S
RESOLVED_FOR_S = 300.0


@dataclass(frozen=True, slots=True)
class Posted:
    """One alert as it is to be known; `ends_s` is None while it fires. Seconds since the epoch."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_s: float
    ends_s: float | None = None
    generator_url: str = ""

    @property
    def fingerprint(self) -> str:
        """What tells it from others."""
        return fingerprint(self.labels)


def postable(alert: Posted, now_s: float) -> dict[str, object]:
    """The alert as JSON. Raises ValueError for one that would not be taken."""
    labels = {name: text for name, text in alert.labels.items() if text}
    for name in (*labels, *alert.annotations):
        if LABEL.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no label name; letters, digits and _ only")
    for text in (*labels.values(), *alert.annotations.values()):
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is no text")
    if not labels.get("alertname"):
        raise ValueError("an alert without alertname cannot be told from others")
    ends_s = now_s + ENDS_IN_S if alert.ends_s is None else min(alert.ends_s, now_s)
    body: dict[str, object] = {
        "labels": dict(sorted(labels.items())),
        "annotations": dict(sorted(alert.annotations.items())),
        "startsAt": timestamp(min(alert.starts_s, ends_s)),
        "endsAt": timestamp(ends_s),
    }
    if _is_url(alert.generator_url):
        body["generatorURL"] = alert.generator_url
    return body


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and not any(c.isspace() for c in text)
    except ValueError:
        return False
