"""What we post to Alertmanager ourselves, in a real one: accepted, shown by amtool, resolved.

`ENCODE` turns a notice into the body of a post to /api/v2/alerts; it is what these tests are about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import sleep, time
from typing import Any

import pytest

from slos.alerts import Change
from slos.notice import Notice, labels
from slos.objective import Signal, Slo

from .programs import Alertmanager, Programs, alertmanager, until
from .receiver import Receiver

AHEAD_S = 240.0
"""Four times as long as it takes until an alert that fires is posted again."""


def by_the_book(notice: Notice, now_s: float) -> list[dict[str, Any]]:
    """As docs/how-to/prometheus.md describes it."""
    ends_s = now_s + AHEAD_S if notice.ends_s is None else notice.ends_s
    return [
        {
            "labels": dict(notice.labels),
            "annotations": dict(notice.annotations),
            "startsAt": _rfc3339(notice.starts_s),
            "endsAt": _rfc3339(ends_s),
            "generatorURL": notice.generator_url,
        }
    ]


ENCODE: Callable[[Notice, float], object] = by_the_book


def _rfc3339(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


@pytest.fixture
def manager(programs: Programs, tmp_path: Path, receiver: Receiver) -> Iterator[Alertmanager]:
    times = {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
    config = {
        "route": {"receiver": "hook", "group_by": ["slo"], **times},
        "receivers": [{"name": "hook", "webhook_configs": [{"url": receiver.url}]}],
    }
    with alertmanager(programs, tmp_path, config) as found:
        yield found


def notice(name: str = "chat-ttft") -> Notice:
    slo = Slo(name, Signal.TTFT, 0.99, 0.5)
    told = {"summary": f"{name}: users waited over 500 ms", "runbook_url": "https://runbooks.example/x"}
    return Notice(Change.FIRED, labels(slo, "chat"), told, time() - 30.0, None, "http://127.0.0.1:9400/")


def over(fired: Notice) -> Notice:
    return replace(fired, change=Change.RESOLVED, ends_s=time())


def test_an_alert_is_shown_while_it_fires_and_gone_when_it_is_over(manager: Alertmanager, receiver: Receiver):
    fired = notice()
    assert manager.post(ENCODE(fired, time()))[0] == 200
    shown = until(manager.alerts, 10.0, "amtool does not show it")
    assert [alert["labels"] for alert in shown] == [dict(fired.labels)]
    assert shown[0]["annotations"] == dict(fired.annotations)
    assert shown[0]["generatorURL"] == fired.generator_url
    assert len(manager.alerts("slo=chat-ttft", "severity=page")) == 1 and manager.alerts("slo=other") == []
    until(lambda: receiver.of("SLOBreach", "firing"), 10.0, "the receiver is not told")
    assert manager.post(ENCODE(over(fired), time()))[0] == 200
    until(lambda: not manager.alerts(), 10.0, "amtool still shows it")
    until(lambda: receiver.of("SLOBreach", "resolved"), 10.0, "the receiver is not told that it is over")


def test_an_alert_that_is_posted_again_and_again_is_one(manager: Alertmanager, receiver: Receiver):
    fired = notice()
    for _ in range(4):
        assert manager.post(ENCODE(fired, time()))[0] == 200
        sleep(0.7)
    assert len(manager.alerts()) == 1
    for _ in range(3):
        assert manager.post(ENCODE(over(fired), time()))[0] == 200
        sleep(0.7)
    until(lambda: receiver.of("SLOBreach", "resolved"), 10.0, "the receiver is not told that it is over")
    sleep(1.5)
    assert [post["status"] for post in receiver.posts] == ["firing", "resolved"]


def test_two_slos_are_two_alerts(manager: Alertmanager, receiver: Receiver):
    first, second = notice(), notice("chat-tpot")
    for fired in (first, second):
        assert manager.post(ENCODE(fired, time()))[0] == 200
    until(lambda: len(manager.alerts()) == 2, 10.0, "two alerts")
    assert manager.post(ENCODE(over(first), time()))[0] == 200
    until(lambda: [a["labels"]["slo"] for a in manager.alerts()] == ["chat-tpot"], 10.0, "only one is over")
