"""What engines' histograms say of a model, and what the law gets of it."""

import math

import numpy as np
import pytest

from controller.engines import (
    EngineAlarm,
    EngineMetric,
    EngineNode,
    EngineReading,
    Engines,
    NodeScrape,
    as_slo_readings,
    needed,
)
from estimators.histogram import Histogram, Snapshot
from router.turn import Role
from slos.objective import Match, Signal, Slo

MODEL = "m"
EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, math.inf)
P0 = EngineNode("P0", Role.PREFILL, "http://p0", MODEL)
D0 = EngineNode("D0", Role.DECODE, "http://d0", MODEL)
D1 = EngineNode("D1", Role.DECODE, "http://d1", MODEL)
FLEET = (P0, D0, D1)
TTFT = Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2))
TPOT = Slo("tpot", Signal.TPOT, 0.99, 0.040)
ITL_P95 = Slo("itl", Signal.ITL, 0.95, 0.050)
SLOS = (TTFT, TPOT, ITL_P95, Slo("other", Signal.TTFT, 0.99, 1.0, Match(("another",))))


def snapshot(values, started_s: float = 1.0) -> Snapshot:
    counts = np.searchsorted(np.sort(np.asarray(values, dtype=float)), EDGES, side="right")
    return Snapshot(EDGES, tuple(float(count) for count in counts), started_s)


def page(node: EngineNode, ttft=(), tpot=(), missing: tuple[EngineMetric, ...] = ()) -> NodeScrape:
    shown = {EngineMetric.TTFT: snapshot(ttft), EngineMetric.TPOT: snapshot(tpot)}
    wanted = set(needed(node.role)) - set(missing)
    return NodeScrape(node.name, {m: {(): s} for m, s in shown.items() if m in wanted}, missing=missing)


def read(*last: NodeScrape, nodes: tuple[EngineNode, ...] = FLEET) -> EngineReading:
    """The reading after an empty round and then `last`."""
    engines = Engines(nodes)
    engines.fold([page(node) for node in nodes])
    engines.fold(last)
    return engines.reading(MODEL)


def value(reading: EngineReading, slo: Slo) -> float | None:
    (row,) = [row for row in as_slo_readings(SLOS, reading) if row.slo is slo]
    return row.value_s


# -- TPOT -----------------------------------------------------------------------------------------------------------


def test_tpot_is_that_of_all_decode_nodes_together():
    reading = read(page(P0), page(D0, tpot=[0.02] * 97), page(D1, tpot=[0.02] * 100 + [0.07] * 3))
    p99 = reading.tpot()
    assert p99 is not None and (p99.low, p99.high, p99.n) == (0.05, 0.075, 200)
    median = reading.tpot(0.5)
    assert median is not None and (median.low, median.high) == (0.01, 0.025)
    assert value(reading, TPOT) == p99.value
    assert value(reading, ITL_P95) == pytest.approx(0.0243, abs=2e-4), "an ITL SLO is the mean over a turn too"


def test_below_twenty_values_nothing_is_resolved():
    assert read(page(P0), page(D0, tpot=[0.02] * 10), page(D1, tpot=[0.02] * 9)).tpot() is None
    assert read(page(P0), page(D0, tpot=[0.02] * 10), page(D1, tpot=[0.02] * 10)).tpot() is not None


def test_above_the_last_edge_the_reading_is_that_edge_and_says_at_least():
    p99 = read(page(P0), page(D0, tpot=[9.0] * 30), page(D1)).tpot()
    assert p99 is not None and p99.value == 5.0 and p99.at_least


# -- TTFT -----------------------------------------------------------------------------------------------------------


def test_local_turns_only_show_the_decode_nodes_histogram():
    reading = read(page(P0), page(D0, ttft=[0.3] * 100), page(D1, ttft=[0.3] * 100))
    ttft = reading.ttft()
    assert ttft.transferred is None and ttft.local is not None and (ttft.local.low, ttft.local.high) == (0.25, 0.5)
    assert value(reading, TTFT) == ttft.local.value


def test_transferred_turns_only_show_the_sum_as_an_upper_bound():
    reading = read(page(P0, ttft=[0.8] * 100), page(D0, ttft=[0.08] * 60), page(D1, ttft=[0.08] * 40))
    ttft = reading.ttft()
    assert ttft.local is None, "each of D's turns came from a P"
    assert ttft.transferred is not None
    assert (ttft.transferred.low, ttft.transferred.high) == (0.5 + 0.075, 1.0 + 0.1)
    assert value(reading, TTFT) == ttft.transferred.value


def test_of_both_kinds_the_worse_counts():
    reading = read(page(P0, ttft=[0.8] * 50), page(D0, ttft=[0.08] * 50 + [1.5] * 50), page(D1, ttft=[0.08] * 40))
    ttft = reading.ttft()
    assert ttft.local is not None and ttft.transferred is not None and ttft.local.low == 1.0
    assert ttft.worse == ttft.transferred
    assert value(reading, TTFT) == pytest.approx(ttft.local.value + 1.0, abs=0.05)


def test_few_transfers_do_not_speak_for_their_quantile():
    ttft = read(page(P0, ttft=[4.0] * 5), page(D0, ttft=[0.3] * 50), page(D1, ttft=[0.3] * 50)).ttft()
    assert ttft.transferred is None and ttft.local is not None


def test_replicas_serve_everything_themselves():
    replica = EngineNode("R0", Role.REPLICA, "http://r0", MODEL)
    reading = read(page(replica, ttft=[0.3] * 40, tpot=[0.02] * 40), nodes=(replica,))
    assert reading.ttft().local is not None and reading.tpot() is not None


@pytest.mark.parametrize("seed", range(10))
def test_the_sum_bounds_the_true_p99_of_transferred_turns(seed: int):
    random = np.random.default_rng(seed)
    on_p, on_d = random.lognormal(-0.7, 0.5, 400), random.lognormal(-2.5, 0.7, 400)
    if seed % 2:  # the same turns are slow on both
        on_p, on_d = np.sort(on_p), np.sort(on_d)
    bound = read(page(P0, ttft=on_p), page(D0, ttft=on_d[:200]), page(D1, ttft=on_d[200:])).ttft().transferred
    assert bound is not None and bound.high is not None
    assert np.quantile(on_p + on_d, 0.99, method="inverted_cdf") <= bound.high


# -- what is missing --------------------------------------------------------------------------------------------------


def test_a_missing_metric_is_an_alarm_and_never_a_zero():
    reading = read(
        page(P0, ttft=[0.3] * 50),
        page(D0, ttft=[0.3] * 50, missing=(EngineMetric.TPOT,)),
        page(D1, ttft=[0.3] * 50, missing=(EngineMetric.TPOT,)),
    )
    assert reading.tpot() is None and value(reading, TPOT) is None and value(reading, TTFT) is not None
    what = "no request_time_per_output_token_seconds"
    assert reading.alarms == (EngineAlarm("D0", what), EngineAlarm("D1", what))


def test_a_node_that_lacks_a_metric_leaves_the_others_speaking():
    reading = read(page(P0), page(D0, tpot=[0.02] * 50), page(D1, missing=(EngineMetric.TPOT,)))
    p99 = reading.tpot()
    assert p99 is not None and p99.n == 50 and len(reading.alarms) == 1


def test_a_node_that_does_not_answer_is_left_out_once_its_window_is_empty():
    engines = Engines(FLEET, scrapes=2)
    engines.fold([page(P0), page(D0), page(D1)])
    engines.fold([page(P0), page(D0, tpot=[0.02] * 50), page(D1, tpot=[0.3] * 50)])
    counts = []
    for at in range(2, 6):
        down = NodeScrape("D1", error="timeout")
        engines.fold([page(P0), page(D0, tpot=[0.02] * 50 * at), down])
        histogram = engines.reading(MODEL).tpot_d
        counts.append(None if histogram is None else histogram.n)
        assert EngineAlarm("D1", "timeout") in engines.reading(MODEL).alarms
    assert counts == [150, 100, 100, 100]


def test_without_any_prefill_node_that_answers_ttft_is_unknown_and_not_local_only():
    engines = Engines(FLEET)
    for turns in (0, 100):
        engines.fold([NodeScrape("P0", error="timeout"), page(D0, ttft=[0.08] * turns, tpot=[0.02] * turns), page(D1)])
    reading = engines.reading(MODEL)
    assert reading.ttft().worse is None and value(reading, TTFT) is None
    assert reading.tpot() is not None


def test_a_node_that_is_not_in_a_round_counts_as_not_answering():
    reading = read(page(D0))
    assert {alarm.what for alarm in reading.alarms} == {"not scraped"}


def test_before_the_first_round_there_is_nothing_and_no_alarm():
    reading = Engines(FLEET).reading(MODEL)
    assert reading.tpot() is None and reading.ttft().worse is None and reading.alarms == ()


def test_a_frozen_page_runs_out_of_evidence():
    engines = Engines(FLEET, scrapes=3)
    engines.fold([page(node) for node in FLEET])
    for _ in range(3):
        engines.fold([page(P0), page(D0, tpot=[0.02] * 50), page(D1)])
    assert engines.reading(MODEL).tpot() is not None
    engines.fold([page(P0), page(D0, tpot=[0.02] * 50), page(D1)])
    assert engines.reading(MODEL).tpot() is None


# -- several models -------------------------------------------------------------------------------------------------


def test_models_do_not_mix():
    other = EngineNode("X0", Role.DECODE, "http://x0", "another")
    engines = Engines((*FLEET, other))
    engines.fold([page(node) for node in (*FLEET, other)])
    engines.fold([page(P0), page(D0, tpot=[0.02] * 50), page(D1), page(other, ttft=[4.0] * 50, tpot=[0.3] * 50)])
    assert engines.models == (MODEL, "another")
    ours, theirs = engines.reading(MODEL).tpot(), engines.reading("another").tpot()
    assert ours is not None and theirs is not None and ours.high is not None and ours.high < theirs.low
    rows = as_slo_readings(SLOS, engines.reading("another"))
    assert [row.slo.name for row in rows] == ["later-ttft", "other", "tpot", "itl"]
    assert [row.slo.name for row in as_slo_readings(SLOS, engines.reading(MODEL))] == ["later-ttft", "tpot", "itl"]


def test_two_nodes_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name"):
        Engines((D0, D0))


def test_slos_that_cannot_drive_have_no_reading():
    slos = (TTFT, Slo("e2e", Signal.E2E, 0.99, 30.0), Slo("up", Signal.SUCCESS, 0.999, None))
    empty = EngineReading(MODEL, None, Histogram(EDGES, (0.0,) * len(EDGES)), None)
    assert [(row.slo, row.value_s) for row in as_slo_readings(slos, empty)] == [(TTFT, None)]
