"""Reports and publications survive the wire, and what makes no sense is refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import pytest

from controller.config import with_artefacts
from router.policy import Policy, Publication, Weights
from router.turn import NodeId
from router.wire import (
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
from slos.terms import NO_TERMS, Terms
from tests.controller.records import failed, record
from tests.controller_shell.reports import report

FULL = report(
    7,
    records=(
        replace(record(), terms=Terms(ttft_s=0.5)),
        failed(outcome=Outcome.TIMED_OUT),
        record(local=False, turn=1),
    ),
    waiting=(WaitingTurn("m", 2, True, 1.5, Terms("gold", "assistants", 0.2, 0.05)),),
    revisions={"tpot": "0123456789ab"},
    counts={"tpot": Count(10, 1, 2)},
    pin_x=0.25,
    metrics='# TYPE a gauge\na{b="ü"} 1\n',
    prices={"m": 0.4},
)


def test_a_report_survives_the_wire() -> None:
    assert report_from_json(report_to_json(FULL)) == FULL
    assert report_from_wire(json.loads(json.dumps(report_to_wire(FULL)))) == FULL


def test_the_two_ways_to_write_a_report_say_the_same() -> None:
    assert json.loads(report_to_json(FULL)) == json.loads(json.dumps(report_to_wire(FULL)))


def test_fields_that_a_later_version_adds_are_ignored_and_those_an_earlier_one_lacks_have_defaults() -> None:
    wire = report_to_wire(FULL)
    wire["invented"] = [1]
    del wire["prices"], wire["metrics"]
    assert report_from_wire(wire) == replace(FULL, prices={}, metrics="")


def test_reports_from_before_there_were_terms_and_revisions_are_read_as_saying_nothing() -> None:
    wire = json.loads(json.dumps(report_to_wire(FULL)))
    del wire["revisions"]
    for each in (*wire["records"], *wire["waiting"]):
        del each["terms"]
    old = report_from_json(json.dumps(wire).encode())
    assert {each.terms for each in old.records} | {each.terms for each in old.waiting} == {NO_TERMS}
    assert old.revisions == {}


@pytest.mark.parametrize("deadline_s", [0.0, -1.0])
def test_a_deadline_that_is_none_is_refused(deadline_s: float) -> None:
    bad = replace(FULL, waiting=(WaitingTurn("m", 2, True, 1.5, Terms(ttft_s=deadline_s)),))
    with pytest.raises(WireError, match="deadline"):
        report_from_json(report_to_json(bad))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seq": "1"}, "seq"),
        ({"seq": -1}, "seq must be within"),
        ({"seq": 2**60}, "seq must be within"),
        ({"policy_version": 2**60}, "policy_version"),
        ({"router": ""}, "must not be empty"),
        ({"pin_x": 1.5}, "pin_x"),
        ({"counts": {"a": {"valid": 1, "bad": 2, "excluded": 0}}}, "counts of 'a'"),
        ({"waiting": [{"model": "m", "turn": 1, "streaming": True, "age_s": -1}]}, "waiting[0]"),
        ({"waiting": [{"model": "m"}]}, "$.waiting[0]"),
        ({"prices": {"m": -1}}, "prices"),
        ({"records": [{}]}, "$.records[0]"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_with_its_place(change: dict[str, object], told: str) -> None:
    with pytest.raises(WireError) as caught:
        report_from_wire({**report_to_wire(FULL), **change})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "bad", [{"ttft_s": "fast"}, {"ttft_s": -0.1}, {"outcome": "fine"}, {"turn": 0}, {"e2e_s": None}]
)
def test_one_bad_record_refuses_the_whole_report(bad: dict[str, object]) -> None:
    wire = json.loads(json.dumps(report_to_wire(FULL)))
    wire["records"][1].update(bad)
    with pytest.raises(WireError, match=r"records\[1\]"):
        report_from_wire(wire)


@pytest.mark.parametrize("nan", [float("nan"), float("inf")])
def test_times_that_are_no_numbers_never_get_in(nan: float) -> None:
    with pytest.raises(WireError):
        report_from_wire(report_to_wire(report(records=(record(ttft_s=nan),))))
    text = report_to_json(report(records=(record(ttft_s=0.125),))).replace(b"0.125", str(nan).encode())
    with pytest.raises(WireError):
        report_from_json(text)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"router": 1}', b"[" * 100_000])
def test_what_is_no_report_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="report"):
        report_from_json(body)


def publication() -> tuple[Publication, dict[str, str]]:
    folder = files("trimtab") / "tables"
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in folder.iterdir() if path.name.endswith(".json")]
    tables, documents = with_artefacts(texts)
    policy = Policy(4, tables, Weights.from_price(0.4), {"m": Weights.from_price(0.31)}, provenance="a test")
    return Publication(9, {"main": policy}, {NodeId("D0"): "main"}, {NodeId("D0"): 0.1}, "salt"), documents


def test_a_publication_survives_the_wire_with_its_digest() -> None:
    sent, documents = publication()
    known = {tables.digest: tables for tables in sent.arms["main"].tables.values()}
    wire = json.loads(json.dumps(publication_to_wire(sent, documents)))
    assert wire["tables"].keys() == documents.keys()
    got = publication_from_wire(wire, lambda digest, document: known[digest])
    assert got == sent
    assert got.arms["main"].sha256 == sent.arms["main"].sha256


def test_tables_that_the_router_has_do_not_travel() -> None:
    sent, documents = publication()
    one, *others = documents
    wire = publication_to_wire(sent, documents, [one])
    assert sorted(wire["tables"]) == sorted(others)  # type: ignore[call-overload]


def test_a_publication_that_was_changed_on_the_way_is_refused() -> None:
    sent, documents = publication()
    known = {tables.digest: tables for tables in sent.arms["main"].tables.values()}
    wire = json.loads(json.dumps(publication_to_wire(sent, documents)))
    wire["arms"]["main"]["model_weights"]["m"]["w_ttft"] = 0.1
    with pytest.raises(WireError, match="sha256"):
        publication_from_wire(wire, lambda digest, document: known[digest])


def test_acting_prices_are_what_a_report_may_carry() -> None:
    sent, _ = publication()
    free = replace(sent.arms["main"], model_weights={"m": Weights.from_price(0.5), "n": Weights(0, 1)})
    prices = acting_prices(replace(sent, arms={"main": free}))
    assert prices == {"m": pytest.approx(0.5)}
    assert report_from_json(report_to_json(report(prices=prices))).prices == prices


def test_a_report_of_500_turns_is_far_below_the_limit() -> None:
    full: Report = report(records=tuple(record() for _ in range(500)))
    assert len(report_to_json(full)) < 1 << 20
