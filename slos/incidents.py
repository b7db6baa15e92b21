"""One incident, one notification: from the alarms that are on to what a human is told.

Alarms are *about* something: an SLO, a router, the store. What is on about the same thing at the same time is one
incident, and the first alarm names it; more alarms that join are silent. There are three lanes, each with at most one
incident about a thing:

    page     alarms that wake somebody up. While it is open, tickets that come on about the same thing are muted, and
             stay so after its end for as long as their own short window still remembers it
    ticket   alarms that can wait
    once     what is told once and not repeated, such as a budget that is gone; muted while a page is open

An incident that goes on is told again every four hours. More than three about one thing in an hour flap: the last one
is then held open until one of them is an hour old, and says so. What a silence holds back is told when it still fires
at the silence's end; that something is over is always told to those who were told of it.

Times are seconds since the epoch, so that incidents survive a restart. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .alerts import Change
from .policy import Severity

REPEAT_S = 4 * 3600.0
FLAP_CYCLES = 3
FLAP_WITHIN_S = 3600.0
REMEMBER_PAGE_S = 7 * 86_400.0
MAX_INCIDENTS = 1000


class Family(StrEnum):
    """What kind of evidence an alarm stands on."""

    BREACH = "breach"
    BURN = "burn"
    NO_DATA = "no_data"
    BUDGET = "budget"
    SYSTEM = "system"


class Lane(StrEnum):
    """Which incidents exclude each other."""

    PAGE = "page"
    TICKET = "ticket"
    ONCE = "once"


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that is so now, and that somebody should know."""

    about: str
    family: Family
    severity: Severity
    labels: Mapping[str, str]
    """Its identity: the same as long as it is on, so no number is ever in one."""
    said: str
    """One sentence."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    once: bool = False
    """Not repeated while it goes on."""
    mute_s: float = 0.0
    """So long after a page about the same thing it may still be on for the same reason."""

    @property
    def lane(self) -> Lane:
        return Lane.ONCE if self.once else Lane(self.severity.value)

    @property
    def key(self) -> str:
        """The deduplication key: sha256 of what it is about, its revision, its labels and its family."""
        identity = [self.about, self.revision, sorted(self.labels.items()), self.family.value]
        return hashlib.sha256(json.dumps(identity, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Incident:
    """Alarms about one thing in one lane, from the first to the end of the last."""

    about: str
    lane: Lane
    family: Family
    key: str
    labels: Mapping[str, str]
    said: str
    annotations: Mapping[str, str]
    starts_s: float
    told_s: float | None = None
    """When somebody was last told; None: a silence holds it back."""
    silenced: bool = False
    flapping: bool = False
    """It would be over, and is held open because there were too many."""


@dataclass(frozen=True, slots=True)
class Told:
    """One thing to tell."""

    change: Change
    incident: Incident
    at_s: float


@dataclass(frozen=True, slots=True)
class Incidents:
    """All that is open, and what has to be remembered of what was."""

    open: tuple[Incident, ...] = ()
    paged: Mapping[str, float] = field(default_factory=dict)
    """When a page was last open, by what it was about."""
    muted: tuple[str, ...] = ()
    """Keys of alarms that are on and that a page holds back."""
    opened: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """When incidents began within the last hour, by what they were about and lane."""

    def after(
        self,
        alarms: Iterable[Alarm],
        now_s: float,
        silenced: Callable[[Mapping[str, str]], bool] = lambda _: False,
    ) -> tuple[Incidents, tuple[Told, ...]]:
        """After one more look at the alarms that are on. `silenced`: whether a silence covers these labels."""
        on: dict[tuple[str, Lane], list[Alarm]] = {}
        for alarm in alarms:
            on.setdefault((alarm.about, alarm.lane), []).append(alarm)
        opened = _recent(self.opened, now_s)
        before = {(one.about, one.lane): one for one in self.open}
        found: dict[tuple[str, Lane], Incident] = {}
        told: list[Told] = []
        muted: list[str] = []
        paged = {about: at_s for about, at_s in self.paged.items() if now_s - at_s < REMEMBER_PAGE_S}
        # Pages first, for they decide what is muted.
        for place in sorted(before.keys() | on.keys(), key=lambda at: (at[1] is not Lane.PAGE, at)):
            about, lane = place
            incident, present = before.get(place), on.get(place, [])
            if lane is not Lane.PAGE and incident is None and about in paged:
                quiet = [alarm for alarm in present if now_s - paged[about] <= alarm.mute_s]
                muted += [alarm.key for alarm in quiet]
                present = [alarm for alarm in present if alarm not in quiet]
            if incident is None:
                if not present or len(found) >= MAX_INCIDENTS:
                    continue
                incident = _begun(present[0], now_s)
                opened[_name(about, lane)] = (*opened.get(_name(about, lane), ()), now_s)
            elif present:
                first = next((alarm for alarm in present if alarm.key == incident.key), present[0])
                incident = replace(incident, said=first.said, annotations=first.annotations, flapping=False)
            elif len(opened.get(_name(about, lane), ())) > FLAP_CYCLES:
                incident = replace(incident, flapping=True)
            else:
                if incident.told_s is not None:
                    told.append(Told(Change.RESOLVED, incident, now_s))
                continue
            incident, change = _told(replace(incident, silenced=silenced(incident.labels)), now_s)
            found[place] = incident
            if lane is Lane.PAGE:
                paged[about] = now_s
            if change is not None:
                told.append(Told(change, incident, now_s))
        return Incidents(tuple(found.values()), paged, tuple(muted), opened), tuple(told)


def _begun(alarm: Alarm, now_s: float) -> Incident:
    return Incident(
        alarm.about, alarm.lane, alarm.family, alarm.key, alarm.labels, alarm.said, alarm.annotations, now_s
    )


def _told(incident: Incident, now_s: float) -> tuple[Incident, Change | None]:
    """Whether to tell of an incident that is open."""
    if incident.silenced:
        return incident, None
    if incident.told_s is None:
        return replace(incident, told_s=now_s), Change.FIRED
    if incident.lane is not Lane.ONCE and now_s - incident.told_s >= REPEAT_S:
        return replace(incident, told_s=now_s), Change.REPEATED
    return incident, None


def _recent(opened: Mapping[str, tuple[float, ...]], now_s: float) -> dict[str, tuple[float, ...]]:
    kept = {name: tuple(at_s for at_s in times if now_s - at_s < FLAP_WITHIN_S) for name, times in opened.items()}
    return {name: times for name, times in kept.items() if times}


def _name(about: str, lane: Lane) -> str:
    return f"{lane.value} {about}"
