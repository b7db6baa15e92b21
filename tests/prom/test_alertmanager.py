"""What we tell Alertmanagers ourselves, in real ones: shown by amtool, kept alive, resolved, and every peer told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import time

import pytest

from slos.alertmanagers import Alertmanagers
from slos.deliver import Result
from slos.notice import labels
from slos.objective import Signal, Slo
from slos.sinks.alertmanager import Posted

from .programs import Alertmanager, Programs, alertmanager, until
from .receiver import Receiver


def routed_to(receiver: Receiver) -> dict[str, object]:
    times = {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
    return {
        "route": {"receiver": "hook", "group_by": ["slo"], **times},
        "receivers": [{"name": "hook", "webhook_configs": [{"url": receiver.url}]}],
    }


@pytest.fixture
def manager(programs: Programs, tmp_path: Path, receiver: Receiver) -> Iterator[Alertmanager]:
    with alertmanager(programs, tmp_path, routed_to(receiver)) as found:
        yield found


def firing(name: str = "chat-ttft") -> Posted:
    slo = Slo(name, Signal.TTFT, 0.99, 0.5)
    told = {"summary": f"{name}: users waited over 500 ms", "runbook_url": "https://runbooks.example/x"}
    return Posted(labels(slo, "chat"), told, time() - 30.0, None, "http://127.0.0.1:9400/")


def over(fired: Posted) -> Posted:
    return replace(fired, ends_s=time())


class Telling:
    """Our side, for as long as a test takes; posts what is so every half second, as it does every minute in earnest."""

    def __init__(self, *managers: Alertmanager) -> None:
        self.runner = asyncio.Runner()
        self.ours = Alertmanagers([manager.url for manager in managers], resend_s=0.5)

    def tell(self, *alerts: Posted, for_s: float = 0.0) -> None:
        self.ours.show(alerts)

        async def push() -> None:
            end_s = time() + for_s
            while True:
                await self.ours.push()
                if time() >= end_s:
                    return
                await asyncio.sleep(0.1)

        self.runner.run(push())

    def close(self) -> None:
        self.runner.run(self.ours.close())
        self.runner.close()


@pytest.fixture
def telling(manager: Alertmanager) -> Iterator[Telling]:
    found = Telling(manager)
    yield found
    found.close()


def test_an_alert_is_shown_while_it_fires_and_gone_when_it_is_over(
    manager: Alertmanager, receiver: Receiver, telling: Telling
):
    fired = firing()
    telling.tell(fired)
    assert telling.ours.results[Result.DELIVERED] == 1
    shown = until(manager.alerts, 10.0, "amtool does not show it")
    assert [alert["labels"] for alert in shown] == [dict(fired.labels)]
    assert shown[0]["annotations"] == dict(fired.annotations)
    assert shown[0]["generatorURL"] == fired.generator_url
    assert len(manager.alerts("slo=chat-ttft", "severity=page")) == 1 and manager.alerts("slo=other") == []
    until(lambda: receiver.of("SLOBreach", "firing"), 10.0, "the receiver is not told")
    telling.tell(over(fired))
    until(lambda: not manager.alerts(), 10.0, "amtool still shows it")
    until(lambda: receiver.of("SLOBreach", "resolved"), 10.0, "the receiver is not told that it is over")


def test_an_alert_that_is_posted_again_and_again_is_one(manager: Alertmanager, receiver: Receiver, telling: Telling):
    fired = firing()
    telling.tell(fired, for_s=2.5)
    assert telling.ours.results[Result.DELIVERED] >= 3 and len(manager.alerts()) == 1
    telling.tell(over(fired), for_s=2.5)
    until(lambda: receiver.of("SLOBreach", "resolved"), 10.0, "the receiver is not told that it is over")
    telling.tell(over(fired), for_s=1.5)
    assert [post["status"] for post in receiver.posts] == ["firing", "resolved"]


def test_two_slos_are_two_alerts(manager: Alertmanager, telling: Telling):
    first, second = firing(), firing("chat-tpot")
    telling.tell(first, second)
    until(lambda: len(manager.alerts()) == 2, 10.0, "two alerts")
    telling.tell(over(first), second)
    until(lambda: [a["labels"]["slo"] for a in manager.alerts()] == ["chat-tpot"], 10.0, "only one is over")


def test_every_peer_is_told(programs: Programs, tmp_path: Path, receiver: Receiver):
    with ExitStack() as stack:
        peers = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            peers.append(stack.enter_context(alertmanager(programs, tmp_path / name, routed_to(receiver))))
        ours = Telling(*peers)
        stack.callback(ours.close)
        ours.tell(firing())
        for peer in peers:
            until(peer.alerts, 10.0, "a peer does not show it")
