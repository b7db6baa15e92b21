"""When two SLOs mean the same."""

from dataclasses import replace

import pytest

from slos.allowance import Budget, Method
from slos.objective import Condition, Match, Signal, Slo
from slos.revisions import revision, revisions

TTFT = Slo("a", Signal.TTFT, 0.99, 2.0)


def test_the_revision_of_a_meaning_never_changes():
    # Stored budgets are found by it: a change of this value is a change of everybody's history.
    assert revision(TTFT) == "5f62099104ae"


def test_the_same_counts_fill_another_budget():
    for budget in (Budget(over_s=7 * 86_400.0), Budget(method=Method.SLICES), Budget(min_samples=50)):
        assert revision(replace(TTFT, budget=budget)) == revision(TTFT)


def test_name_place_words_and_labels_are_no_part_of_the_meaning():
    reworded = replace(TTFT, name="b", line=9, description="for people", labels=(("team", "x"),))
    assert revision(reworded) == revision(TTFT)


@pytest.mark.parametrize(
    "changed",
    [
        replace(TTFT, signal=Signal.E2E),
        replace(TTFT, objective=0.95),
        replace(TTFT, threshold_s=1.0),
        replace(TTFT, match=Match(("llama-*",))),
        replace(TTFT, match=Match(turn_min=2)),
        replace(TTFT, match=Match(streaming=True)),
        replace(TTFT, match=Match(classes=("gold",))),
        replace(TTFT, match=Match(tenants=("gold",))),
        replace(TTFT, match=Match(asked=False)),
        Slo("a", Signal.GOODPUT, 0.99, None, conditions=(Condition(Signal.TTFT, 2.0),)),
    ],
)
def test_everything_else_is(changed: Slo):
    assert revision(changed) != revision(TTFT)


def test_a_declaration_has_one_for_each_name():
    assert revisions((TTFT, replace(TTFT, name="b"))) == {"a": revision(TTFT), "b": revision(TTFT)}
