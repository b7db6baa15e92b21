"""Pages: real ones of vLLM 0.32, those of older releases, and nonsense."""

import os
import random
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page

from controller.engine_page import MAX_LINES, PageError, read_page
from controller.engines import EngineMetric, EngineNode, Engines, NodeScrape
from estimators.histogram import Snapshot
from router.turn import Role
from tests.conftest import CHECKOUT

TTFT, TPOT, KV = EngineMetric.TTFT, EngineMetric.TPOT, EngineMetric.KV_USAGE
P0 = EngineNode("P0", Role.PREFILL, "http://p0", "tiny")
D0 = EngineNode("D0", Role.DECODE, "http://d0", "tiny")


@pytest.fixture(scope="module")
def dumps() -> Path:
    """The folder of pages captured from vLLM, which is not part of the checkout."""
    named = os.environ.get("TRIMTAB_DATA")
    path = (Path(named).parent if named else CHECKOUT.parent / "shared") / "vllm"
    if not (path / "metrics-d.txt").is_file():
        pytest.skip("no captured vLLM pages: ../shared/vllm/metrics-d.txt is not there")
    return path


def histogram(name: str, counts: tuple[float, ...], engine: str = "0", model: str = "tiny") -> str:
    labels = f'engine="{engine}",model_name="{model}"'
    pairs = zip(("0.05", "0.1", "0.5", "+Inf"), counts, strict=True)
    rows = [f'{name}_bucket{{{labels},le="{edge}"}} {count}' for edge, count in pairs]
    return "\n".join([*rows, f"{name}_count{{{labels}}} {counts[-1]}", f"{name}_sum{{{labels}}} 1.5"]) + "\n"


def gauge(name: str, value: object, engine: str = "0", model: str = "tiny") -> str:
    return f'{name}{{engine="{engine}",model_name="{model}"}} {value}\n'


def of(scrape: NodeScrape, metric: EngineMetric, engine: str = "0") -> Snapshot:
    """The histogram of one engine of the page."""
    return scrape.histograms[metric][(("engine", engine),)]


def full(**names: str) -> str:
    """A whole small page; a keyword gives a metric another name, an empty one leaves it out."""
    chosen = {metric.name: names.get(metric.name, f"vllm:{metric.value}") for metric in EngineMetric}
    text = "process_start_time_seconds 77.5\n"
    for metric in EngineMetric:
        name = chosen[metric.name]
        if name:
            text += histogram(name, (1.0, 4.0, 9.0, 10.0)) if metric in (TTFT, TPOT) else gauge(name, 0.5)
    return text


# -- captured pages -------------------------------------------------------------------------------------------------


def test_a_real_decode_page_has_everything(dumps: Path):
    scrape = read_page(D0, (dumps / "metrics-d.txt").read_text())
    assert scrape.missing == () and scrape.older_names == {} and scrape.error is None
    ttft, tpot = of(scrape, TTFT), of(scrape, TPOT)
    assert len(ttft.edges) == 23 and ttft.edges[7:10] == (0.1, 0.25, 0.5) and ttft.counts[-1] == 110
    assert len(tpot.edges) == 20 and tpot.edges[:3] == (0.01, 0.025, 0.05) and tpot.counts[:3] == (101, 104, 108)
    assert ttft.started_s == tpot.started_s == 1.79598699105e9
    assert scrape.gauges == {KV: 0.0, EngineMetric.RUNNING: 0.0, EngineMetric.WAITING: 0.0}


def test_a_real_prefill_page_has_everything(dumps: Path):
    scrape = read_page(P0, (dumps / "metrics-p.txt").read_text())
    assert scrape.missing == () and of(scrape, TTFT).counts[-1] == 88


def test_a_pair_of_real_engines_reads_as_a_fleet(dumps: Path):
    engines = Engines((P0, D0))
    pages = {node: (dumps / f"metrics-{node.name[0].lower()}.txt").read_text() for node in (P0, D0)}
    engines.fold(read_page(node, full()) for node in pages)  # other processes, so all that the real ones hold is new
    engines.fold(read_page(node, text) for node, text in pages.items())
    reading = engines.reading("tiny")
    tpot, ttft = reading.tpot(), reading.ttft()
    assert tpot is not None and (tpot.low, tpot.high, tpot.n) == (0.05, 0.075, 110)
    assert ttft.local is not None and (ttft.local.low, ttft.local.high) == (0.75, 1.0), "110 on D, 88 through P"
    assert ttft.transferred is not None and (ttft.transferred.low, ttft.transferred.high) == (2.5 + 0.75, 5.0 + 1.0)


# -- names ----------------------------------------------------------------------------------------------------------


def test_todays_names_are_read():
    scrape = read_page(D0, full())
    assert scrape.missing == () and scrape.older_names == {}
    assert of(scrape, TPOT).counts == (1.0, 4.0, 9.0, 10.0) and of(scrape, TPOT).started_s == 77.5


def test_older_names_give_the_same_reading_and_are_told():
    older = full(TPOT="vllm:time_per_output_token_seconds", KV_USAGE="vllm:gpu_cache_usage_perc")
    scrape, today = read_page(D0, older), read_page(D0, full())
    assert scrape.histograms == today.histograms and scrape.gauges == today.gauges and scrape.missing == ()
    assert scrape.older_names == {TPOT: "vllm:time_per_output_token_seconds", KV: "vllm:gpu_cache_usage_perc"}


def test_of_a_page_that_shows_both_names_todays_is_taken():
    page = full() + histogram("vllm:time_per_output_token_seconds", (9.0, 9.0, 9.0, 9.0))
    scrape = read_page(D0, page + histogram("vllm:inter_token_latency_seconds", (500.0, 501.0, 502.0, 503.0)))
    assert of(scrape, TPOT).counts == (1.0, 4.0, 9.0, 10.0) and scrape.older_names == {}


@pytest.mark.parametrize("metric", list(EngineMetric))
def test_a_metric_that_is_not_there_is_missing_and_not_zero(metric: EngineMetric):
    scrape = read_page(D0, full(**{metric.name: ""}))
    assert scrape.missing == (metric,)
    assert metric not in scrape.histograms and metric not in scrape.gauges


def test_a_prefill_node_needs_no_tpot():
    assert read_page(P0, full(TPOT="")).missing == ()


def test_an_empty_page_misses_everything():
    assert read_page(D0, "").missing == tuple(EngineMetric)


def test_a_metric_whose_name_only_begins_alike_is_another():
    page = full(WAITING="") + gauge("vllm:num_requests_waiting_by_reason", 3)
    assert read_page(D0, page).missing == (EngineMetric.WAITING,)


# -- series ---------------------------------------------------------------------------------------------------------


def test_engines_of_one_process_are_told_apart_and_their_gauges_added_up():
    page = "".join(
        histogram(f"vllm:{metric.value}", (1.0, 2.0, 3.0, 4.0), engine) for metric in (TTFT, TPOT) for engine in "01"
    )
    page += "".join(gauge(f"vllm:{KV.value}", use, engine) for engine, use in (("0", 0.4), ("1", 0.9)))
    page += "".join(gauge(f"vllm:{EngineMetric.RUNNING.value}", 3, engine) for engine in "01")
    scrape = read_page(D0, page)
    assert of(scrape, TTFT, "0").counts == of(scrape, TTFT, "1").counts == (1.0, 2.0, 3.0, 4.0)
    assert scrape.gauges == {KV: 0.9, EngineMetric.RUNNING: 6.0}, "the fullest engine, the sum of running"


def test_of_two_models_a_node_reads_its_own_and_of_one_whatever_its_name():
    name = f"vllm:{TTFT.value}"
    both = histogram(name, (1.0, 1.0, 1.0, 1.0)) + histogram(name, (7.0, 7.0, 7.0, 7.0), model="other")
    assert of(read_page(D0, both), TTFT).counts == (1.0,) * 4
    alias = EngineNode("D0", Role.DECODE, "http://d0", "an-alias")
    assert TTFT not in read_page(alias, both).histograms
    assert read_page(alias, full()).missing == ()


def test_without_a_process_start_the_histograms_own_tells_of_a_restart():
    page = full().replace("process_start_time_seconds", "process_something_else")
    page += gauge(f"vllm:{TTFT.value}_created", "123.0")
    assert of(read_page(D0, page), TTFT).started_s == 123.0
    assert of(read_page(D0, page), TPOT).started_s is None


# -- nonsense -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf"])
def test_a_count_that_is_none_makes_the_metric_missing(value: str):
    page = full(TTFT="") + histogram(f"vllm:{TTFT.value}", (1.0, 2.0, 3.0, 4.0)).replace(" 3.0", f" {value}")
    assert read_page(D0, page).missing == (TTFT,)


def test_a_histogram_without_finite_edges_or_without_infinity_is_missing():
    bare = f'vllm:{TTFT.value}_bucket{{le="+Inf"}} 4\n'
    assert read_page(D0, full(TTFT="") + bare).missing == (TTFT,)
    assert read_page(D0, full(TTFT="") + bare.replace("+Inf", "0.5")).missing == (TTFT,)


def test_a_gauge_that_is_not_a_number_is_missing():
    assert read_page(D0, full(KV_USAGE="") + gauge(f"vllm:{KV.value}", "NaN")).missing == (KV,)


def test_other_metrics_may_be_as_odd_as_they_like():
    assert read_page(D0, full() + "vllm:brand_new{a=b} ??? # nonsense\n").missing == ()


def ranks(turns: dict[str, float]) -> str:
    """A page with two data parallel engines, or with what is left of them."""
    text = "process_start_time_seconds 77.5\n"
    for metric in (TTFT, TPOT):
        text += "".join(histogram(f"vllm:{metric.value}", (0.0, n, n, n), engine) for engine, n in turns.items())
    for metric in (KV, EngineMetric.RUNNING, EngineMetric.WAITING):
        text += "".join(gauge(f"vllm:{metric.value}", 0.5, engine) for engine in turns)
    return text


def test_a_page_that_is_cut_off_in_a_line_is_refused():
    for cut in (full()[:-1], full()[: full().index("le=")], full() + "vllm:time_to_first"):
        with pytest.raises(PageError, match="cut off"):
            read_page(D0, cut)


def test_a_page_that_is_cut_off_between_lines_never_shows_less_than_it_had():
    lines = full().splitlines(keepends=True)
    whole = read_page(D0, full())
    for end in range(len(lines)):
        scrape = read_page(D0, "".join(lines[:end]))
        for metric, found in scrape.histograms.items():
            assert found == whole.histograms[metric]
        assert {m for m in EngineMetric if m not in scrape.histograms and m not in scrape.gauges} == set(scrape.missing)


def test_a_page_that_lacks_a_bucket_does_not_bring_back_the_past():
    engines = Engines((D0,))
    for turns, lacks in ((1000.0, ""), (1030.0, 'le="0.5"'), (1060.0, "")):
        page = "".join(line for line in ranks({"0": turns}).splitlines(keepends=True) if not lacks or lacks not in line)
        engines.fold([read_page(D0, page)])
    tpot = engines.reading("tiny").tpot()
    assert tpot is not None and (tpot.n, tpot.low, tpot.high) == (60, 0.05, 0.1)


def test_a_count_that_disagrees_with_its_buckets_makes_the_metric_missing():
    name = f"vllm:{TTFT.value}_count"
    page = "".join(
        line.replace(" 10.0", " 11.0") if line.startswith(name) else line for line in full().splitlines(keepends=True)
    )
    assert read_page(D0, page).missing == (TTFT,)


def test_a_series_that_is_there_twice_is_missing():
    assert read_page(D0, full() + histogram(f"vllm:{TTFT.value}", (1.0, 4.0, 9.0, 10.0))).missing == (TTFT,)


def test_an_engine_of_several_that_is_not_shown_is_told_and_the_others_go_on():
    engines = Engines((D0,))
    engines.fold([read_page(D0, ranks({"0": 500.0, "1": 900.0}))])
    partial = ranks({"0": 530.0, "1": 930.0}).replace(
        histogram(f"vllm:{TPOT.value}", (0.0, 930.0, 930.0, 930.0), "1"), ""
    )
    scrape = read_page(D0, partial)
    assert scrape.missing == (TPOT,)
    engines.fold([scrape])
    tpot = engines.reading("tiny").tpot()
    assert tpot is not None and tpot.n == 30, "and not all that engine 0 has ever counted"
    engines.fold([read_page(D0, ranks({"0": 560.0, "1": 960.0}))])
    tpot, ttft = engines.reading("tiny").tpot(), engines.reading("tiny").ttft().local
    assert tpot is not None and ttft is not None and tpot.n == ttft.n == 120, "nothing is lost either"


def test_an_engine_that_is_gone_is_forgotten_with_its_window():
    engines = Engines((D0,), scrapes=2)
    engines.fold([read_page(D0, ranks({"0": 0.0, "1": 0.0}))])
    for turns in range(1, 5):
        engines.fold([read_page(D0, ranks({"0": 30.0 * turns}))])
    assert [len(windows) for windows in engines._windows.values()] == [1, 1]


@pytest.mark.parametrize("start", ["NaN", "+Inf"])
def test_a_start_that_is_no_time_is_no_restart(start: str):
    engines = Engines((D0,))
    for turns in (1000.0, 1030.0):
        engines.fold([read_page(D0, ranks({"0": turns}).replace("77.5", start))])
    tpot = engines.reading("tiny").tpot()
    assert tpot is not None and tpot.n == 30


def test_openmetrics_reads_the_same_and_must_end_with_eof():
    registry = CollectorRegistry()
    for metric in EngineMetric:
        labels, name = ("model_name", "engine"), f"vllm:{metric.value}"
        if metric in (TTFT, TPOT):
            own = Histogram(name, "x", labels, buckets=(0.05, 0.1, 0.5), registry=registry).labels("tiny", "0")
            for value in (0.01, 0.07, 0.2, 7.0):
                own.observe(value, {"trace_id": "a } # b"})
        else:
            Gauge(name, "x", labels, registry=registry).labels("tiny", "0").set(0.5)
    page = openmetrics_page(registry).decode()
    assert " # {" in page, "it has exemplars"
    scrape = read_page(D0, page, openmetrics=True)
    assert scrape.missing == () and of(scrape, TTFT).counts == (1.0, 2.0, 3.0, 4.0)
    assert of(scrape, TTFT) == of(read_page(D0, generate_latest(registry).decode()), TTFT)
    with pytest.raises(PageError, match="cut off"):
        read_page(D0, page.removesuffix("# EOF\n"), openmetrics=True)


def test_a_label_may_hold_what_other_people_take_for_the_end_of_a_line():
    page = full().replace('model_name="tiny"', 'model_name="ti\u2028n\x85y"')
    assert read_page(D0, page).missing == () and read_page(D0, page).models == ("ti\u2028n\x85y",)


def test_a_huge_page_of_other_metrics_costs_little_and_one_of_ours_is_refused():
    began_s = time.process_time()
    assert read_page(D0, full() + 'vllm:other{a="b"} 1\n' * 200_000).missing == ()
    assert time.process_time() - began_s < 3.0, "0.05 s when it was written"
    with pytest.raises(PageError, match="too large"):
        read_page(D0, "".join(gauge(f"vllm:{KV.value}", 0.5, str(engine)) for engine in range(MAX_LINES + 1)))


def test_a_node_that_serves_another_model_than_the_others_is_named():
    nodes = (D0, EngineNode("D1", Role.DECODE, "http://d1", "tiny"), EngineNode("D2", Role.DECODE, "http://d2", "tiny"))
    engines = Engines(nodes)
    pages = [read_page(node, full()) for node in nodes[:2]]
    engines.fold([*pages, read_page(nodes[2], full().replace("tiny", "huge"))])
    assert [(alarm.node, alarm.what) for alarm in engines.reading("tiny").alarms] == [
        ("D2", "serves huge, others tiny")
    ]


def test_a_damaged_page_is_read_or_refused_and_nothing_else():
    dice = random.Random(5)
    text, refused = full(), 0
    for _ in range(400):
        damaged = list(text)
        for _ in range(dice.randint(1, 8)):
            damaged[dice.randrange(len(damaged))] = dice.choice('{}="\\, \n#0xN\u00e9')
        try:
            read_page(D0, "".join(damaged))
        except (ValueError, LookupError):
            refused += 1
    assert 0 < refused < 400
