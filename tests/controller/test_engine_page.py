"""Pages: real ones of vLLM 0.32, those of older releases, and nonsense."""

import os
import random
from pathlib import Path

import pytest

from controller.engine_page import read_page
from controller.engines import EngineMetric, EngineNode, Engines
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
    ttft, tpot = scrape.histograms[TTFT], scrape.histograms[TPOT]
    assert len(ttft.edges) == 23 and ttft.edges[7:10] == (0.1, 0.25, 0.5) and ttft.counts[-1] == 110
    assert len(tpot.edges) == 20 and tpot.edges[:3] == (0.01, 0.025, 0.05) and tpot.counts[:3] == (101, 104, 108)
    assert ttft.started_s == tpot.started_s == 1.79598699105e9
    assert scrape.gauges == {KV: 0.0, EngineMetric.RUNNING: 0.0, EngineMetric.WAITING: 0.0}


def test_a_real_prefill_page_has_everything(dumps: Path):
    scrape = read_page(P0, (dumps / "metrics-p.txt").read_text())
    assert scrape.missing == () and scrape.histograms[TTFT].counts[-1] == 88


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
    assert scrape.histograms[TPOT].counts == (1.0, 4.0, 9.0, 10.0) and scrape.histograms[TPOT].started_s == 77.5


def test_older_names_give_the_same_reading_and_are_told():
    older = full(TPOT="vllm:time_per_output_token_seconds", KV_USAGE="vllm:gpu_cache_usage_perc")
    scrape, today = read_page(D0, older), read_page(D0, full())
    assert scrape.histograms == today.histograms and scrape.gauges == today.gauges and scrape.missing == ()
    assert scrape.older_names == {TPOT: "vllm:time_per_output_token_seconds", KV: "vllm:gpu_cache_usage_perc"}


def test_of_a_page_that_shows_both_names_todays_is_taken():
    page = full() + histogram("vllm:time_per_output_token_seconds", (9.0, 9.0, 9.0, 9.0))
    scrape = read_page(D0, page + histogram("vllm:inter_token_latency_seconds", (500.0, 501.0, 502.0, 503.0)))
    assert scrape.histograms[TPOT].counts == (1.0, 4.0, 9.0, 10.0) and scrape.older_names == {}


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


def test_engines_of_one_process_add_up():
    page = "".join(
        histogram(f"vllm:{metric.value}", (1.0, 2.0, 3.0, 4.0), engine) for metric in (TTFT, TPOT) for engine in "01"
    )
    page += "".join(gauge(f"vllm:{KV.value}", use, engine) for engine, use in (("0", 0.4), ("1", 0.9)))
    page += "".join(gauge(f"vllm:{EngineMetric.RUNNING.value}", 3, engine) for engine in "01")
    scrape = read_page(D0, page)
    assert scrape.histograms[TTFT].counts == (2.0, 4.0, 6.0, 8.0)
    assert scrape.gauges == {KV: 0.9, EngineMetric.RUNNING: 6.0}, "the fullest engine, the sum of running"


def test_of_two_models_a_node_reads_its_own_and_of_one_whatever_its_name():
    name = f"vllm:{TTFT.value}"
    both = histogram(name, (1.0, 1.0, 1.0, 1.0)) + histogram(name, (7.0, 7.0, 7.0, 7.0), model="other")
    assert read_page(D0, both).histograms[TTFT].counts == (1.0,) * 4
    alias = EngineNode("D0", Role.DECODE, "http://d0", "an-alias")
    assert TTFT not in read_page(alias, both).histograms
    assert read_page(alias, full()).missing == ()


def test_without_a_process_start_the_histograms_own_tells_of_a_restart():
    page = full().replace("process_start_time_seconds", "process_something_else")
    page += gauge(f"vllm:{TTFT.value}_created", "123.0")
    assert read_page(D0, page).histograms[TTFT].started_s == 123.0
    assert read_page(D0, page).histograms[TPOT].started_s is None


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
