"""One valid exposition of all processes, whatever routers send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from controller.exposition import render as encoded
from controller.loop import ControlLoop
from controller.metrics import SPECS, ControlCollector, Kind
from controller.scheduler import Job, Scheduler
from router.metrics import RouterMetrics, page
from slos.counts import Count
from slos.policy import Declaration
from tests.controller.records import record
from tests.controller_shell.reports import SLOS, drive, loop_in, report, turns

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def render(own: Iterable[Metric], routers: Mapping[str, str]) -> bytes:
    return encoded(own, routers)[0]


async def nothing() -> None:
    pass


def router_text() -> str:
    registry = CollectorRegistry()
    turns_ended = Counter("trimtab_turns", "Ended turns.", ["route", "process"], registry=registry)
    turns_ended.labels("append_local", 'a "name"\\ with\n all').inc(3)
    Histogram("trimtab_ttft_seconds", "TTFT.", registry=registry).observe(0.3)
    Gauge("trimtab_pinned", "Pinned.", registry=registry).set(1)
    return generate_latest(registry).decode()


def own(tmp_path: Path) -> CollectorRegistry:
    loop, clock = loop_in(tmp_path)
    drive(loop, clock, 2, lambda seq: report(seq, records=turns()))
    registry = CollectorRegistry()
    registry.register(ControlCollector(loop, Scheduler([Job("tick", 5.0, nothing)]), "1.2.3"))
    return registry


def families(text: bytes) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    declared = re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE)
    assert len(declared) == len(set(declared)), "a family is declared twice"
    seen = set()
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in seen, f"twice: {key}"
            seen.add(key)
        found[family.name] = [(s.name, dict(s.labels), s.value) for s in family.samples]
    return found


def test_all_processes_are_in_one_valid_exposition(tmp_path: Path) -> None:
    text = render(own(tmp_path).collect(), {"router-0": router_text(), "router-1": router_text()})
    found = families(text)
    assert [labels["process"] for _, labels, _ in found["trimtab_turns"]] == ["router-0", "router-1"]
    assert found["trimtab_turns"][0][1]["exported_process"] == 'a "name"\\ with\n all'
    assert ("trimtab_ttft_seconds_count", {"process": "router-1"}, 1.0) in found["trimtab_ttft_seconds"]
    assert found["trimtab_price"] == [("trimtab_price", {"model": "m"}, 0.4)]
    unreadable = found["trimtab_router_metrics_unreadable"]
    assert [(labels["router"], value) for _, labels, value in unreadable] == [("router-0", 0.0), ("router-1", 0.0)]
    assert not any(name.endswith("_created") for name in found)


def test_every_metric_of_the_table_is_exported_and_no_other(tmp_path: Path) -> None:
    found = families(render(own(tmp_path).collect(), {}))
    assert sorted(found) == sorted(spec.name for spec in SPECS)
    for spec in SPECS:
        assert spec.help.endswith(".") and spec.name.startswith("trimtab_")
        assert (spec.kind is Kind.COUNTER) or not spec.name.endswith("_total")
        for name, labels, _ in found[spec.name]:
            assert tuple(sorted(labels)) == tuple(sorted(spec.labels)), name


def test_counts_of_slos_start_at_zero_so_that_the_first_bad_turn_is_an_increase(tmp_path: Path) -> None:
    found = families(render(own(tmp_path).collect(), {}))
    assert {labels["slo"]: value for _, labels, value in found["trimtab_slo_bad_events"]} == {
        "later-ttft": 0.0,
        "tpot": 0.0,
    }


def test_what_does_not_fit_is_left_out_and_told(tmp_path: Path) -> None:
    clash = "# TYPE trimtab_price histogram\ntrimtab_price_count 5\n# TYPE fine gauge\nfine 1\n"
    twice = "# TYPE fine gauge\nfine 1\nfine 2\n"
    texts = {"a": clash, "b": twice, "c": "}{ no exposition", "d": "", "e": "# TYPE fine gauge\nfine 3\n"}
    found = families(render(own(tmp_path).collect(), texts))
    told = {labels["router"]: value for _, labels, value in found["trimtab_router_metrics_unreadable"]}
    assert told == {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": 0.0}
    assert [(labels["process"], value) for _, labels, value in found["fine"]] == [("a", 1.0), ("b", 1.0), ("e", 3.0)]
    assert len(found["trimtab_price"]) == 1


def test_counters_declared_without_their_suffix_do_not_make_a_family_twice(tmp_path: Path) -> None:
    loose = "# TYPE trimtab_turns counter\ntrimtab_turns_total 5\n"
    found = families(render(own(tmp_path).collect(), {"a": loose, "b": router_text()}))
    told = {labels["router"]: value for _, labels, value in found["trimtab_router_metrics_unreadable"]}
    assert told == {"a": 0.0, "b": 1.0} or told == {"a": 1.0, "b": 0.0}


def test_samples_under_a_name_of_another_family_do_not_break_the_text(tmp_path: Path) -> None:
    text = '# TYPE x histogram\nx_bucket{le="1"} 1\nx_bucket{le="+Inf"} 1\nx_count 1\nx_sum 1\nbare 4\n'
    found = families(render(own(tmp_path).collect(), {"a": text}))
    assert found["bare"] == [("bare", {"process": "a"}, 4.0)]
    assert len(found["x"]) == 4


def router_page(request_id: str = "req-1") -> str:
    registry = CollectorRegistry()
    RouterMetrics(registry, ()).ended(record(ttft_s=0.3), request_id)
    return page(registry)


def test_exemplars_of_routers_survive_where_openmetrics_is_asked_for(tmp_path: Path) -> None:
    text, content_type = encoded(
        own(tmp_path).collect(), {"r0": router_page(), "r1": router_page("req-2")}, OPENMETRICS
    )
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    ttft = next(family for family in read_openmetrics(text.decode()) if family.name == "trimtab_ttft_seconds")
    found = {
        (sample.labels["process"], sample.labels["le"]): sample.exemplar for sample in ttft.samples if sample.exemplar
    }
    assert {key: exemplar.labels for key, exemplar in found.items()} == {
        ("r0", "0.5"): {"request_id": "req-1"},
        ("r1", "0.5"): {"request_id": "req-2"},
    }
    assert {exemplar.value for exemplar in found.values()} == {0.3}


def test_others_get_the_text_format_which_has_no_exemplars(tmp_path: Path) -> None:
    text, content_type = encoded(own(tmp_path).collect(), {"r0": router_page()}, "*/*")
    assert content_type.startswith("text/plain")
    assert b"req-1" not in text and b"# EOF" not in text
    assert "trimtab_e2e_seconds" in families(text)


def test_a_router_cannot_count_a_turn_of_an_slo_a_second_time(tmp_path: Path) -> None:
    text = '# TYPE trimtab_slo_bad_events counter\ntrimtab_slo_bad_events_total{slo="tpot"} 7\n# EOF\n'
    found = families(render(own(tmp_path).collect(), {"r0": text}))
    assert all("process" not in labels for _, labels, _ in found["trimtab_slo_bad_events"])
    assert [value for _, _, value in found["trimtab_router_metrics_unreadable"]] == [1.0]


def counted(registry: CollectorRegistry, slo: str = "tpot") -> float | None:
    return registry.get_sample_value("trimtab_slo_valid_events_total", {"slo": slo})


def collector(loop: ControlLoop) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ControlCollector(loop, Scheduler([Job("tick", 5.0, nothing)]), "1.2.3"))
    return registry


def test_a_counter_never_falls_a_little_when_the_process_is_killed(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    before = collector(loop)
    loop.accept(report(1, counts={"tpot": Count(1_000_000, 5)}), clock())
    loop.save_counts()
    loop.store.flush(clock())
    loop.accept(report(2, counts={"tpot": Count(1_000_010, 5)}), clock())
    shown = counted(before)
    assert shown == 1_000_010
    again, clock = loop_in(tmp_path)  # what was not written is gone with the first
    after = collector(again)
    assert again.intake.counts()["tpot"].valid == 1_000_000
    assert counted(after) == 0, "it begins anew, which Prometheus understands"
    again.accept(report(3, counts={"tpot": Count(1_000_012, 5)}), clock())
    assert counted(after) == 12


def test_turns_are_taken_into_account_while_ticks_and_reports_come(tmp_path: Path) -> None:
    loop, clock = loop_in(tmp_path)
    registry = collector(loop)

    def evaluated() -> float | None:
        return registry.get_sample_value("trimtab_slo_last_evaluation_timestamp_seconds")

    began_s = clock()
    clock.advance(50)
    loop.tick(clock())
    assert evaluated() == began_s, "no router has reported yet"
    loop.accept(report(1), clock())
    assert evaluated() == clock()
    clock.advance(200)
    loop.accept(report(2), clock())
    assert evaluated() == clock() - 200, "no tick since"


def test_an_slo_that_a_reload_declares_is_exported_at_zero_at_once_and_one_that_is_gone_no_more(tmp_path: Path) -> None:
    loop, _ = loop_in(tmp_path)
    registry = collector(loop)
    loop.redeclare(Declaration((SLOS[0], replace(SLOS[1], name="new"))))
    assert counted(registry, "new") == 0.0 and counted(registry, "tpot") is None
