"""What travels between router and control process comes back as it was, and what does not hold together is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision import Decision
from router.placement import Placement
from router.policy import Policy, Publication, TableKey, Tables, Weights
from router.record import TurnRecord
from router.turn import NodeId, Reason, Route
from router.wire import (
    MAX_VERSION,
    NodeView,
    Report,
    WaitingTurn,
    WireError,
    acting_prices,
    publication_from_wire,
    publication_to_wire,
    report_from_json,
    report_from_wire,
    report_to_json,
    report_to_wire,
)
from slos.counts import Count
from slos.objective import Outcome
from tests.router.fleet import fleet
from tests.router.samples import MODEL, TOPOLOGY, tables

RECORD = fleet().talk()
TIMES = st.none() | st.floats(0, 1e9)
TEXTS = st.text(max_size=8)
COUNTS = st.integers(0, 10**12)
RECORDS = st.builds(
    lambda request_id, model, turn, times, cached, outcome, decision, placement: replace(
        RECORD,
        request_id=request_id,
        model=model,
        turn=turn,
        ttft_s=times[0],
        tpot_s=times[1],
        cached_tokens=cached,
        outcome=outcome,
        decision=decision,
        placement=placement,
    ),
    TEXTS,
    TEXTS,
    st.integers(1, 1000),
    st.tuples(TIMES, TIMES),
    st.none() | COUNTS,
    st.sampled_from(Outcome),
    st.builds(
        Decision,
        st.sampled_from(Route),
        st.sampled_from(Reason),
        st.floats(0, 1),
        COUNTS,
        TEXTS,
        st.none() | st.floats(-1e6, 1e6),
        st.none() | st.floats(0, 1e6),
        st.booleans(),
    ),
    st.builds(Placement, st.sampled_from([None, NodeId("P0")]), st.just(NodeId("D0")), st.sampled_from(Route)),
)
REPORTS = st.builds(
    Report,
    router=st.text(min_size=1, max_size=8),
    boot=st.text(min_size=1, max_size=8),
    seq=st.integers(0, MAX_VERSION),
    policy_version=st.integers(0, MAX_VERSION),
    pin_x=st.none() | st.floats(0, 1),
    records=st.lists(RECORDS, max_size=3).map(tuple),
    waiting=st.lists(
        st.builds(WaitingTurn, TEXTS, st.integers(1, 99), st.booleans(), st.floats(0, 1e6)), max_size=3
    ).map(tuple),
    counts=st.dictionaries(
        TEXTS, st.builds(lambda bad, good, out: Count(bad + good, bad, out), COUNTS, COUNTS, COUNTS), max_size=3
    ),
    nodes=st.lists(
        st.builds(
            NodeView,
            *(TEXTS, TEXTS, TEXTS, st.booleans(), st.booleans(), COUNTS, st.floats(0, 1e6), COUNTS, COUNTS),
        ),
        max_size=2,
    ).map(tuple),
    dropped_records=COUNTS,
    metrics=TEXTS,
    prices=st.dictionaries(TEXTS, st.floats(0, 1e6), max_size=2),
)


@given(report=REPORTS)
def test_a_report_comes_back_as_it_was(report: Report):
    assert report_from_json(report_to_json(report)) == report
    assert report_from_wire(json.loads(json.dumps(report_to_wire(report)))) == report
    assert json.loads(report_to_json(report)) == json.loads(json.dumps(report_to_wire(report)))


def report(*records: TurnRecord, **changes: Any) -> Report:
    return replace(Report("r", "b", 1, 1, None, records, (), {}, ()), **changes)


@pytest.mark.parametrize(
    "bad",
    [
        report(seq=-1),
        report(policy_version=MAX_VERSION + 1),
        report(pin_x=1.5),
        report(router=""),
        report(boot=""),
        report(replace(RECORD, ttft_s=-0.001)),
        report(replace(RECORD, turn=0)),
        report(waiting=(WaitingTurn("m", 1, True, -1.0),)),
        report(counts={"slo": Count(1, 2, 0)}),
        report(prices={"m": -1.0}),
    ],
    ids=lambda value: "report",
)
def test_a_report_whose_numbers_make_no_sense_is_refused(bad: Report):
    with pytest.raises(WireError, match=r"^report: "):
        report_from_json(report_to_json(bad))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"router":7}', b"[" * 50])
def test_what_is_no_report_is_refused(body: bytes):
    with pytest.raises(WireError, match=r"^report: "):
        report_from_json(body)


# -- publications ------------------------------------------------------------------------------------------------------

DIGEST = "d" * 64
TABLES = tables(digest=DIGEST)
WEIGHTS = st.floats(1e-6, 1e6).map(Weights.from_price)
POLICIES = st.builds(
    Policy,
    version=st.integers(0, MAX_VERSION),
    tables=st.sampled_from([{}, {TableKey(MODEL, TOPOLOGY): TABLES, TableKey("*", "1P_1D"): TABLES}]),
    weights=WEIGHTS,
    model_weights=st.dictionaries(TEXTS, WEIGHTS, max_size=2),
    mode=st.sampled_from(["load_aware", "paper"]),
    pin_x=st.none() | st.floats(0, 1),
    explore=st.floats(0, 0.5),
    kv_guard=st.floats(0.1, 1),
    without_table_tokens=st.integers(0, MAX_VERSION),
    provenance=TEXTS,
)
PUBLICATIONS = st.builds(
    lambda version, main, other, dither, salt, qps: Publication(
        version, {"main": main, "canary": other}, {NodeId("D1"): "canary"}, {NodeId("D0"): dither}, salt, qps
    ),
    st.integers(0, MAX_VERSION),
    POLICIES,
    POLICIES,
    st.floats(-1, 1),
    TEXTS,
    st.none() | st.floats(0, 1e6),
)


def known(digest: str, document: str | None) -> Tables:
    assert digest == DIGEST
    return TABLES


@given(publication=PUBLICATIONS)
def test_a_publication_comes_back_as_it_was(publication: Publication):
    wire = json.loads(json.dumps(publication_to_wire(publication, {DIGEST: "the text"})))
    assert publication_from_wire(wire, known) == publication


def wire(**changes: Any) -> dict[str, Any]:
    policy = Policy(3, {TableKey(MODEL, TOPOLOGY): TABLES}, Weights.from_price(0.4))
    return {**publication_to_wire(Publication(3, {"main": policy}), {DIGEST: "the text"}), **changes}


def test_a_document_travels_only_to_those_who_lack_it():
    publication = publication_from_wire(wire(), known)
    assert publication_to_wire(publication, {DIGEST: "the text"})["tables"] == {DIGEST: "the text"}
    assert publication_to_wire(publication, {DIGEST: "the text"}, [DIGEST])["tables"] == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", {"w_ttft": 1.0, "w_tpot": 1.0}),
        ("explore", 0.25),
        ("mode", "paper"),
        ("kv_guard", 0.5),
        ("without_table_tokens", 0),
        ("version", 4),
        ("pin_x", 0.5),
        ("provenance", "me"),
        ("tables", []),
        ("model_weights", {"m": {"w_ttft": 1.0, "w_tpot": 0.0}}),
        ("sha256", "0" * 64),
    ],
)
def test_a_policy_that_was_changed_on_its_way_is_refused(field: str, value: object):
    changed = wire()
    changed["arms"]["main"][field] = value
    with pytest.raises(WireError, match="sha256"):
        publication_from_wire(changed, known)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        "x",
        {},
        wire(format=3),
        wire(arms={}),
        wire(arms=[]),
        wire(arms={"main": None}),
        wire(arms={"main": {}}),
        wire(version="x"),
        wire(version=None),
        wire(node_arm={"D0": "nobody"}),
        wire(node_dither={"D0": "x"}),
        wire(tables=None),
        wire(tables=[]),
    ],
)
def test_what_is_no_publication_is_refused_in_words(bad: object):
    with pytest.raises(WireError):
        publication_from_wire(bad, known)


def test_a_publication_from_before_there_was_a_rule_without_a_table_is_refused_for_its_format():
    """And so is this one by a router of then: neither fills in what the other did not say."""
    old = wire(format=1)
    del old["arms"]["main"]["without_table_tokens"]
    with pytest.raises(WireError, match=r"format 1 is not 2: router and control differ in version"):
        publication_from_wire(old, known)
    with pytest.raises(WireError, match="without_table_tokens"):
        publication_from_wire({**old, "format": 2}, known)


@pytest.mark.parametrize("tokens", [-1, 1.5, True, "1024", None, [], {}])
def test_tokens_that_are_no_whole_number_are_refused(tokens: object):
    bad = wire()
    bad["arms"]["main"]["without_table_tokens"] = tokens
    with pytest.raises(WireError, match="without_table_tokens"):
        publication_from_wire(bad, known)


@pytest.mark.parametrize("weights", [{"w_ttft": -1.0, "w_tpot": 1.0}, {"w_ttft": 0.0, "w_tpot": 0.0}, {"w": 1}, None])
def test_weights_that_are_none_are_refused(weights: object):
    bad = wire()
    bad["arms"]["main"]["weights"] = weights
    with pytest.raises(WireError):
        publication_from_wire(bad, known)


def test_the_prices_that_a_router_acts_on_are_those_of_its_main_arm():
    by_model = {"a": Weights.from_price(0.5), "b": Weights(0, 1), "": Weights.from_price(2)}
    policy = Policy(1, {}, Weights(1, 1), by_model)
    assert acting_prices(Publication(1, {"main": policy})) == pytest.approx({"a": 0.5, "": 2.0})
