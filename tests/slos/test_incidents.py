"""Who is told what, step by step."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slos.alerts import Change
from slos.incidents import FLAP_CYCLES, REPEAT_S, Alarm, Family, Incidents, Lane, Told
from slos.policy import Severity

PAGE, TICKET = Severity.PAGE, Severity.TICKET


def alarm(family: Family = Family.BREACH, severity: Severity = PAGE, about: str = "ttft", **more: object) -> Alarm:
    labels = {"alertname": family.value, "severity": severity.value, "slo": about}
    return Alarm(about, family, severity, labels, f"{about} {family.value}", revision="r1", **more)  # type: ignore[arg-type]


BREACH, BURN = alarm(), alarm(Family.BURN)
SLOW = alarm(Family.BURN, TICKET, mute_s=3600.0)
GONE = alarm(Family.BUDGET, TICKET, once=True)


class Desk:
    """Who is told, on a clock that a test turns."""

    def __init__(self) -> None:
        self.incidents, self.now_s = Incidents(), 1e9
        self.told: list[Told] = []
        self.silenced: Callable[[Mapping[str, str]], bool] = lambda _: False

    def look(self, *alarms: Alarm, seconds: float = 10.0) -> list[str]:
        self.now_s += seconds
        self.incidents, told = self.incidents.after(alarms, self.now_s, self.silenced)
        self.told += told
        return [f"{one.change.value} {one.incident.family.value} {one.incident.labels['severity']}" for one in told]


def test_a_breach_that_becomes_a_burn_is_one_notification_and_one_recovery():
    desk = Desk()
    assert desk.look(BREACH) == ["fired breach page"]
    assert desk.look(BREACH, BURN) == desk.look(BURN, SLOW) == []
    assert desk.look(SLOW) == ["resolved breach page"]
    assert desk.told[0].incident.starts_s == desk.told[-1].incident.starts_s
    assert desk.told[0].incident.key == desk.told[-1].incident.key


def test_tickets_of_an_incident_stay_silent_while_their_windows_remember_it():
    desk = Desk()
    desk.look(BREACH)
    desk.look(BREACH, SLOW)
    assert desk.incidents.muted == (SLOW.key,)
    desk.look(SLOW)
    assert [desk.look(SLOW, seconds=600.0) for _ in range(5)] == [[]] * 5
    assert desk.look(SLOW, seconds=700.0) == ["fired burn ticket"], "it goes on without the incident"


def test_a_ticket_that_comes_on_after_the_page_is_over_is_held_back_too():
    desk = Desk()
    desk.look(BREACH)
    assert desk.look() == ["resolved breach page"]
    assert desk.look(SLOW, seconds=3000.0) == []
    assert desk.look(SLOW, seconds=1000.0) == ["fired burn ticket"]


def test_a_ticket_that_was_told_before_the_page_ends_by_itself():
    desk = Desk()
    assert desk.look(SLOW) == ["fired burn ticket"]
    assert desk.look(SLOW, BREACH) == ["fired breach page"]
    assert desk.look(BREACH) == ["resolved burn ticket"]


def test_a_budget_that_is_gone_is_told_once_and_after_the_page():
    desk = Desk()
    desk.look(BREACH, GONE)
    assert desk.look(GONE) == ["resolved breach page", "fired budget ticket"]
    assert [desk.look(GONE, seconds=REPEAT_S) for _ in range(5)] == [[]] * 5
    assert desk.look() == ["resolved budget ticket"]


def test_other_things_are_other_incidents():
    desk = Desk()
    store = Alarm("store", Family.SYSTEM, TICKET, {"alertname": "Store", "severity": "ticket"}, "full")
    assert desk.look(BREACH, alarm(about="tpot"), store) == [
        "fired breach page",
        "fired breach page",
        "fired system ticket",
    ]
    assert len(desk.incidents.open) == 3


def test_what_goes_on_is_told_again_every_four_hours():
    desk = Desk()
    desk.look(BREACH)
    told = [desk.look(BREACH, seconds=600.0) for _ in range(50)]
    assert [at for at, texts in enumerate(told) if texts] == [23, 47] and told[23] == ["repeated breach page"]


def test_more_than_three_in_an_hour_are_held_open_and_say_so():
    desk = Desk()
    for at in range(40):
        desk.look(*([BREACH] if at % 2 == 0 else []), seconds=300.0)
    fired = [told.at_s for told in desk.told if told.change is Change.FIRED]
    for at_s in fired:
        assert sum(at_s <= other_s < at_s + 3600.0 for other_s in fired) <= FLAP_CYCLES + 1
    desk = Desk()
    for _ in range(FLAP_CYCLES + 1):
        desk.look(BREACH)
        desk.look()
    (held,) = desk.incidents.open
    assert held.flapping
    assert desk.look(seconds=3600.0) == ["resolved breach page"]


def test_a_silenced_incident_is_told_at_the_silences_end_and_its_end_only_to_those_who_know():
    desk = Desk()
    desk.silenced = lambda labels: labels["slo"] == "ttft"
    assert desk.look(BREACH) == desk.look(BREACH) == []
    assert desk.incidents.open[0].silenced
    desk.silenced = lambda _: False
    assert desk.look(BREACH) == ["fired breach page"]
    assert desk.told[0].incident.starts_s == desk.now_s - 20.0, "since when it is, not since when it is told"
    desk.silenced = lambda _: True
    assert desk.look() == ["resolved breach page"], "who was told it began is told it is over"
    assert desk.look(BREACH) == desk.look() == []


def test_a_restart_tells_nothing_twice():
    desk = Desk()
    desk.look(BREACH, SLOW)
    again = Desk()
    again.incidents, again.now_s = desk.incidents, desk.now_s
    assert again.look(BREACH) == []
    assert again.look() == ["resolved breach page"]


def test_the_key_is_of_what_it_is_about_its_revision_labels_and_family():
    keys = {
        alarm().key,
        alarm(about="tpot").key,
        alarm(Family.BURN).key,
        alarm(severity=TICKET).key,
        Alarm("ttft", Family.BREACH, PAGE, alarm().labels, "x", revision="r2").key,
    }
    assert len(keys) == 5 and all(len(key) == 64 for key in keys)
    assert Alarm("ttft", Family.BREACH, PAGE, alarm().labels, "other words", revision="r1").key == alarm().key


KINDS = (BREACH, BURN, SLOW, GONE, alarm(about="tpot"), alarm(Family.NO_DATA, TICKET))


@given(st.lists(st.tuples(st.sets(st.sampled_from(range(len(KINDS)))), st.floats(5.0, 2000.0)), max_size=60))
def test_whatever_happens_every_incident_begins_once_and_ends_once(steps: list[tuple[set[int], float]]):
    desk = Desk()
    for on, seconds in steps:
        desk.look(*(KINDS[at] for at in sorted(on)), seconds=seconds)
        places = [(one.about, one.lane) for one in desk.incidents.open]
        assert len(places) == len(set(places))
    for _ in range(3):
        desk.look(seconds=4000.0)
    assert desk.incidents.open == ()
    told: dict[tuple[str, Lane], list[Change]] = {}
    for one in desk.told:
        told.setdefault((one.incident.about, one.incident.lane), []).append(one.change)
    for changes in told.values():
        plain = [change for change in changes if change is not Change.REPEATED]
        assert plain == [Change.FIRED, Change.RESOLVED] * (len(plain) // 2)


@pytest.mark.parametrize("step_s", [10.0, 600.0])
def test_a_page_is_never_told_less_than_a_ticket_would_be(step_s: float):
    desk = Desk()
    assert desk.look(SLOW, BREACH, seconds=step_s) == ["fired breach page"]
