"""An app with alerting behind it, on a clock that a test turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from controller.alerting import Alerting, conditions
from controller.alerts_api import mount_alerts
from controller.app import create_app
from controller.metrics import ControlCollector
from controller.scheduler import Scheduler
from slos.counts import Count
from slos.policy import AlertPolicy, Declaration
from tests.controller_shell.reports import SLOS, loop_in, report, turns

URL = "http://127.0.0.1:9400"


class AlertingSite:
    """Reports in, ticks, and the HTTP face."""

    def __init__(self, folder: Path, **options: Any) -> None:
        changes = {name: options.pop(name) for name in ("token", "host") if name in options}
        self.loop, self.clock = loop_in(folder, **changes)
        store = self.loop.store
        declared = Declaration(SLOS, alerts=AlertPolicy(runbook="https://runbooks.example/{slo}"))
        self.alerting = Alerting(
            declared,
            self.loop.ledgers,
            page_url=f"{URL}/",
            turns=lambda: {model: tally.turns for model, tally in self.loop.intake.tallies.items()},
            stored=store.document("alerts"),
            outbox=store.outbox(),
            keep=lambda text, outbox: store.put_alerts(text, outbox, self.clock()),
            wall=self.clock,
            clock=self.clock,
            **options,
        )
        for condition in conditions(self.loop):
            self.alerting.system.add(condition)
        self.loop.observers.append(self.alerting)
        registry = CollectorRegistry()
        collector = ControlCollector(self.loop, Scheduler(), "1.2.3")
        self.app = create_app(self.loop, collector, registry, version="1.2.3")
        mount_alerts(self.app, self.loop, self.alerting)
        self.client = TestClient(self.app, base_url=URL)
        self._seq, self._counts = 0, {slo.name: Count() for slo in SLOS}

    def run(self, minutes: float, bad: int = 0) -> None:
        """Ticks with twenty later turns each, of which so many broke the TTFT's promise."""
        for _ in range(round(minutes * 12)):
            self._seq += 1
            self._counts["later-ttft"] += Count(20, bad)
            self._counts["tpot"] += Count(20, 0)
            self.loop.accept(report(self._seq, records=turns(20), counts=dict(self._counts)), self.clock())
            self.loop.tick(self.clock.advance(5.0))

    def get(self, path: str) -> Any:
        response = self.client.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, body: object, status: int = 200) -> Any:
        response = self.client.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()


@contextmanager
def served(site: AlertingSite) -> Iterator[str]:
    """The site on a free port of this host."""
    server = uvicorn.Server(uvicorn.Config(site.app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
