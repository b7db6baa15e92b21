"""A shell: after every tick the counts go to each SLO's alert, and what changed goes to a webhook.

    alerting = Alerting(slos, webhook_url=..., secret=...)
    alerting(now_s, outputs, counts)      # the observer of every tick: judges every 30 s, never waits
    alerting.jobs()                       # the post of what is due, every second

Right after the start the counts are only watched: routers that lived through a restart of this process report
then what they counted in hours, and it must not look like five minutes. `keep` gets a text whenever something
was told; given back as `kept` at the next start, it lets an alert that was told be resolved.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from slos.alerts import Alert, Change, Gate, State
from slos.counts import Count
from slos.deliver import Delivery
from slos.ledger import SPAN_S, CountWindow
from slos.notice import Notice, labels
from slos.objective import Slo
from slos.revisions import revision
from slos.sinks import DEFAULT_SINK, SINKS
from slos.wording import breach, recovery

from .doing import doing
from .scheduler import Job
from .tick import Outputs

log = logging.getLogger("trimtab.alerting")

EVALUATE_S = 30.0
SETTLE_S = 15.0
DELIVER_S = 1.0
DELIVER_TIMEOUT_S = 30.0
"""For all posts of one run; one post alone is given up after 5 s."""


class Alerting:
    """The alerts of all SLOs. Without a `webhook_url` they are only logged and shown."""

    def __init__(
        self,
        slos: Iterable[Slo],
        *,
        webhook_url: str | None = None,
        secret: str | None = None,
        service: str | None = None,
        more_labels: Mapping[str, str] | None = None,
        external_url: str = "",
        gate: Gate | None = None,
        span_s: float = SPAN_S,
        evaluate_s: float = EVALUATE_S,
        settle_s: float = SETTLE_S,
        kept: str | None = None,
        keep: Callable[[str], None] | None = None,
        wall: Callable[[], float] = time.time,
        delivery: Delivery | None = None,
    ) -> None:
        """Raises ValueError for a `webhook_url` that is none."""
        self.slos = {slo.name: slo for slo in slos}
        self.delivery = Delivery(webhook_url, secret=secret) if delivery is None and webhook_url else delivery
        self._gate = gate or Gate()
        self._external_url = external_url
        self._evaluate_s, self._settle_s = evaluate_s, settle_s
        self._wall = wall
        self._service, self._more_labels, self._span_s = service, more_labels, span_s
        self._labels = {name: labels(slo, service, more_labels) for name, slo in self.slos.items()}
        self._windows = {name: CountWindow(span_s) for name in self.slos}
        self._keep = keep
        self._started_s = {name: at_s for name, at_s in _read(kept).items() if name in self.slos}
        self._alerts = {name: Alert(State.FIRING if name in self._started_s else State.UNKNOWN) for name in self.slos}
        self._first_s: float | None = None
        self._evaluated_s: float | None = None

    def __call__(self, now_s: float, outputs: Outputs, counts: Mapping[str, Count]) -> None:
        """Takes one tick. Names that were not declared are ignored."""
        if self._first_s is None:
            self._first_s = now_s
        settled = now_s - self._first_s >= self._settle_s
        for name, window in self._windows.items():
            if name in counts:
                if not settled:
                    window.restart()
                window.add(counts[name], now_s)
        # A tick that comes a little early must not shift its evaluation to the next tick.
        if self._evaluated_s is not None and now_s - self._evaluated_s < self._evaluate_s * 0.95:
            return
        self._evaluated_s = now_s
        for name, slo in self.slos.items():
            evidence = self._gate.judge(self._windows[name].total(), slo.epsilon)
            self._alerts[name], change = self._alerts[name].after(evidence, now_s, self._gate)
            if change is not None:
                self._tell(slo, change, outputs)

    def redeclare(self, slos: Iterable[Slo]) -> None:
        """Judge these from now on. An SLO that still means the same goes on; one that changed or is gone is forgotten,
        and a receiver that was told of it hears no more."""
        before = {name: revision(slo) for name, slo in self.slos.items()}
        self.slos = {slo.name: slo for slo in slos}
        kept = {name for name, slo in self.slos.items() if before.get(name) == revision(slo)}
        self._labels = {name: labels(slo, self._service, self._more_labels) for name, slo in self.slos.items()}
        self._windows = {n: self._windows[n] if n in kept else CountWindow(self._span_s) for n in self.slos}
        self._alerts = {n: self._alerts[n] if n in kept else Alert(State.UNKNOWN) for n in self.slos}
        self._started_s = {n: at_s for n, at_s in self._started_s.items() if n in kept}

    def jobs(self) -> list[Job]:
        """What the scheduler is to run."""
        return [] if self.delivery is None else [Job("deliver", DELIVER_S, self.delivery.flush, DELIVER_TIMEOUT_S)]

    def firing(self) -> dict[str, float]:
        """SLOs that a receiver believes to be firing, with the epoch second since when."""
        return dict(self._started_s)

    def alerts(self) -> Mapping[str, Alert]:
        """By SLO, in the order of declaration."""
        return self._alerts

    def window(self, name: str) -> Count:
        """What was counted of an SLO within the window. Raises KeyError."""
        return self._windows[name].total()

    async def close(self) -> None:
        """Posts what is due once more, and ends."""
        if self.delivery is not None:
            await self.delivery.flush()
            await self.delivery.close()

    def _tell(self, slo: Slo, change: Change, outputs: Outputs) -> None:
        window, now_s = self._windows[slo.name], self._wall()
        said = doing(slo, outputs)
        if change is Change.FIRED:
            starts_s, ends_s = now_s, None
            self._started_s[slo.name] = now_s
            summary = breach(slo, window.total(), window.span_s, said)
        else:
            starts_s, ends_s = self._started_s.pop(slo.name, now_s), now_s
            summary = recovery(slo, window.total(), window.span_s, ends_s - starts_s, said)
        log.warning("%s: %s", change.value, summary)
        if self._keep is not None:
            self._keep(json.dumps(self._started_s))
        if self.delivery is not None:
            url = f"{self._external_url}#slo-{slo.name}"
            notice = Notice(change, self._labels[slo.name], {"summary": summary}, starts_s, ends_s, url)
            self.delivery.offer(SINKS[DEFAULT_SINK](notice, self._external_url))


def _read(kept: str | None) -> dict[str, float]:
    """SLOs that an earlier process told of, and when (epoch seconds)."""
    try:
        told = json.loads(kept) if kept else {}
        return {str(name): float(at_s) for name, at_s in told.items()}
    except (ValueError, TypeError, AttributeError):
        log.warning("what was kept of alerts cannot be read; those that were told will not be resolved")
        return {}
