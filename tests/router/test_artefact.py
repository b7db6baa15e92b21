"""The table artefact: what is written is read again, and damage of any kind is refused with the file and the place."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.artefact import Arm, Artefact, ArtefactError, MeasuredCell, Origin, dump, load
from router.decision import decide
from router.paper_table import CellKey, ContextClass, PaperCell
from router.policy import Policy, TableKey, Weights
from router.table import Axes, LoadAwareTable
from router.turn import Reason
from tests.router.samples import LATENCY, MODEL, TOPOLOGY, features
from trimtab.shipped import shipped

ORIGIN = Origin(MODEL, "1x GPU", TOPOLOGY, "an engine", "2026-01-31", "measured", "trimtab calibrate", 7, 600)
SMALL_TABLE = LoadAwareTable.filled(LATENCY, Axes((1, 100), (1, 1000), (500, 5000), (0, 8)))
X0 = Arm(300, 1.0, 80.0, 120.5, 12.0, 20.25, 900.0)
X1 = Arm(300, 0.99, 40.0, 60.0, 15.0, 31.0, 950.5)
NOBODY = Arm(0, 0.0, None, None, None, None, 0.0)
CELLS = (
    MeasuredCell(ContextClass.LARGE, "mid_bal", 4.0, X0, X1),
    MeasuredCell(ContextClass.LARGE, "mid_bal", 20.0, NOBODY, X1),
)
FIT = {"ttft_local": 0.05, "ttft_rows": 2592.0}
TEXT = dump(ORIGIN, SMALL_TABLE, FIT, CELLS)


def document() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(TEXT)
    return read


def refusal(changed: object) -> str:
    """What is said about a document, less the file's name."""
    with pytest.raises(ArtefactError) as refused:
        load(changed if isinstance(changed, str) else json.dumps(changed), "tables/x.json")
    message = str(refused.value)
    assert message.startswith("tables/x.json:")
    assert "\n" not in message
    return message.removeprefix("tables/x.json").removeprefix(": ")


# -- there and back ----------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_again():
    found = load(TEXT, "x.json")
    assert (found.origin, found.table, found.fit, found.cells) == (ORIGIN, SMALL_TABLE, FIT, CELLS)
    assert found.key == TableKey(MODEL, TOPOLOGY)


def test_the_same_input_gives_the_same_bytes_and_the_same_digest():
    assert dump(ORIGIN, SMALL_TABLE, FIT, CELLS) == TEXT
    assert load(TEXT, "a").digest == load(TEXT, "b").digest
    assert load(TEXT, "a").digest != load(TEXT + "\n", "a").digest


@pytest.mark.parametrize("artefact", shipped(), ids=lambda a: f"{a.origin.model} {a.origin.topology}")
def test_a_shipped_artefact_written_again_is_the_same_file(artefact: Artefact):
    text = dump(artefact.origin, artefact.table, artefact.fit, artefact.cells)
    assert load(text, "again").digest == artefact.digest


def test_a_large_table_keeps_six_digits_of_every_cell_and_then_stays_as_it_is():
    table = LoadAwareTable.filled(LATENCY)
    text = dump(ORIGIN, table, FIT, ())
    found = load(text, "x.json")
    assert found.table.saved_ms == pytest.approx(table.saved_ms, rel=5e-6)
    assert found.table.cost == pytest.approx(table.cost, rel=5e-6)
    assert dump(ORIGIN, found.table, FIT, ()) == text


numbers = st.floats(-1e11, 1e11).map(lambda value: round(value, 2))


@given(saved=st.lists(numbers, min_size=16, max_size=16), cost=st.lists(st.floats(0, 1e11), min_size=8, max_size=8))
def test_writing_is_stable_from_the_second_time_on(saved, cost):
    once = load(dump(ORIGIN, LoadAwareTable(SMALL_TABLE.axes, LATENCY, tuple(saved), tuple(cost)), FIT, ()), "x.json")
    twice = load(dump(ORIGIN, once.table, FIT, ()), "x.json")
    assert twice.table.saved_ms == pytest.approx(once.table.saved_ms, rel=1e-9)
    assert twice.table.cost == pytest.approx(once.table.cost, rel=1e-9)


def test_an_arm_becomes_relative_means():
    assert CELLS[0].key == CellKey(ContextClass.LARGE, "mid_bal", 4.0)
    assert CELLS[0].relative() == PaperCell(0.5, 0.25, 1.0, 0.99, 300, 300)
    assert CELLS[1].relative() == PaperCell(None, None, 0.0, 0.99, 0, 300)


@pytest.mark.parametrize("x0", [NOBODY, replace(X0, ttft_mean_ms=0.0, tpot_mean_ms=0.0), X0])
@pytest.mark.parametrize("x1", [NOBODY, X1])
def test_without_an_answer_on_either_side_there_is_no_delta(x0: Arm, x1: Arm):
    found = load(dump(ORIGIN, SMALL_TABLE, FIT, (replace(CELLS[0], x0=x0, x1=x1),)), "x.json").cells[0]
    assert (found.x0, found.x1) == (x0, x1)
    relative = found.relative()
    measured = (x0, x1) == (X0, X1)
    assert (relative.delta_ttft is not None, relative.delta_tpot is not None) == (measured, measured)


def test_what_a_policy_carries_names_its_source_and_digest():
    found = load(TEXT, "x.json")
    tables = found.tables()
    assert (tables.load_aware, tables.source, tables.digest) == (SMALL_TABLE, "measured", found.digest)
    assert tables.paper is not None
    assert set(tables.paper.cells) == {cell.key for cell in CELLS}


def test_without_measured_cells_there_is_no_papers_table():
    assert load(dump(ORIGIN, SMALL_TABLE, FIT, ()), "x.json").tables().paper is None


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1:1 is no JSON: Expecting value"),
        ("{\n  oops", ":2:3 is no JSON: Expecting property name enclosed in double quotes"),
        ("[]", "a table artefact is a JSON object"),
        ("null", "a table artefact is a JSON object"),
        ("{}", "format None is not 1; rebuild it with `trimtab calibrate`"),
        ('{"format": 2}', "format 2 is not 1; rebuild it with `trimtab calibrate`"),
        ("[" * 100_000, "a table artefact is not nested that deep"),
        (TEXT.replace("an engine", "\ud800"), "'utf-8' codec can't encode character"),
        ('{"format": 1, "seed": ' + "9" * 5000 + "}", "Exceeds the limit"),
    ],
    ids=[
        "empty",
        "no JSON",
        "a list",
        "null",
        "no format",
        "another format",
        "deep",
        "half a character",
        "long number",
    ],
)
def test_what_is_no_artefact_at_all_is_refused(text: str, message: str):
    assert refusal(text).startswith(message)


@pytest.mark.parametrize("at", range(0, len(TEXT) - 2, 97))
def test_a_file_that_was_cut_off_is_refused_with_line_and_column(at: int):
    assert "is no JSON" in refusal(TEXT[:at])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model", 5, "model is no text: 5"),
        ("topology", None, "topology is no text: None"),
        ("source", "guessed", "source 'guessed' is none of emulated, vllm-cpu, measured"),
        ("seed", 1.5, "seed is no whole number >= 0: 1.5"),
        ("samples", -1, "samples is no whole number >= 0: -1"),
        ("latency_model", [], "latency_model is no object: []"),
        ("latency_model.floor_ms", "5", "latency_model.floor_ms is no finite number: '5'"),
        ("latency_model.floor_ms", True, "latency_model.floor_ms is no finite number: True"),
        ("latency_model.floor_ms", -1, "latency model: floor_ms must be finite and not negative, got -1"),
        ("latency_model.fit", 3, "latency_model.fit is no object: 3"),
        ("latency_model.fit.ttft_local", float("nan"), "latency_model.fit.ttft_local is no finite number: nan"),
        ("table", {}, "table.axes is missing"),
        ("table.axes.batch", [0, 0], "table axis batch needs two or more rising centres >= 0, got [0, 0]"),
        ("table.axes.batch", "08", "table.axes.batch is no list: '08'"),
        ("table.axes.prompt", [500, float("inf")], "table.axes.prompt[1] is no finite number: inf"),
        ("table.saved_ms", [1.0] * 15, "table: saved_ms has 15 cells, the axes need 16"),
        ("table.saved_ms", [*[1.0] * 15, float("nan")], "table.saved_ms[15] is no finite number: nan"),
        ("table.saved_ms", [*[1.0] * 15, 10**400], "table.saved_ms[15] is no finite number: 1"),
        ("table.cost", [1.0] * 9, "table: cost has 9 cells, the axes need 8"),
        ("table.cost", [*[1.0] * 7, -1], "table: cost must not be negative"),
        ("paper", [], "paper is no object: []"),
        ("paper.cells", {}, "paper.cells is no list: {}"),
        ("paper.cells.1", "x", "paper.cells[1] is no object: 'x'"),
        ("paper.cells.1.context", "tiny", "paper.cells[1].context 'tiny' is none of small, large, huge"),
        ("paper.cells.1.turn2", "big", "paper.cells[1].turn2 'big' is none of the nine types"),
        ("paper.cells.1.turn2", ["tiny"], "paper.cells[1].turn2 is no text: ['tiny']"),
        ("paper.cells.1.qps", 3, "paper.cells[1].qps 3 is no level of the grid"),
        ("paper.cells.1.qps", 4, "paper.cells has 2 cells large/mid_bal/4"),
        ("paper.cells.0.x0", None, "paper.cells[0].x0 is no object: None"),
        ("paper.cells.0.x0.n", 2.5, "paper.cells[0].x0.n is no whole number >= 0: 2.5"),
        ("paper.cells.0.x1.success", 1.01, "paper.cells[0].x1.success is a share, 0..1, got 1.01"),
        ("paper.cells.0.x1.success", -0.01, "paper.cells[0].x1.success is a share, 0..1, got -0.01"),
        ("paper.cells.0.x1.success", None, "paper.cells[0].x1.success is no finite number: None"),
        ("paper.cells.0.x1.ttft_mean_ms", "fast", "paper.cells[0].x1.ttft_mean_ms is no finite number: 'fast'"),
        ("paper.cells.0.x1.tpot_p99_ms", -3, "paper.cells[0].x1.tpot_p99_ms is negative: -3"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(path: str, value: object, message: str):
    changed = document()
    *parents, last = path.split(".")
    holder: Any = changed
    for step in parents:
        holder = holder[int(step) if isinstance(holder, list) else step]
    holder[int(last) if isinstance(holder, list) else last] = value
    assert refusal(changed).startswith(message)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("latency_model.speed", "latency_model.speed is unknown"),
        ("table.axes.qps", "table.axes.qps is unknown"),
        ("table.note", "table.note is unknown"),
        ("paper.cells.0.note", "paper.cells[0].note is unknown"),
        ("paper.cells.0.x0.p50", "paper.cells[0].x0.p50 is unknown"),
    ],
)
def test_an_unknown_member_is_refused_with_its_place(path: str, message: str):
    changed = document()
    *parents, last = path.split(".")
    holder: Any = changed
    for step in parents:
        holder = holder[int(step) if isinstance(holder, list) else step]
    holder[last] = 1.0
    assert refusal(changed) == message


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a document, parents before their members."""
    steps: list[str | int] = list(value) if isinstance(value, dict) else list(range(len(value)))
    found = []
    for step in steps:
        found.append((*path, step))
        if isinstance(value[step], dict | list):
            found += places(value[step], (*path, step))
    return found


PLACES = places(document())
MEMBERS = [path for path in PLACES if isinstance(path[-1], str)]
FREE = (("latency_model", "fit", "ttft_local"), ("latency_model", "fit", "ttft_rows"))


def holder_of(changed: Any, path: tuple[str | int, ...]) -> Any:
    for step in path[:-1]:
        changed = changed[step]
    return changed


@pytest.mark.parametrize("path", [path for path in MEMBERS if path not in FREE], ids=str)
def test_a_member_that_is_missing_is_refused_by_its_name(path: tuple[str | int, ...]):
    changed = document()
    del holder_of(changed, path)[path[-1]]
    assert str(path[-1]) in refusal(changed)


def kind(value: object) -> str:
    """What JSON calls it; whole numbers and others are one kind."""
    if isinstance(value, bool) or value is None:
        return str(value)
    return "number" if isinstance(value, int | float) else type(value).__name__


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=8),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
)


@given(path=st.sampled_from(PLACES), value=junk)
def test_any_value_of_another_kind_at_any_place_is_refused(path, value):
    changed = document()
    holder = holder_of(changed, path)
    before = holder[path[-1]]
    holder[path[-1]] = value
    nullable = str(path[-1]).endswith("_ms") and path[0] == "paper"
    if kind(value) == kind(before) or (nullable and (value is None or kind(value) == "number")):
        usable_or_refused(json.dumps(changed))
    elif path != ("format",):
        refusal(changed)


@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), st.one_of(junk, st.just("delete"))), min_size=1, max_size=4))
def test_several_changes_at_once_are_refused_or_harmless(changes):
    changed = document()
    for path, value in changes:
        try:
            holder = holder_of(changed, path)
            if value == "delete":
                del holder[path[-1]]
            else:
                holder[path[-1]] = deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    usable_or_refused(json.dumps(changed))


@given(
    at=st.integers(0, len(TEXT) - 1),
    gone=st.integers(0, 40),
    instead=st.text('{}[]",:0123456789eE.-+ntfalsu \n', max_size=6),
)
def test_a_damaged_text_is_refused_or_harmless(at, gone, instead):
    usable_or_refused(TEXT[:at] + instead + TEXT[at + gone :])


@given(text=st.text(max_size=200))
def test_any_text_is_refused(text):
    with pytest.raises(ArtefactError, match=r"^x\.json:"):
        load(text, "x.json")


def usable_or_refused(text: str) -> None:
    """Either a refusal that names the file, or an artefact that decides turns, on its own topology and on another."""
    found = load_or_refusal(text)
    if isinstance(found, str):
        assert found.startswith("x.json:")
        return
    tables = {found.key: found.tables()}
    for mode in ("load_aware", "paper"):
        for topology in (found.origin.topology, "7P_7D"):
            turn = features(model=found.origin.model, topology=topology, qps=8.0)
            assert isinstance(decide(Policy(1, tables, Weights(1, 1), mode=mode), turn, 0.5).reason, Reason)


def load_or_refusal(text: str) -> Artefact | str:
    try:
        return load(text, "x.json")
    except ArtefactError as error:
        return str(error)
