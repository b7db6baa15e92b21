"""Alarms of the system itself."""

from collections.abc import Mapping
from dataclasses import replace

from controller.alarms import (
    Condition,
    SystemAlarms,
    Wrong,
    controller_stale,
    fallen_back,
    kv_overrun,
    reload_failed,
    routers_silent,
    store_damaged,
    store_failed,
    table_drifted,
)
from controller.intake import FORGET_S, Intake
from slos.policy import Severity
from tests.controller_shell.reports import report


def on(system: SystemAlarms, now_s: float) -> list[str]:
    return [f"{alarm.labels['alertname']} {alarm.about} {alarm.severity.value}" for alarm in system.after(now_s)]


def test_a_store_that_fails_for_half_a_minute_is_a_ticket_and_over_half_a_minute_after():
    problem, system = [""], SystemAlarms("chat", "http://admin:9400/")
    system.add(store_failed(lambda: problem[0]))
    assert on(system, 0.0) == []
    problem[0] = "disk is full"
    assert on(system, 10.0) == on(system, 30.0) == []
    (alarm,) = system.after(40.0)
    assert alarm.said.endswith("disk is full; see http://admin:9400/") and alarm.labels["service"] == "chat"
    problem[0] = ""
    assert on(system, 50.0) == on(system, 70.0) == ["TrimtabStoreFailed store ticket"]
    assert on(system, 90.0) == []


def test_damage_is_told_once_and_a_failed_reload_at_once():
    system = SystemAlarms()
    system.add(store_damaged(lambda: "it was damaged"))
    system.add(reload_failed(lambda: "slo.yaml:3:5 E203 no unit"))
    damage, reload = system.after(0.0)
    assert damage.once and not reload.once and "slo.yaml:3:5" in reload.said


def test_a_loop_that_stands_still_is_a_page():
    late: list[float | None] = [None]
    system = SystemAlarms()
    system.add(controller_stale(lambda: late[0]))
    assert on(system, 0.0) == []
    late[0] = 20.0
    assert on(system, 5.0) == ["TrimtabControllerStale controller page"]


def test_a_price_that_fell_back_is_a_ticket_with_its_reason_until_half_a_minute_after():
    fallen: dict[str, str] = {}
    system = SystemAlarms()
    system.add(fallen_back(lambda: fallen))
    assert on(system, 0.0) == []
    fallen["m"] = "the fleet answers to the price with the wrong sign"
    (alarm,) = system.after(5.0)
    assert alarm.labels["alertname"] == "TrimtabPriceFellBack" and alarm.labels["model"] == "m"
    assert alarm.severity is Severity.TICKET and "m: the fleet answers" in alarm.said
    fallen.clear()
    assert on(system, 10.0) == ["TrimtabPriceFellBack price of m ticket"] and on(system, 40.0) == []


def test_a_table_that_drifted_is_a_ticket_per_route_until_the_latencies_are_back():
    drifts: list[tuple[str, str, str]] = []
    system = SystemAlarms()
    system.add(table_drifted(lambda: drifts))
    assert on(system, 0.0) == []
    drifts += [("m", "append_local", "slow"), ("m", "prefill_transfer", "slow too")]
    found = system.after(5.0)
    assert [alarm.labels["route"] for alarm in found] == ["append_local", "prefill_transfer"]
    assert all(alarm.labels["alertname"] == "TrimtabTableDrift" for alarm in found)
    assert found[0].severity is Severity.TICKET and found[0].said == "m: slow"
    drifts.clear()
    assert len(on(system, 10.0)) == 2 and on(system, 40.0) == []


def test_a_router_that_stops_reporting_is_a_ticket_and_all_of_them_are_a_page():
    intake, now, system = Intake(()), [0.0], SystemAlarms()
    system.add(routers_silent(intake, lambda: now[0]))
    assert on(system, 0.0) == [], "a young installation has no router yet"
    found: dict[float, list[str]] = {}
    for at in range(0, 1000, 5):
        now[0] = float(at)
        if at < 300:
            intake.accept(report(at, router="a"), now[0])
        if at < 100:
            intake.accept(report(at, router="b"), now[0])
        found[now[0]] = on(system, now[0])
    assert found[150.0] == [] and found[200.0] == ["TrimtabRouterSilent router b ticket"]
    assert found[345.0] == ["TrimtabRouterSilent routers page"]
    assert found[300.0 + FORGET_S + 60.0] == ["TrimtabRouterSilent routers page"], "forgotten routers are still missing"


def test_what_was_on_before_a_restart_is_on_until_it_is_seen_to_be_over():
    wrong: dict[str, Wrong] = {}

    def check() -> Mapping[str, Wrong]:
        return wrong

    system = SystemAlarms()
    system.add(Condition("X", check, 0.0, 30.0))
    system.restore({"X thing one": "it was so"})
    (alarm,) = system.after(0.0)
    assert (alarm.about, alarm.said, alarm.severity) == ("thing one", "it was so", Severity.TICKET)
    assert system.names() == {"X thing one": "it was so"}
    system.after(20.0)
    assert system.after(40.0) == [] and system.names() == {}


def test_a_node_whose_memory_is_overrun_for_half_a_minute_is_a_ticket_that_says_how_much():
    intake, now, system = Intake(()), [0.0], SystemAlarms()
    system.add(kv_overrun(intake, lambda: now[0]))
    found: dict[float, list[str]] = {}
    for at in range(0, 200, 5):
        now[0] = float(at)
        told = report(at)
        recomputed = 0.8 if 20 <= at < 100 else 0.3
        nodes = tuple(replace(n, evicted=0.5, recomputed=recomputed) if n.id == "D0" else n for n in told.nodes)
        intake.accept(replace(told, nodes=nodes), now[0])
        if at == 60:
            (alarm,) = system.after(60.0)
            assert "80% of the prompt tokens" in alarm.said and alarm.labels["node"] == "D0"
        found[at] = on(system, now[0])
    assert not found[45] and not found[150]
    assert found[50] == found[95] == ["TrimtabKvOverrun kv D0 ticket"]
