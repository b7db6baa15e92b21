"""A shell: after every tick the counts are judged, what is on becomes incidents, and what changed goes to receivers.

    alerting = Alerting(declaration, ledgers, webhook_url=..., alertmanagers=[...], keep=...)
    alerting(now_s, outputs, counts)      # the observer of every tick: never waits
    alerting.jobs()                       # posts what is due every second; looks after the loop itself every five

What is told goes to the log always, to a webhook through an outbox, and to Alertmanagers as what is so now. With
`keep`, incidents, silences and outbox are stored before anything is posted: a process that is killed and comes back
tells nobody twice that the same incident began, and tells everybody that it is over. A post may come twice, under the
same id.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from slos.alertmanagers import Alertmanagers
from slos.alerts import Alert, Change
from slos.counts import Count
from slos.deliver import Delivery, Result, Waiting
from slos.incidents import Alarm, Incident, Incidents, Lane, Told
from slos.notice import Notice
from slos.objective import Slo
from slos.policy import Declaration, Severity
from slos.silences import Silence, kept, silence
from slos.sinks import DEFAULT_SINK, SINKS
from slos.sinks.alertmanager import RESOLVED_FOR_S, Posted
from slos.wording import duration

from .alarms import (
    Condition,
    SystemAlarms,
    controller_stale,
    fallen_back,
    kv_overrun,
    reload_failed,
    routers_silent,
    store_damaged,
    store_failed,
    table_drifted,
)
from .doing import doing
from .judging import Judging, Standing
from .ledgers import Ledgers
from .loop import ControlLoop
from .safety import State as SafetyState
from .scheduler import Job
from .status import WHY
from .stored import OutboxRow
from .table_words import drift_words
from .tick import Outputs

log = logging.getLogger("trimtab.alerting")

DELIVER_S = 1.0
DELIVER_TIMEOUT_S = 30.0
"""For all posts of one run; one post alone is given up after 5 s."""
WATCH_S = 5.0
FORGET_RESOLVED_S = 3600.0
"""So long a peer that is away is still told that something is over; by then its alert has ended by itself."""
TEST_ENDS_IN_S = 60.0
WEBHOOK = "webhook"

Keep = Callable[[str, Sequence[OutboxRow]], None]
"""Takes incidents as JSON and the notices that wait, to be stored as one."""
Flush = Callable[[], Awaitable[object]]
"""Writes to disk what `keep` took."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What outlives the process."""

    version: int = 1
    judging: dict[str, object] = field(default_factory=dict)
    system: dict[str, str] = field(default_factory=dict)
    incidents: Incidents = field(default_factory=Incidents)
    resolved: tuple[Posted, ...] = ()
    silences: tuple[Silence, ...] = ()


class Alerting:
    """The incidents of one control process. Without receivers they are logged and shown."""

    def __init__(
        self,
        declaration: Declaration,
        ledgers: Ledgers,
        *,
        webhook_url: str | None = None,
        secret: str | None = None,
        alertmanagers: Iterable[str] = (),
        service: str | None = None,
        page_url: str = "",
        turns: Callable[[], Mapping[str, int]] = dict,
        judging: Judging | None = None,
        stored: str | None = None,
        outbox: Iterable[OutboxRow] = (),
        keep: Keep | None = None,
        flush: Flush | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        delivery: Delivery | None = None,
    ) -> None:
        """`turns` gives ended turns by model; `stored` and `outbox` are what an earlier process kept. Raises ValueError
        for a URL that is none."""
        found = _read(stored)
        self.ledgers = ledgers
        self.judging = judging or Judging(declaration, ledgers, service=service, page_url=page_url, kept=found.judging)
        self.system = SystemAlarms(service, page_url)
        self.system.restore(found.system)
        self.silences = found.silences
        self.notices = 0
        """Told so far, by whatever receiver."""
        if delivery is None and webhook_url:
            waiting = _waiting(outbox, clock(), wall())
            delivery = Delivery(webhook_url, secret=secret, clock=clock, waiting=waiting)
        self.delivery = delivery
        peers = tuple(alertmanagers)
        self.alertmanagers = Alertmanagers(peers, clock=clock, wall=wall) if peers else None
        self._page_url = page_url
        self._turns = turns
        self._incidents = found.incidents
        self._resolved = found.resolved
        self._keep, self._flush = keep, flush
        self._wall, self._clock = wall, clock
        self._alarms = [_alarm(one) for one in found.incidents.open if "slo" in one.labels]
        """Of SLOs, as they were last judged; until that is done, as an earlier process left them."""
        self._outputs = Outputs(None, {})
        self._stored: tuple[object, ...] | None = None
        self._unwritten = False
        self._looked_s = float("-inf")
        self._show()

    # -- every tick ----------------------------------------------------------------------------------------------------

    def __call__(self, now_s: float, outputs: Outputs, counts: Mapping[str, Count]) -> None:
        """Takes one tick. Names that were not declared are ignored."""
        self._outputs = outputs
        self.judging.take(now_s, counts, self._turns())
        if self.judging.due(now_s):
            self._alarms = self.judging.evaluate(now_s, self._doing)
            self.look(now_s)

    def look(self, now_s: float) -> None:
        """Tell what changed, of SLOs as they were last judged and of the system as it is."""
        self._looked_s = now_s
        at_s = self.ledgers.now_s or self._wall()
        alarms = [*self._alarms, *self.system.after(now_s)]
        before = self._incidents.open
        self._incidents, told = self._incidents.after(alarms, at_s, lambda labels: self._is_silenced(labels, at_s))
        said = {(one.incident.about, one.incident.lane): self._tell(one) for one in told}
        still = {(one.about, one.lane) for one in self._incidents.open}
        for gone in before:
            if (gone.about, gone.lane) not in still:
                annotations = said.get((gone.about, gone.lane), gone.annotations)
                url = annotations.get("dashboard_url", self._page_url)
                self._resolved = (*self._resolved, Posted(gone.labels, annotations, gone.starts_s, at_s, url))
        self._resolved = tuple(
            alert
            for alert in self._resolved
            if alert.ends_s is not None
            and (at_s - alert.ends_s < RESOLVED_FOR_S or not self._known(alert, at_s - alert.ends_s))
        )
        self._show()
        self._put()

    def redeclare(self, declaration: Declaration) -> None:
        """Judge by another declaration; the ledgers have to know it already."""
        self.judging.redeclare(declaration)
        names = {slo.name for slo in declaration.slos}
        self._alarms = [alarm for alarm in self._alarms if alarm.about in names]

    def jobs(self) -> list[Job]:
        """What the scheduler is to run."""
        return [Job("deliver", DELIVER_S, self.deliver, DELIVER_TIMEOUT_S), Job("watch", WATCH_S, self.watch)]

    async def deliver(self) -> None:
        """Store what is new, then post what is due."""
        if self._unwritten and self._flush is not None:
            self._unwritten = False
            await self._flush()
        if self.delivery is not None:
            await self.delivery.flush()
        if self.alertmanagers is not None:
            await self.alertmanagers.push()
        self._put()

    async def watch(self) -> None:
        """Look after the system although the loop may stand still."""
        now_s = self._clock()
        if now_s - self._looked_s >= WATCH_S:
            self.ledgers.now_s = self.ledgers.epoch.at(now_s, self._wall())
            self.look(now_s)

    async def close(self) -> None:
        """Posts what is due once more, and ends."""
        await self.deliver()
        if self.delivery is not None:
            await self.delivery.close()
        if self.alertmanagers is not None:
            await self.alertmanagers.close()
        self._put()

    # -- what an operator asks and does --------------------------------------------------------------------------------

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Those that are open."""
        return self._incidents.open

    @property
    def muted(self) -> Sequence[str]:
        """Keys of alarms that a page holds back."""
        return self._incidents.muted

    @property
    def alarms(self) -> Sequence[Alarm]:
        """Alarms of SLOs that are on, told or not."""
        return self._alarms

    def alerts(self) -> Mapping[str, Alert]:
        """The breach machine of every SLO, in the order of declaration."""
        return {slo.name: self.judging.alert(slo.name) for slo in self.judging.declaration.slos}

    def standing(self, name: str) -> Standing | None:
        """What was last found of an SLO."""
        return self.judging.standing(name)

    def receivers(self) -> list[str]:
        """Who is told, without what may be secret."""
        found = ["log"]
        if self.delivery is not None:
            found.append(f"{WEBHOOK} {self.delivery.shown}")
        if self.alertmanagers is not None:
            found += [f"alertmanager {shown}" for shown in self.alertmanagers.shown]
        return found

    def silence(self, matchers: Iterable[str], length_s: float, author: str, comment: str) -> Silence:
        """From now on nobody is told of what matches. Raises ValueError with what to write."""
        made = silence(uuid.uuid4().hex[:12], matchers, self._wall(), length_s, author, comment)
        self.silences = kept((*self.silences, made), self._wall())
        self._put()
        return made

    def unsilence(self, id: str) -> Silence | None:
        """End a silence now; None where there is none of that id that is active."""
        now_s = self._wall()
        for one in self.silences:
            if one.id == id and one.active(now_s):
                ended = replace(one, ends_s=now_s)
                self.silences = tuple(ended if other is one else other for other in self.silences)
                self._put()
                return ended
        return None

    async def test(self, by: str) -> dict[str, str]:
        """Tell every receiver of an alert that is none; by receiver what came of it."""
        now_s = self._wall()
        labels = {"alertname": "TrimtabTest", "severity": "ticket", "family": "system"}
        annotations = {"summary": f"a test by {by}: alerts of this installation arrive here; nothing is wrong"}
        notice = Notice(Change.FIRED, labels, annotations, now_s, None, self._page_url)
        log.warning("test: %s", annotations["summary"])
        found = {"log": Result.DELIVERED.value}
        if self.delivery is not None:
            body = SINKS[DEFAULT_SINK](notice, self._page_url)
            found[f"{WEBHOOK} {self.delivery.shown}"] = await self.delivery.once(body)
        if self.alertmanagers is not None:
            posted = Posted(labels, annotations, now_s, None, self._page_url)
            results = await self.alertmanagers.once(posted)
            found |= {f"alertmanager {shown}": result for shown, result in results.items()}
        return found

    # -- inside --------------------------------------------------------------------------------------------------------

    def _doing(self, slo: Slo) -> str:
        return doing(slo, self._outputs)

    def _is_silenced(self, labels: Mapping[str, str], now_s: float) -> bool:
        return any(one.silences(labels, now_s) for one in self.silences)

    def _tell(self, told: Told) -> dict[str, str]:
        """Log and queue one thing to tell; its annotations."""
        incident = told.incident
        self.notices += 1
        if told.change is Change.RESOLVED:
            said, ends_s = self._over(told), told.at_s
        else:
            said, ends_s = incident.said, None
        annotations = {**incident.annotations, **({"flapping": "true"} if incident.flapping else {}), "summary": said}
        log.warning("%s: %s", told.change.value, said)
        url = annotations.get("dashboard_url", self._page_url)
        if self.delivery is not None:
            notice = Notice(told.change, incident.labels, annotations, incident.starts_s, ends_s, url)
            self.delivery.offer(SINKS[DEFAULT_SINK](notice, self._page_url))
        return annotations

    def _over(self, told: Told) -> str:
        incident = told.incident
        lasted_s = max(0.0, told.at_s - incident.starts_s)
        if "slo" in incident.labels:
            return self.judging.recovered(incident.about, lasted_s, self._doing)
        return f"over after {duration(lasted_s)}: {incident.said}"

    def _show(self) -> None:
        if self.alertmanagers is None:
            return
        firing = [
            Posted(
                one.labels,
                {**one.annotations, **({"flapping": "true"} if one.flapping else {}), "summary": one.said},
                one.starts_s,
                None,
                one.annotations.get("dashboard_url", self._page_url),
            )
            for one in self._incidents.open
        ]
        again = {alert.fingerprint for alert in firing}
        self._resolved = tuple(alert for alert in self._resolved if alert.fingerprint not in again)
        self.alertmanagers.show([*firing, *self._resolved])

    def _known(self, alert: Posted, since_s: float) -> bool:
        return self.alertmanagers is None or since_s >= FORGET_RESOLVED_S or self.alertmanagers.knows(alert)

    def _put(self) -> None:
        """Hand what has changed to the store."""
        if self._keep is None:
            return
        changes = 0 if self.delivery is None else self.delivery.changes
        told = tuple((one.key, one.starts_s, one.told_s, one.flapping) for one in self._incidents.open)
        resolved = tuple((alert.fingerprint, alert.ends_s) for alert in self._resolved)
        judging, system = self.judging.export(), self.system.names()
        now = (changes, told, resolved, self.silences, judging, tuple(system), self._incidents.paged.keys())
        if now == self._stored:
            return
        self._stored, self._unwritten = now, True
        document = _Kept(1, judging, system, self._incidents, self._resolved, self.silences)
        self._keep(msgspec.json.encode(document).decode(), self._outbox())

    def _outbox(self) -> list[OutboxRow]:
        if self.delivery is None:
            return []
        now_s, clock_s = self._wall(), self._clock()
        return [
            OutboxRow(one.id, WEBHOOK, now_s - (clock_s - one.offered_s), one.body.decode())
            for one in self.delivery.outbox
        ]


def _alarm(incident: Incident) -> Alarm:
    severity = Severity.PAGE if incident.lane is Lane.PAGE else Severity.TICKET
    once = incident.lane is Lane.ONCE
    return Alarm(
        incident.about, incident.family, severity, incident.labels, incident.said, incident.annotations, once=once
    )


def _waiting(outbox: Iterable[OutboxRow], clock_s: float, wall_s: float) -> list[Waiting]:
    return [
        Waiting(row.id, row.body.encode(), clock_s - max(0.0, wall_s - row.queued_s))
        for row in outbox
        if row.sink == WEBHOOK
    ]


def _read(stored: str | None) -> _Kept:
    """What an earlier process kept."""
    if not stored:
        return _Kept()
    try:
        return msgspec.json.decode(stored, type=_Kept)
    except (msgspec.DecodeError, ValueError):
        log.warning("what was kept of alerts cannot be read; those that were told will not be resolved")
        return _Kept()


def conditions(loop: ControlLoop) -> list[Condition]:
    """What can be wrong with a control process."""

    def late() -> float | None:
        now_s = loop.monotonic()
        return now_s - loop.ticked_s if loop.late(now_s) else None

    def fallbacks() -> dict[str, str]:
        found = {model: loop.guard(model).safety for model in loop.intake.tallies}
        return {model: WHY[each.reason] for model, each in found.items() if each.state is SafetyState.FALLBACK_HOME}

    def drifts() -> list[tuple[str, str, str]]:
        fits = [fit for fit in loop.table_drift.fits() if fit.drifted is not None]
        return [(fit.model, fit.route.value, drift_words(fit)) for fit in fits]

    return [
        store_failed(lambda: loop.store.problem),
        store_damaged(lambda: loop.store.damage),
        reload_failed(lambda: loop.reload_failed),
        controller_stale(late),
        fallen_back(fallbacks),
        table_drifted(drifts),
        routers_silent(loop.intake, loop.monotonic),
        kv_overrun(loop.intake, loop.monotonic),
    ]
