"""The body that Alertmanager posts to a webhook receiver (version "4"), so that receivers made for it work.

One notice is one group of one alert, and one that still fires is the same body again. The fingerprint is Prometheus'
own, 64-bit FNV-1a over the sorted labels with a byte 255 after each name and value. An alert that fires has no end:
Alertmanager then writes the first moment of year 1.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from ..alerts import Change
from ..notice import Notice

VERSION = "4"
RECEIVER = "trimtab"
GROUP_BY = ("alertname", "slo")
NEVER = "0001-01-01T00:00:00Z"

_FNV_OFFSET = 14695981039346656037
_FNV_PRIME = 1099511628211


def payload(notice: Notice, external_url: str) -> dict[str, object]:
    """The whole body."""
    status = "resolved" if notice.change is Change.RESOLVED else "firing"
    labels, annotations = dict(sorted(notice.labels.items())), dict(sorted(notice.annotations.items()))
    group = {name: labels[name] for name in GROUP_BY if name in labels}
    alert = {
        "status": status,
        "labels": labels,
        "annotations": annotations,
        "startsAt": timestamp(notice.starts_s),
        "endsAt": NEVER if notice.ends_s is None else timestamp(notice.ends_s),
        "generatorURL": notice.generator_url,
        "fingerprint": fingerprint(labels),
    }
    return {
        "version": VERSION,
        "groupKey": "{}:{" + ", ".join(f'{name}="{_escaped(value)}"' for name, value in group.items()) + "}",
        "truncatedAlerts": 0,
        "status": status,
        "receiver": RECEIVER,
        "groupLabels": group,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": external_url,
        "alerts": [alert],
    }


def timestamp(epoch_s: float) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fingerprint(labels: Mapping[str, str]) -> str:
    """16 hex digits that are the same wherever the labels are."""
    value = _FNV_OFFSET
    for name in sorted(labels):
        for part in (name, labels[name]):
            for byte in (*part.encode(), 0xFF):
                value = (value ^ byte) * _FNV_PRIME % 2**64
    return f"{value:016x}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
