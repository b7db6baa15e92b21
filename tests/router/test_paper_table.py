"""The paper's table: the classes of B.1, Equation 1 on relative deltas, and what stands in for a missing cell."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision import decide
from router.features import TurnFeatures
from router.paper_table import (
    QPS_LEVELS,
    SUCCESS_FLOOR,
    TURN2_TYPES,
    CellKey,
    ContextClass,
    PaperCell,
    PaperTable,
    context_class,
    turn2_type,
)
from router.policy import Policy, TableKey, Weights
from router.turn import Reason, Route
from tests.router.samples import MODEL, TOPOLOGY, features, tables
from trimtab.shipped import as_tables, shipped

SMALL, LARGE, HUGE = ContextClass.SMALL, ContextClass.LARGE, ContextClass.HUGE
TRADE_OFF = PaperCell(0.5, 0.2, 1.0, 1.0, 300, 300)
CONTEXT_OF = {SMALL: 256, LARGE: 2048, HUGE: 8704}
WEIGHTS = [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.1, 5.0)]


def turn_of(key: CellKey, **changes) -> TurnFeatures:
    """A turn that falls into that cell exactly."""
    n_in, n_out = TURN2_TYPES[key.turn2]
    return features(n_ctx=CONTEXT_OF[key.context], n_in=n_in, n_out=n_out, qps=2 * key.qps, **changes)


HERE = CellKey(LARGE, "mid_bal", 4)


@pytest.mark.parametrize(
    ("n_ctx", "expected"),
    [(0, SMALL), (256, SMALL), (512, SMALL), (513, LARGE), (2048, LARGE), (4096, LARGE), (4097, HUGE), (131_072, HUGE)],
)
def test_context_classes_end_at_512_and_at_4096(n_ctx: int, expected: ContextClass):
    assert context_class(n_ctx) is expected


@pytest.mark.parametrize(("name", "lengths"), TURN2_TYPES.items())
def test_each_of_the_nine_types_is_nearest_to_itself(name: str, lengths: tuple[int, int]):
    assert turn2_type(*lengths) == name


def test_the_nine_types_have_only_seven_ratios_of_input_to_output():
    assert len(TURN2_TYPES) == 9
    assert len({n_in / n_out for n_in, n_out in TURN2_TYPES.values()}) == 7


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((1, 1), "tiny"), ((0, 0), "tiny"), ((40, 300), "short_gen"), ((5000, 20), "huge_paste"), ((90, 90), "small_bal")],
)
def test_other_lengths_take_the_type_nearest_in_the_logarithms(lengths: tuple[int, int], expected: str):
    assert turn2_type(*lengths) == expected


@given(n_in=st.integers(0, 200_000), n_out=st.integers(0, 50_000))
def test_no_type_is_nearer_than_the_one_chosen(n_in, n_out):
    def distance(name):
        wanted = TURN2_TYPES[name]
        return (log(wanted[0]) - log(max(n_in, 1))) ** 2 + (log(wanted[1]) - log(max(n_out, 1))) ** 2

    assert distance(turn2_type(n_in, n_out)) <= min(map(distance, TURN2_TYPES)) + 1e-12


@pytest.mark.parametrize("level", QPS_LEVELS)
def test_a_level_of_two_turn_conversations_is_met_at_twice_as_many_turns(level: float):
    table = PaperTable({CellKey(LARGE, "mid_bal", q): TRADE_OFF for q in QPS_LEVELS})
    assert table.choose(turn_of(replace_qps(HERE, level)), 1, 1)[2] == f"large/mid_bal/{level:g}"


def replace_qps(key: CellKey, qps: float) -> CellKey:
    return key._replace(qps=qps)


@pytest.mark.parametrize(("turns_per_s", "level"), [(0.0, "0.5"), (9.9, "4"), (10.1, "6"), (28.1, "16"), (900.0, "20")])
def test_between_levels_the_nearest_counts(turns_per_s: float, level: str):
    table = PaperTable({CellKey(LARGE, "mid_bal", q): TRADE_OFF for q in QPS_LEVELS})
    assert table.choose(replace(turn_of(HERE), qps=turns_per_s), 1, 1)[2] == f"large/mid_bal/{level}"


@pytest.mark.parametrize(
    ("weights", "local"), [((1, 1), True), ((1, 2.4), True), ((1, 2.6), False), ((0, 1), False), ((1, 0), True)]
)
def test_a_trade_off_is_decided_by_equation_1(weights: tuple[float, float], local: bool):
    assert PaperTable({HERE: TRADE_OFF}).choose(turn_of(HERE), *weights) == (local, Reason.SCORE, "large/mid_bal/4")


def test_a_score_of_zero_is_not_local():
    assert PaperTable({HERE: replace(TRADE_OFF, delta_tpot=0.5)}).choose(turn_of(HERE), 1, 1)[0] is False


@pytest.mark.parametrize("deltas", [(-0.1, 0.1), (0.0, 0.0), (-0.1, 0.0), (0.0, 0.1)])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_where_local_gains_nothing_there_is_no_trade_off(deltas: tuple[float, float], weights: tuple[float, float]):
    cell = replace(TRADE_OFF, delta_ttft=deltas[0], delta_tpot=deltas[1])
    assert PaperTable({HERE: cell}).choose(turn_of(HERE), *weights)[:2] == (False, Reason.LOCAL_SLOWER)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("success_x1", [0.0, 0.94, 1.0])
def test_where_the_transfers_failed_the_cell_is_local_whatever_the_weights(weights, success_x1):
    cell = PaperCell(-0.9, 0.9, 0.94, success_x1, 10, 10)
    assert PaperTable({HERE: cell}).choose(turn_of(HERE), *weights)[:2] == (True, Reason.X0_FAILED)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_where_only_the_local_runs_failed_the_cell_is_not_local_whatever_the_weights(weights):
    cell = PaperCell(0.9, -0.9, 0.95, 0.9499, 10, 10)
    assert PaperTable({HERE: cell}).choose(turn_of(HERE), *weights)[:2] == (False, Reason.X1_FAILED)


def test_95_answered_turns_of_100_are_enough_on_either_side():
    cell = replace(TRADE_OFF, success_x0=SUCCESS_FLOOR, success_x1=SUCCESS_FLOOR)
    assert PaperTable({HERE: cell}).choose(turn_of(HERE), 1, 1)[:2] == (True, Reason.SCORE)
    unmeasured = replace(cell, delta_ttft=None)
    assert PaperTable({HERE: unmeasured}).choose(turn_of(HERE), 1, 1)[1] is Reason.NO_DATA


def test_an_arm_that_failed_without_one_answer_has_no_deltas_and_needs_none():
    nothing = PaperCell(None, None, 0.0, 1.0, 0, 300)
    assert PaperTable({HERE: nothing}).choose(turn_of(HERE), 1, 1)[:2] == (True, Reason.X0_FAILED)
    nothing = PaperCell(None, None, 1.0, 0.0, 300, 0)
    assert PaperTable({HERE: nothing}).choose(turn_of(HERE), 1, 1)[:2] == (False, Reason.X1_FAILED)


def test_without_the_cell_the_nearest_level_of_the_same_class_and_type_stands_in():
    table = PaperTable({HERE._replace(qps=q): TRADE_OFF for q in (1, 10)})
    assert table.choose(turn_of(HERE), 1, 1)[2] == "large/mid_bal/10"  # 4 is 2.5 times nearer to 10 than 4 times to 1
    assert table.choose(turn_of(HERE._replace(qps=2)), 1, 1)[2] == "large/mid_bal/1"


def test_without_the_class_the_nearest_class_of_the_same_type_stands_in():
    table = PaperTable({CellKey(SMALL, "mid_bal", 4): TRADE_OFF, CellKey(LARGE, "mid_paste", 4): TRADE_OFF})
    assert table.choose(turn_of(HERE), 1, 1)[2] == "small/mid_bal/4"
    table = PaperTable({CellKey(SMALL, "mid_bal", 4): TRADE_OFF, CellKey(LARGE, "mid_bal", 20): TRADE_OFF})
    assert table.choose(turn_of(CellKey(HUGE, "mid_bal", 4)), 1, 1)[2] == "large/mid_bal/20"


@pytest.mark.parametrize(
    "cell",
    [
        PaperCell(0.5, 0.2, 1.0, 1.0, 0, 0),
        PaperCell(None, 0.2, 1.0, 1.0, 5, 5),
        PaperCell(0.5, None, 1.0, 1.0, 5, 5),
    ],
)
def test_a_cell_without_samples_or_without_a_delta_is_as_good_as_none(cell: PaperCell):
    assert PaperTable({HERE: cell}).choose(turn_of(HERE), 1, 1) == (False, Reason.NO_DATA, "large/mid_bal/4")
    both = PaperTable({HERE: cell, HERE._replace(qps=12): TRADE_OFF})
    assert both.choose(turn_of(HERE), 1, 1)[2] == "large/mid_bal/12"


@pytest.mark.parametrize("cells", [{}, {CellKey(LARGE, "tiny", 4): TRADE_OFF}])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_without_any_cell_of_the_type_the_turn_takes_the_traditional_route(cells, weights):
    assert PaperTable(cells).choose(turn_of(HERE), *weights) == (False, Reason.NO_DATA, "large/mid_bal/4")


deltas = st.one_of(st.none(), st.floats(-2, 2))
cells = st.dictionaries(
    st.builds(
        CellKey, st.sampled_from(ContextClass), st.sampled_from(sorted(TURN2_TYPES)[:2]), st.sampled_from(QPS_LEVELS)
    ),
    st.builds(PaperCell, deltas, deltas, st.floats(0, 1), st.floats(0, 1), st.integers(0, 3), st.integers(0, 3)),
    max_size=12,
)


@given(
    cells=cells,
    n_ctx=st.integers(0, 20_000),
    turn2=st.sampled_from(sorted(TURN2_TYPES)[:3]),
    qps=st.floats(0, 60),
    weights=st.sampled_from(WEIGHTS),
)
def test_whatever_was_measured_there_is_an_answer_with_a_reason(cells, n_ctx, turn2, qps, weights):
    n_in, n_out = TURN2_TYPES[turn2]
    turn = features(n_ctx=n_ctx, n_in=n_in, n_out=n_out, qps=qps)
    local, reason, name = PaperTable(cells).choose(turn, *weights)
    if reason is Reason.NO_DATA:
        assert not local
        return
    used = next(key for key in cells if str(key) == name)
    assert used.turn2 == turn2
    assert (
        local
        is {
            Reason.X0_FAILED: True,
            Reason.X1_FAILED: False,
            Reason.LOCAL_SLOWER: False,
            Reason.SCORE: local,
        }[reason]
    )


@pytest.mark.parametrize("artefact", shipped(), ids=lambda a: f"{a.origin.model} {a.origin.topology}")
def test_at_the_ends_of_the_weights_every_shipped_trade_off_cell_goes_one_way(artefact):
    found = as_tables([artefact])
    table = found[artefact.key].paper
    assert table is not None
    trade_offs = 0
    for key, cell in table.cells.items():
        failed = min(cell.success_x0, cell.success_x1) < SUCCESS_FLOOR
        if failed or not (cell.delta_ttft and cell.delta_tpot and cell.delta_ttft > 0 and cell.delta_tpot > 0):
            continue
        trade_offs += 1
        turn = turn_of(key, model=artefact.key.model, topology=artefact.key.topology)
        for pair, route in (((0, 1), Route.PREFILL_TRANSFER), ((1, 0), Route.APPEND_LOCAL)):
            decision = decide(Policy(1, found, Weights(*pair), mode="paper"), turn, 0.5)
            assert (decision.route, decision.reason, decision.cell) == (route, Reason.SCORE, str(key))
    assert trade_offs > 50


def test_the_decision_names_the_cell_it_came_from():
    policy = Policy(
        1, {TableKey(MODEL, TOPOLOGY): tables(paper=PaperTable({HERE: TRADE_OFF}))}, Weights(1, 1), mode="paper"
    )
    decision = decide(policy, turn_of(HERE), 0.5)
    assert (decision.route, decision.reason, decision.cell) == (Route.APPEND_LOCAL, Reason.SCORE, "large/mid_bal/4")
    assert (decision.saved_ms, decision.cost) == (None, None)
