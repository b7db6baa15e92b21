"""Workloads by name: the paper's eighteen, nine more, the mixes and the stand-ins."""

import numpy as np
import pytest

from router.paper_table import ContextClass
from trimtab.workloads import PAPER_WORKLOADS, WORKLOADS, Workload, grid, mix_named


def test_the_papers_grid_is_eighteen_workloads_of_two_fixed_turns():
    assert len(PAPER_WORKLOADS) == 18 and {w.first for w in PAPER_WORKLOADS.values()} == {(128, 128), (1024, 1024)}
    first, later = PAPER_WORKLOADS["large/huge_paste"].mix().draw(np.random.default_rng(1))
    assert (first.new_tokens, first.output_tokens, later.new_tokens, later.output_tokens) == (1024, 1024, 1024, 32)


def test_nine_more_begin_with_a_long_turn_for_the_third_context_class():
    more = [workload for name, workload in WORKLOADS.items() if name not in PAPER_WORKLOADS]
    assert len(more) == 9 and {w.first for w in more} == {(8192, 512)}
    assert {w.context for w in more} == {ContextClass.HUGE}
    assert {w.context for w in PAPER_WORKLOADS.values()} == {ContextClass.SMALL, ContextClass.LARGE}


def test_the_grid_is_every_workload_at_every_level():
    cells = list(grid())
    assert len(cells) == len(set(cells)) == 270
    assert cells[0] == (WORKLOADS["small/tiny"], 0.5) and cells[-1] == (WORKLOADS["huge/huge_paste"], 20)


def test_a_workload_knows_its_name():
    assert [workload.name for workload in WORKLOADS.values()] == list(WORKLOADS)
    assert Workload((5, 6), "tiny").name == "(5, 6)/tiny"


def test_mixes_stand_ins_and_workloads_are_found_by_name():
    assert mix_named("agent").name == "agent" and mix_named("wildchat").name == "wildchat"
    assert mix_named("small/tiny") == WORKLOADS["small/tiny"].mix()
    with pytest.raises(ValueError, match="did you mean agent"):
        mix_named("agents")
