"""The engine's stretches, heap and incremental sums against a plain engine that steps through every token."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.engine import Kind
from emulator.profiles import LLAMA_3_1_8B_H100, LLAMA_3_1_70B_H100_TP4, EngineProfile
from tests.emulator.oracle import Emulation, Oracle, Path, Seen, Task, emulate, serve

TOLERANCE_S = 1e-6
TIGHT = replace(LLAMA_3_1_8B_H100, kv_capacity_tokens=1500, token_budget=96, max_sequences=6)


def compare(profile: EngineProfile, tasks: list[Task]) -> tuple[Emulation, Oracle]:
    """Run both engines, demand equal results and an engine at rest; return both for further questions."""
    expected, oracle = serve(profile, tasks)
    emulation = emulate(profile, tasks)
    assert emulation.seen.keys() == expected.keys()
    for name, want in expected.items():
        got = emulation.seen[name]
        assert got == Seen(
            near(want.first_s, got.first_s), near(want.last_s, got.last_s), want.cached_tokens, want.failed
        ), f"{name}: the oracle says {want}"
    engine = emulation.engine
    assert engine.steps_done == oracle.steps
    assert engine.cache.evicted_tokens == oracle.cache.evicted
    assert engine.cache.resident_tokens == sum(oracle.cache.tokens.values())
    assert (engine.running, engine.waiting, engine.cache.in_use_tokens) == (0, 0, 0)
    return emulation, oracle


def near(want: float | None, got: float | None) -> float | None:
    """`got` if it is as good as `want`."""
    return got if want is not None and got is not None and abs(want - got) <= TOLERANCE_S else want


def conversations(
    rng: random.Random,
    *,
    count: int,
    turns: int,
    new: tuple[int, int],
    output: tuple[int, int],
    spread_s: float,
    system_tokens: int = 0,
    kinds: tuple[Kind, ...] = (Kind.FULL, Kind.PREFILL, Kind.RECEIVE),
    aborts: float = 0.0,
) -> list[Task]:
    """Conversations of several turns of which each waits for the one before; some talk below one system prompt."""
    tasks: list[Task] = []
    for c in range(count):
        system: Path = (("system", system_tokens),) if system_tokens and rng.random() < 0.7 else ()
        context, before = 0, None
        for t in range(rng.randint(1, turns)):
            kind = rng.choice(kinds)
            tokens = rng.choice([1, rng.randint(*output)]) if rng.random() < 0.3 else rng.randint(*output)
            tokens = 1 if kind is Kind.PREFILL else tokens
            context += rng.randint(*new)
            leaves = rng.random() < aborts
            tasks.append(
                Task(
                    f"c{c}.{t}",
                    kind,
                    (*system, (f"c{c}", context)),
                    tokens,
                    rng.uniform(0, spread_s) if before is None else rng.uniform(0, spread_s / 4),
                    follows=before,
                    pull_ms=rng.uniform(1, 60),
                    hold_s=rng.uniform(0.01, 0.5),
                    abort_s=rng.uniform(0, 0.6) if leaves else None,
                )
            )
            before = f"c{c}.{t}"
            context += tokens if rng.random() < 0.9 else -context // 2  # now and then an earlier turn is edited
            context = max(context, 0)
    return tasks


@pytest.mark.parametrize("seed", range(60))
def test_tight_memory_makes_both_engines_wait_evict_and_reuse_alike(seed):
    tasks = conversations(
        random.Random(seed), count=40, turns=5, new=(1, 250), output=(1, 90), spread_s=4, system_tokens=70
    )
    emulation, oracle = compare(TIGHT, tasks)
    assert oracle.waits > 5 and oracle.cache.evicted > 100 and oracle.chunked > 5
    assert sum(view.cached_tokens or 0 for view in emulation.seen.values()) > 100


@pytest.mark.parametrize("profile", [LLAMA_3_1_8B_H100, LLAMA_3_1_70B_H100_TP4], ids=lambda p: p.model)
def test_long_contexts_and_prompts_beyond_the_token_budget_agree(profile):
    profile = replace(profile, kv_capacity_tokens=120_000)
    tasks = conversations(
        random.Random(7),
        count=40,
        turns=4,
        new=(20, 22_000),
        output=(1, 300),
        spread_s=30,
        system_tokens=3000,
    )
    _, oracle = compare(profile, tasks)
    assert oracle.waits > 0 and oracle.cache.evicted > 0 and oracle.chunked > 0


def test_a_wide_batch_agrees():
    tasks = conversations(
        random.Random(3), count=300, turns=2, new=(5, 400), output=(20, 200), spread_s=2, kinds=(Kind.FULL,)
    )
    compare(LLAMA_3_1_8B_H100, tasks)


def test_a_node_that_keeps_no_answers_agrees():
    profile = replace(TIGHT, reuse_responses=False, block_tokens=1)
    tasks = conversations(random.Random(11), count=8, turns=4, new=(1, 120), output=(1, 60), spread_s=2)
    compare(profile, tasks)


def test_requests_that_can_never_fit_fail_and_hold_up_nobody():
    tasks = [
        Task("before", Kind.FULL, (("a", 900),), 40, 0.0),
        Task("too long", Kind.FULL, (("b", 1000),), 501, 0.01),
        Task("just fits", Kind.FULL, (("c", 1000),), 500, 0.02),
        Task("too long to receive", Kind.RECEIVE, (("d", 1600),), 1, 0.021),
        Task("after", Kind.FULL, (("e", 10),), 5, 0.03),
    ]
    emulation, _ = compare(TIGHT, tasks)
    failed = {name for name, view in emulation.seen.items() if view.failed}
    assert failed == {"too long", "too long to receive"}


@pytest.mark.parametrize("seed", range(40))
def test_clients_that_leave_change_nothing_else(seed):
    tasks = conversations(
        random.Random(100 + seed),
        count=40,
        turns=3,
        new=(1, 250),
        output=(1, 90),
        spread_s=4,
        system_tokens=40,
        aborts=0.35,
    )
    emulation, _ = compare(TIGHT, tasks)
    assert sum(view.last_s is None and not view.failed for view in emulation.seen.values()) >= 5


def test_the_same_tasks_give_the_same_times_to_the_last_bit():
    def once() -> dict[str, Seen]:
        tasks = conversations(random.Random(5), count=12, turns=3, new=(1, 200), output=(1, 80), spread_s=1, aborts=0.2)
        return emulate(TIGHT, tasks).seen

    assert once() == once()


def test_twice_the_output_takes_hardly_more_events():
    def events(output: int) -> int:
        tasks = [Task(f"t{n}", Kind.FULL, ((f"t{n}", 300 + n),), output, 0.1371 * n) for n in range(200)]
        return emulate(LLAMA_3_1_8B_H100, tasks).events_run

    short, long = events(500), events(1000)
    assert abs(long - short) <= 0.05 * short
    assert long < 8 * 200


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_running_out_of_memory_makes_the_same_requests_give_way(seed, reuse):
    tasks = conversations(
        random.Random(300 + seed), count=40, turns=4, new=(1, 200), output=(20, 300), spread_s=3, system_tokens=40
    )
    emulation, oracle = compare(replace(TIGHT, preempts=True, reuse_responses=reuse), tasks)
    assert emulation.engine.preemptions == oracle.gave_way > 3


@pytest.mark.parametrize("seed", range(15))
def test_clients_that_leave_while_memory_runs_out_change_nothing_else(seed):
    tasks = conversations(
        random.Random(500 + seed), count=40, turns=3, new=(1, 200), output=(20, 300), spread_s=3, aborts=0.35
    )
    emulation, oracle = compare(replace(TIGHT, preempts=True), tasks)
    assert emulation.engine.preemptions == oracle.gave_way > 0


@st.composite
def workloads(draw) -> tuple[EngineProfile, list[Task]]:
    """A small engine and up to six conversations on it; nothing happens at two places at exactly one time."""
    block = draw(st.sampled_from([1, 4, 16]))
    sequences = draw(st.integers(1, 6))
    profile = replace(
        draw(st.sampled_from([LLAMA_3_1_8B_H100, LLAMA_3_1_70B_H100_TP4])),
        block_tokens=block,
        kv_capacity_tokens=draw(st.integers(60, 900)),
        max_sequences=sequences,
        token_budget=sequences + draw(st.integers(0, 150)),
        reuse_responses=draw(st.booleans()),
        preempts=draw(st.booleans()),
    )
    tasks: list[Task] = []
    for c in range(draw(st.integers(1, 6))):
        shape = draw(st.sampled_from(["one segment", "below a system prompt", "a message each"]))
        path: list[tuple[str, int]] = [] if shape == "one segment" else [("system", 37)]
        before = None
        for t in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(list(Kind)))
            new, output = draw(st.integers(1, 200)), draw(st.integers(1, 60))
            output = 1 if kind is Kind.PREFILL else output
            if shape == "a message each" or t == 0:
                path.append((f"c{c}.{t}", new))
            else:
                path[-1] = (path[-1][0], path[-1][1] + new)
            jitter_s = len(tasks) * 1.37e-5
            leaves_ms = draw(st.none() | st.integers(0, 300))
            tasks.append(
                Task(
                    f"c{c}.{t}",
                    kind,
                    tuple(path),
                    output,
                    draw(st.integers(0, 400)) / 1e3 + jitter_s,
                    follows=before,
                    pull_ms=draw(st.integers(1, 80)) + jitter_s * 1e3,
                    hold_s=draw(st.integers(1, 400)) / 1e3 + jitter_s,
                    abort_s=None if leaves_ms is None else leaves_ms / 1e3 + jitter_s,
                )
            )
            before = f"c{c}.{t}"
            path[-1] = (path[-1][0], path[-1][1] + output)
    return profile, tasks


@settings(max_examples=600)
@given(workloads())
def test_any_small_workload_agrees(workload):
    compare(*workload)
