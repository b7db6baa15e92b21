"""The same seeds give the same bytes, in one process or in several."""

from __future__ import annotations

import pytest

from emulator.workload import AGENT, Phase
from trimtab.demo import as_json, run_all
from trimtab.runs import Outcome
from trimtab.scenarios import H1, Scenario

pytestmark = pytest.mark.simulation

SHORT = Scenario(
    "short",
    "Short: agents, one prefill node out and back",
    H1.profile,
    H1.topology,
    (
        Phase("agents", 40.0, ((AGENT, 0.9),)),
        Phase("one P out", 40.0, ((AGENT, 0.6),), out=("P1",)),
        Phase("agents again", 40.0, ((AGENT, 0.9),)),
    ),
    H1.slos,
    settle_s=10.0,
)
POLICIES = ("paper_table", "dynamo")


def outcome(jobs: int, *seeds: int) -> Outcome:
    return run_all(SHORT, seeds, jobs, lambda done, total: None, POLICIES)


def test_the_same_seeds_give_the_same_json_whatever_the_number_of_processes():
    one = outcome(1, 0, 1)
    first = as_json(one, "c", "h")
    assert as_json(one, "c", "h") == first
    assert as_json(outcome(1, 0, 1), "c", "h") == first
    two = outcome(2, 0, 1)
    assert as_json(two, "c", "h") == first
    assert two == one, "the ticks too"


def test_other_seeds_give_other_numbers():
    assert as_json(outcome(1, 0), "c", "h") != as_json(outcome(1, 1), "c", "h")
