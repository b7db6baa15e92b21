"""Traffic: the same from one seed, at the declared rates, inside the declared bounds."""

from __future__ import annotations

from statistics import mean, median

import numpy as np
import pytest

from emulator.workload import (
    AGENT,
    CHAT,
    INGEST,
    MAX_CONTEXT_TOKENS,
    MIXES,
    PASTE,
    RAG,
    LogNormal,
    Mix,
    Phase,
    TurnPlan,
    conversations,
    fixed,
    two_turn,
)

DAY = (
    Phase("morning", 300, ((CHAT, 2.0), (AGENT, 0.5))),
    Phase("noon", 200, ((RAG, 1.0),), out=("D0",)),
    Phase("night", 100, ((CHAT, 0.0), (PASTE, 0.3))),
)


def test_one_seed_gives_the_same_traffic_every_time():
    first = conversations(DAY, np.random.default_rng([7, 0]))
    assert first == conversations(DAY, np.random.default_rng([7, 0]))
    assert first != conversations(DAY, np.random.default_rng([8, 0]))


def test_conversations_start_in_order_inside_their_phase_and_have_names_of_their_own():
    plans = conversations(DAY, np.random.default_rng(1))
    starts = [plan.start_s for plan in plans]
    assert starts == sorted(starts) and starts[0] > 0 and starts[-1] < 600
    assert len({plan.name for plan in plans}) == len(plans)
    for plan in plans:
        mix = plan.name.rsplit("-", 1)[0]
        begin_s, end_s = {"chat": (0, 300), "agent": (0, 300), "rag": (300, 500), "paste": (500, 600)}[mix]
        assert begin_s <= plan.start_s < end_s


def test_arrivals_are_poisson_at_the_declared_rates():
    plans = conversations((Phase("long", 10_000, ((INGEST, 2.0), (CHAT, 0.5))),), np.random.default_rng(3))
    starts = {name: [p.start_s for p in plans if p.name.startswith(name)] for name in ("ingest", "chat")}
    assert len(starts["ingest"]) == pytest.approx(20_000, rel=0.03)
    assert len(starts["chat"]) == pytest.approx(5_000, rel=0.06)
    gaps = np.diff(starts["ingest"])
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)


def test_a_rate_of_zero_brings_nobody():
    assert conversations((Phase("quiet", 100, ((CHAT, 0.0),)),), np.random.default_rng(1)) == []
    assert conversations((), np.random.default_rng(1)) == []


def test_a_log_normal_has_its_median_and_stays_inside_its_bounds():
    length = LogNormal(350, 1.25, 4, 8000)
    rng = np.random.default_rng(5)
    drawn = [length.draw(rng) for _ in range(5000)]
    assert median(drawn) == pytest.approx(350, rel=0.08)
    assert min(drawn) >= 4 and max(drawn) == 8000
    assert LogNormal(100, 2, 50, 60).draw(rng) in (50, 60)


def test_a_constant_is_one():
    rng = np.random.default_rng(5)
    assert {fixed(16).draw(rng) for _ in range(10)} == {16}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_every_mix_keeps_its_bounds(mix):
    rng = np.random.default_rng(11)
    for _ in range(300):
        turns = mix.draw(rng)
        assert 1 <= len(turns) <= mix.turns_high
        assert sum(turn.new_tokens + turn.output_tokens for turn in turns[1:]) <= MAX_CONTEXT_TOKENS
        assert mix.first.low <= turns[0].new_tokens <= mix.first.high and turns[0].think_s == 0
        for number, turn in enumerate(turns):
            output = mix.later_output if number and mix.later_output is not None else mix.output
            assert output.low <= turn.output_tokens <= output.high
            if number:
                assert any(later.low <= turn.new_tokens <= later.high for _, later in mix.later)
                assert mix.think_s.low <= turn.think_s <= mix.think_s.high


def test_turns_are_geometric_and_clipped():
    rng = np.random.default_rng(13)
    counts = [len(CHAT.draw(rng)) for _ in range(4000)]
    assert min(counts) == 2 and max(counts) <= 16
    clipped = [min(max(int(n), 2), 16) for n in rng.geometric(1 / 4.2, 4000)]
    assert mean(counts) == pytest.approx(mean(clipped), rel=0.05)


def test_alternatives_come_in_their_shares():
    mix = Mix("m", fixed(10), ((0.92, fixed(1)), (0.08, fixed(2))), fixed(5), fixed(0), 9, 5, 9)
    rng = np.random.default_rng(17)
    later = [turn.new_tokens for _ in range(1500) for turn in mix.draw(rng)[1:]]
    assert later.count(2) / len(later) == pytest.approx(0.08, abs=0.015)
    assert later.count(1) + later.count(2) == len(later)


def test_a_conversation_ends_before_it_outgrows_the_model_but_keeps_its_first_turn():
    long = Mix("long", fixed(50_000), ((1.0, fixed(30_000)),), fixed(100), fixed(0), 20, 10, 20)
    assert len(long.draw(np.random.default_rng(1))) == 3
    huge = Mix("huge", fixed(130_000), ((1.0, fixed(10)),), fixed(100), fixed(0), 20, 10, 20)
    assert len(huge.draw(np.random.default_rng(1))) == 1


def test_a_calibration_workload_is_two_turns_of_fixed_lengths():
    mix = two_turn("large/tiny", (1024, 1024), (16, 32), 5.0)
    for seed in range(20):
        assert mix.draw(np.random.default_rng(seed)) == (TurnPlan(1024, 1024, 0.0), TurnPlan(16, 32, 5.0))
