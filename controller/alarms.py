"""Alarms of the system itself: the store, a reload that failed, a loop that stands still, a price that fell back,
a table that drifted, routers that went silent.

A condition says what is wrong now, thing by thing; each thing has a machine that holds it for `for_s` before it is an
alarm and for `clear_s` before it is none. Pure: conditions are functions, time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from router.kv_guard import OVERRUN
from slos.alerts import Held
from slos.incidents import Alarm, Family
from slos.notice import valid
from slos.policy import Severity

from .intake import Intake

ROUTER_SILENT_S = 60.0
KV_OVERRUN_S = 30.0
MAX_THINGS = 200


@dataclass(frozen=True, slots=True)
class Wrong:
    """One thing that is wrong: a sentence, and what tells it from others of its kind."""

    said: str
    severity: Severity = Severity.TICKET
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """A kind of thing that can be wrong. `check` gives what is wrong now, by what it is about."""

    alertname: str
    check: Callable[[], Mapping[str, Wrong]]
    for_s: float = 0.0
    clear_s: float = 30.0
    once: bool = False


class SystemAlarms:
    """All conditions of one process; more may be added."""

    def __init__(self, service: str | None = None, page_url: str = "") -> None:
        self._service, self._page_url = service, page_url
        self._conditions: list[Condition] = []
        self._held: dict[tuple[str, str], Held] = {}
        self._last: dict[tuple[str, str], Wrong] = {}

    def add(self, condition: Condition) -> None:
        """From now on this is looked at too."""
        self._conditions.append(condition)

    def after(self, now_s: float) -> list[Alarm]:
        """The alarms that are on after one more look."""
        found: list[Alarm] = []
        for condition in self._conditions:
            wrong = dict(list(condition.check().items())[:MAX_THINGS])
            known = {about for name, about in self._held if name == condition.alertname}
            for about in sorted(known | wrong.keys()):
                place = (condition.alertname, about)
                held = self._held.get(place, Held()).after(about in wrong, now_s, condition.for_s, condition.clear_s)
                if about in wrong:
                    self._last[place] = wrong[about]
                if not held.firing and about not in wrong:
                    self._held.pop(place, None)
                    self._last.pop(place, None)
                    continue
                self._held[place] = held
                if held.firing:
                    found.append(self._alarm(condition, about, self._last[place]))
        return found

    def restore(self, firing: Mapping[str, str]) -> None:
        """Go on with things that were alarms in an earlier process: sentences by `names`."""
        for name, said in firing.items():
            alertname, _, about = name.partition(" ")
            self._held[alertname, about] = Held(True)
            self._last[alertname, about] = Wrong(said)

    def names(self) -> dict[str, str]:
        """What is an alarm now, for `restore`."""
        return {
            f"{name} {about}": self._last[name, about].said for (name, about), held in self._held.items() if held.firing
        }

    def _alarm(self, condition: Condition, about: str, wrong: Wrong) -> Alarm:
        own = {
            "alertname": condition.alertname,
            "family": Family.SYSTEM.value,
            "severity": wrong.severity.value,
            **(wrong.labels or {}),
            **({"service": self._service} if self._service else {}),
        }
        annotations = {"dashboard_url": self._page_url} if self._page_url else {}
        said = f"{wrong.said}; see {self._page_url}" if self._page_url else wrong.said
        return Alarm(about, Family.SYSTEM, wrong.severity, valid(own), said, annotations, once=condition.once)


def store_failed(problem: Callable[[], str]) -> Condition:
    """The store cannot be written: what is counted is in memory only."""

    def check() -> Mapping[str, Wrong]:
        text = problem()
        said = f"the ledger is not on disk and would be lost with the process, serving goes on: {text}"
        return {"store": Wrong(said)} if text else {}

    return Condition("TrimtabStoreFailed", check, for_s=30.0)


def store_damaged(damage: Callable[[], str]) -> Condition:
    """The store was damaged, and what could be read was saved."""
    return Condition("TrimtabStoreDamaged", lambda: {"damage": Wrong(damage())} if damage() else {}, once=True)


def reload_failed(problem: Callable[[], str]) -> Condition:
    """A declaration could not be taken; the old one is in force."""

    def check() -> Mapping[str, Wrong]:
        text = problem()
        return {"reload": Wrong(f"the SLOs were not reloaded and the old ones stay in force: {text}")} if text else {}

    return Condition("TrimtabReloadFailed", check)


def controller_stale(late: Callable[[], float | None]) -> Condition:
    """The loop does not tick; `late` gives for how many seconds."""

    def check() -> Mapping[str, Wrong]:
        for_s = late()
        if for_s is None:
            return {}
        said = "no tick and no SLO judged for three intervals; routers go on with the last publication"
        return {"controller": Wrong(said, Severity.PAGE)}

    return Condition("TrimtabControllerStale", check)


def fallen_back(models: Callable[[], Mapping[str, str]]) -> Condition:
    """Models whose price went back to its start; `models` gives why."""

    def check() -> Mapping[str, Wrong]:
        said = "the price does not follow the SLOs and goes to its start"
        return {
            f"price of {model}": Wrong(f"{model}: {why}; {said}", labels={"model": model})
            for model, why in models().items()
        }

    return Condition("TrimtabPriceFellBack", check)


def table_drifted(drifts: Callable[[], Iterable[tuple[str, str, str]]]) -> Condition:
    """Tables that no longer describe their fleet; `drifts` gives model, route and a sentence."""

    def check() -> Mapping[str, Wrong]:
        return {
            f"table of {model}, {route}": Wrong(f"{model}: {said}", labels={"model": model, "route": route})
            for model, route, said in drifts()
        }

    return Condition("TrimtabTableDrift", check)


def routers_silent(intake: Intake, now_s: Callable[[], float]) -> Condition:
    """Routers that reported and do not any more; a page if none does. No router at all is a young installation."""
    seen = False

    def check() -> Mapping[str, Wrong]:
        nonlocal seen
        at_s = now_s()
        views = intake.routers(at_s)
        seen = seen or bool(views)
        if seen and not intake.speaking(at_s):
            said = "no router reports: whether users are served is not known here, and no SLO is judged"
            return {"routers": Wrong(said, Severity.PAGE)}
        return {
            f"router {name}": Wrong(
                f"router {name} does not report: its turns are not judged, and it does not follow the price",
                labels={"router": name},
            )
            for name, view in views.items()
            if view.age_s(at_s) > ROUTER_SILENT_S
        }

    return Condition("TrimtabRouterSilent", check, for_s=ROUTER_SILENT_S / 2)


def kv_overrun(intake: Intake, now_s: Callable[[], float]) -> Condition:
    """Decode nodes for whose conversations most of the prefill work is done again, because KV memory ran out."""

    def check() -> Mapping[str, Wrong]:
        return {
            f"kv {node.id}": Wrong(
                f"KV memory is overrun: {node.recomputed:.0%} of the prompt tokens computed for turns on {node.id} had "
                f"been computed before, and {node.evicted:.0%} of their history was evicted there; "
                "lower the load or add decode nodes",
                labels={"node": node.id},
            )
            for node in intake.nodes(now_s())[1]
            if node.recomputed > OVERRUN
        }

    return Condition("TrimtabKvOverrun", check, for_s=KV_OVERRUN_S)
