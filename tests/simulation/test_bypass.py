"""Traffic that goes past the router: less is believed wrongly, and no less is attained."""

from __future__ import annotations

import pytest

from tests.simulation.bypass import ARMS, CASES, Result, run

pytestmark = pytest.mark.simulation

SEED = 0


@pytest.fixture(scope="module", params=["chat", "rag"])
def arms(request) -> dict[str, Result]:
    return {arm: run(CASES[request.param], arm, SEED) for arm in ARMS}


def test_what_engines_find_and_say_corrects_most_of_what_the_books_get_wrong(arms):
    assert arms["books"].misses >= 15, arms
    assert arms["learned"].misses < arms["books"].misses, arms
    assert arms["usage"].misses < 0.25 * arms["books"].misses, arms


def test_events_leave_only_what_is_evicted_while_a_turn_waits(arms):
    assert arms["events"].misses <= 2, arms


def test_knowing_better_attains_more_where_memory_is_scarce(arms):
    assert arms["usage"].attainment > arms["books"].attainment + 0.05, arms
    assert arms["usage"].attainment > arms["events"].attainment - 0.05, arms
