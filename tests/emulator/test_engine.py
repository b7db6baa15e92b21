"""One engine: times by hand, clients that leave at every point of a request's life, death, and unruly callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from emulator.engine import Engine, Job, Kind
from emulator.events import Events
from emulator.prefix_cache import Prompt
from emulator.profiles import LLAMA_3_1_8B_H100, EngineProfile
from tests.emulator.oracle import Task, emulate, serve

P = LLAMA_3_1_8B_H100
SMALL = replace(P, kv_capacity_tokens=1500, token_budget=64, max_sequences=4)


@dataclass
class Node:
    """An engine on its own clock, and a diary of its callbacks: (what, request, time)."""

    profile: EngineProfile = P
    events: Events = field(default_factory=Events)
    diary: list[tuple[str, str, float]] = field(default_factory=list)
    on: dict[tuple[str, str], Callable[[], object]] = field(default_factory=dict)
    """What a client does when it hears (what, request)."""

    def __post_init__(self) -> None:
        self.engine = Engine("E0", self.profile, self.events)

    def hear(self, what: str, job: Job, at_s: float) -> None:
        self.diary.append((what, job.request_id, at_s))
        self.on.get((what, job.request_id), lambda: None)()

    def send(self, name: str, prompt: Prompt | int, output: int, kind: Kind = Kind.FULL, pull_s: float = 0.05) -> Job:
        job = Job(
            name,
            kind,
            ((name, prompt),) if isinstance(prompt, int) else prompt,
            output,
            lambda job, at_s: self.hear("first", job, at_s),
            lambda job, at_s: self.hear("done", job, at_s),
            lambda job, at_s: self.hear("failed", job, at_s),
        )
        job.transfer = lambda job, arrived: self.events.after(pull_s, arrived, True)
        self.engine.submit(job)
        return job

    def run(self, for_s: float = 60.0) -> None:
        self.events.run(self.events.now_s + for_s)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(what, request) for what, request, _ in self.diary]

    @property
    def times_s(self) -> list[float]:
        return [at_s for _, _, at_s in self.diary]

    def heard(self, name: str) -> list[str]:
        return [what for what, request, _ in self.diary if request == name]


# -- times by hand -------------------------------------------------------------------------------------------


def test_a_full_request_takes_front_prefill_and_one_step_a_token():
    node = Node()
    node.send("a", 1024, 3)
    node.run()
    prefill_ms = 22.8 + 1024 * 512 * P.attention_ms_per_token2 + 1.3 + 0.06
    decode_ms = [6.4 + 1.3 + 0.06 + (1024 + k) * P.kv_read_ms_per_token for k in (0, 1)]
    first_s = (12 + 0.012 * 1024 + prefill_ms + 9) / 1e3
    assert node.told == [("first", "a"), ("done", "a")]
    assert node.times_s == pytest.approx([first_s, first_s + sum(decode_ms) / 1e3])


def test_an_append_pays_for_what_is_not_cached():
    node = Node()
    node.send("a", 1000, 24)
    node.run()
    start_s = node.events.now_s
    job = node.send("a", 1087, 1)
    node.run()
    assert job.cached_tokens == 1008  # 1,023 tokens are in the cache: all but the last of the answer
    prefill_ms = 8.11 + 0.1 * 7 / 24 + 79 * (1008 + 39.5) * P.attention_ms_per_token2 + 1.3 + 0.06
    assert node.diary[-1][2] - start_s == pytest.approx((12 + 0.012 * 79 + prefill_ms + 9) / 1e3)


def test_without_reuse_an_answer_is_computed_again():
    node = Node(replace(P, reuse_responses=False))
    node.send("a", 1000, 500)
    node.run()
    job = node.send("a", 1520, 1)
    node.run()
    assert job.cached_tokens == 992


def test_a_received_prompt_takes_hop_transfer_and_a_stalled_step_per_first_token():
    node = Node()
    node.send("a", 1000, 2, Kind.RECEIVE, pull_s=0.03)
    node.run()
    first_ms = 12 + 30 + 6.4 + 1.3 + 0.06 + 1000 * P.kv_read_ms_per_token + 0.5 + 9
    second_ms = 6.4 + 1.3 + 0.06 + 1001 * P.kv_read_ms_per_token
    assert node.told == [("first", "a"), ("done", "a")]
    assert node.times_s == pytest.approx([first_ms / 1e3, (first_ms + second_ms) / 1e3])


def test_a_prefill_leg_answers_when_its_step_ends_and_keeps_its_memory_until_let_go():
    node = Node()
    job = node.send("a", 1024, 1, Kind.PREFILL)
    node.run()
    prefill_ms = 22.8 + 1024 * 512 * P.attention_ms_per_token2 + 1.3 + 0.06
    assert node.told == [("done", "a")]
    assert node.times_s == pytest.approx([(12 + 0.012 * 1024 + prefill_ms) / 1e3])
    assert node.engine.cache.in_use_tokens == 1025
    assert node.engine.kv_usage == pytest.approx(1025 / 390_000)
    node.engine.let_go(job)
    node.engine.let_go(job)
    assert node.engine.kv_usage == 0
    assert node.engine.cache.hit_tokens((("a", 2000),)) == 1024


def test_a_prompt_beyond_the_token_budget_is_cut_into_steps_beside_the_decodes():
    node = Node(replace(P, token_budget=1025))
    node.send("talker", 10, 400)
    node.run(0.5)
    node.send("long", 3000, 1)
    before = node.engine.steps_done
    node.run(0.04)
    assert node.engine.steps_done == before  # it is in the front: the stretch of decodes goes on
    job = node.send("short", 5, 1)
    node.run(0.04)
    assert node.engine.running == 3 and job.left == 5  # it waits its turn behind the long one
    node.run()
    order = [request for what, request, _ in node.diary if what == "first"]
    assert order == ["talker", "long", "short"]
    (long_s,) = [at for what, request, at in node.diary if (what, request) == ("first", "long")]
    (short_s,) = [at for what, request, at in node.diary if (what, request) == ("first", "short")]
    assert short_s == long_s  # the last of three chunks, 3,000 - 2 x 1,024 tokens, leaves room for both


def test_more_requests_than_the_engine_takes_wait_in_order():
    node = Node(SMALL)
    for n in range(6):
        node.send(f"r{n}", 10 + n, 50)
    node.run(0.1)
    assert (node.engine.running, node.engine.waiting) == (4, 2)
    node.run()
    assert [request for what, request, _ in node.diary if what == "done"] == [f"r{n}" for n in range(6)]
    assert (node.engine.running, node.engine.waiting, node.engine.kv_usage) == (0, 0, 0)


def test_a_transfer_starts_at_once_if_there_is_room_even_in_the_middle_of_a_step():
    node = Node(replace(P, kv_capacity_tokens=10_000))
    node.send("long", 8000, 2)
    node.run((12 + 0.012 * 8000 + 30) / 1e3)  # a step of 180 ms has begun
    node.send("pulled", 500, 2, Kind.RECEIVE, pull_s=0.01)
    node.run(0.013)
    assert node.engine.waiting == 1 and node.engine.cache.reserved_tokens == 8002 + 502
    node.run()
    assert node.heard("pulled") == ["first", "done"]


def test_a_transfer_does_not_overtake_one_who_waits_for_the_step_to_end():
    node = Node()
    node.send("long", 8000, 2)
    node.run((12 + 0.012 * 8000 + 30) / 1e3)
    node.send("waits", 10, 2)
    node.run(0.0125)
    node.send("pulled", 500, 2, Kind.RECEIVE, pull_s=0.01)
    node.run(0.013)
    assert node.engine.waiting == 2 and node.engine.cache.reserved_tokens == 8002
    node.run()
    assert node.heard("pulled") == node.heard("waits") == ["first", "done"]


@pytest.mark.parametrize(("prompt", "output"), [((), 5), (10, 0), (10, -3), ((("a", 0),), 5)])
def test_a_request_without_prompt_or_output_fails(prompt, output):
    node = Node()
    node.send("bad", prompt, output)
    node.send("good", 10, 5)
    node.run()
    assert node.heard("bad") == ["failed"]
    assert node.heard("good") == ["first", "done"]


def test_busy_time_and_steps_are_counted():
    node = Node()
    node.send("a", 100, 11)
    node.run(30)
    assert node.engine.steps_done == 11
    first_s, done_s = (at for _, _, at in node.diary)
    assert node.engine.busy_s == pytest.approx(done_s - (12 + 1.2 + 9) / 1e3)
    assert first_s < done_s


# -- clients that leave --------------------------------------------------------------------------------------


def in_front(engine: Engine, job: Job) -> bool:
    return job in engine._fronting


def waiting(engine: Engine, job: Job) -> bool:
    return job in engine._waiting


def between_chunks(engine: Engine, job: Job) -> bool:
    return job in engine._chunking and 0 < job.left < job.prompt_tokens


def loading(engine: Engine, job: Job) -> bool:
    return job in engine._loading


def before_its_first_token(engine: Engine, job: Job) -> bool:
    return job in engine._first_pending


def decoding(engine: Engine, job: Job) -> bool:
    return job.streaming and any(job is running for _, _, running in engine._running)


@pytest.mark.parametrize(
    ("phase", "kind", "sent_s", "abort_s"),
    [
        (in_front, Kind.FULL, 0.2, 0.005),
        (in_front, Kind.PREFILL, 0.2, 0.005),
        (in_front, Kind.RECEIVE, 0.2, 0.005),
        (waiting, Kind.FULL, 0.301, 0.1),
        (waiting, Kind.PREFILL, 0.301, 0.1),
        (waiting, Kind.RECEIVE, 0.301, 0.1),
        (between_chunks, Kind.FULL, 0.0, 0.05),
        (between_chunks, Kind.PREFILL, 0.0, 0.05),
        (loading, Kind.RECEIVE, 0.0, 0.03),
        (before_its_first_token, Kind.RECEIVE, 0.0, 0.118),
        (decoding, Kind.FULL, 0.0, 0.3),
        (decoding, Kind.RECEIVE, 0.0, 0.3),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_a_client_that_leaves_costs_nobody_else_a_token(phase, kind, sent_s, abort_s):
    tasks = [
        Task(
            "victim",
            kind,
            (("victim", 400),),
            1 if kind is Kind.PREFILL else 300,
            sent_s,
            abort_s=abort_s,
            pull_ms=100,
        ),
        Task("first", Kind.FULL, (("first", 333),), 200, 0.0131),
        Task("second", Kind.RECEIVE, (("second", 150),), 250, 0.0337, pull_ms=41),
        Task("crowd", Kind.FULL, (("crowd", 280),), 120, 0.2902),
        Task("late", Kind.FULL, (("late", 500),), 80, 1.1),
        Task("again", Kind.FULL, (("victim", 410),), 20, 2.5),
    ]
    seen_at_abort: list[bool] = []
    expected, oracle = serve(SMALL, tasks)
    got = emulate(SMALL, tasks, lambda engine, job: seen_at_abort.append(phase(engine, job)))

    assert seen_at_abort == [True]
    assert got.seen["victim"].last_s is None
    for name, want in expected.items():
        assert got.seen[name].cached_tokens == want.cached_tokens
        assert got.seen[name].last_s == (None if want.last_s is None else pytest.approx(want.last_s, abs=1e-6))
        assert got.seen[name].failed is False
    assert all(got.seen[task.name].last_s for task in tasks[1:])
    engine = got.engine
    assert (engine.running, engine.waiting, engine.kv_usage, engine.cache.reserved_tokens) == (0, 0, 0, 0)
    assert engine._context_tokens == 0 and engine.steps_done == oracle.steps


def test_a_client_that_leaves_frees_memory_at_the_next_step():
    node = Node(SMALL)
    job = node.send("big", 800, 600)
    node.run(0.1)
    node.send("next", 100, 50)
    node.run(1.0)
    assert (node.engine.running, node.engine.waiting) == (1, 1)
    node.engine.abort(job)
    node.run(0.012)
    assert (node.engine.running, node.engine.waiting) == (1, 0)
    node.run()
    assert node.heard("big") == ["first"] and node.heard("next") == ["first", "done"]


def test_one_who_leaves_the_queue_is_not_counted_as_waiting():
    node = Node(SMALL)
    node.send("big", 1000, 400)
    node.run(0.1)
    jobs = [node.send(f"w{n}", 300, 10) for n in range(3)]
    node.run(1.0)
    assert node.engine.waiting == 3
    node.engine.abort(jobs[1])
    node.run(0.012)
    assert node.engine.waiting == 2


def test_two_who_leave_in_one_step_are_let_go_in_the_order_in_which_they_began():
    node = Node(replace(P, kv_capacity_tokens=1000))
    for name in "ab":
        node.send(name, 160, 1)
        node.run()
    jobs = [node.send(name, 170, tokens) for name, tokens in (("a", 300), ("b", 100))]
    node.run(0.2)
    for job in jobs:
        node.engine.abort(job)
    node.run()
    node.send("big", 700, 1)
    node.run()
    hits = [node.engine.cache.hit_tokens(((name, 170),)) for name in "ab"]
    assert hits == [128, 160]  # 21 tokens had to go: from the one that was let go first
    assert jobs[0].streaming and jobs[1].streaming


def test_leaving_twice_or_after_the_end_does_nothing():
    node = Node()
    job = node.send("a", 100, 5)
    node.run(0.02)
    node.engine.abort(job)
    node.engine.abort(job)
    other = node.send("b", 100, 5)
    node.run()
    node.engine.abort(other)
    node.run()
    assert node.heard("a") == [] and node.heard("b") == ["first", "done"]
    assert node.engine.cache.in_use_tokens == 0


def test_a_prefilled_prompt_outlives_its_client_until_its_lease_ends():
    node = Node()
    job = node.send("a", 100, 1, Kind.PREFILL)
    node.run()
    node.engine.abort(job)
    node.run()
    assert node.engine.cache.in_use_tokens == 101
    node.engine.let_go(job)
    assert node.engine.cache.in_use_tokens == 0


def test_one_who_leaves_during_a_transfer_that_then_fails_hears_nothing():
    node = Node()
    job = node.send("pulled", 100, 5, Kind.RECEIVE)
    job.transfer = lambda job, arrived: node.events.after(0.02, arrived, False)
    node.run(0.02)
    assert node.engine.cache.in_use_tokens == 105
    node.engine.abort(job)
    node.run()
    assert node.heard("pulled") == [] and node.engine.cache.in_use_tokens == 0


def test_a_transfer_that_fails_fails_its_request_alone():
    node = Node()
    job = node.send("pulled", 100, 5, Kind.RECEIVE)
    job.transfer = lambda job, arrived: node.events.after(0.02, arrived, False)
    node.send("other", 50, 30)
    node.run()
    assert node.heard("pulled") == ["failed"] and node.heard("other") == ["first", "done"]
    assert node.engine.cache.in_use_tokens == 0


# -- callbacks that act on the engine ------------------------------------------------------------------------


def twins(node: Node) -> tuple[Job, Job]:
    """Two requests whose first tokens come out of one step."""
    blocker = node.send("blocker", 900, 1)
    node.run(0.013)
    pair = node.send("a", 20, 9), node.send("b", 20, 9)
    assert not blocker.ended
    return pair


def test_twins_hear_their_first_tokens_in_one_step():
    node = Node()
    twins(node)
    node.run()
    firsts = [at for what, request, at in node.diary if what == "first" and request in "ab"]
    assert firsts[0] == firsts[1]


def test_a_client_may_drop_a_hedged_request_on_the_first_token_of_its_twin():
    node = Node()
    _, b = twins(node)
    node.on["first", "a"] = lambda: node.engine.abort(b)
    node.run()
    assert node.heard("a") == ["first", "done"] and node.heard("b") == []
    assert node.engine.cache.in_use_tokens == 0


def test_a_client_may_leave_on_its_first_token_even_if_that_is_the_last():
    node = Node()
    job = node.send("a", 20, 1)
    node.on["first", "a"] = lambda: node.engine.abort(job)
    node.run()
    assert node.heard("a") == ["first"] and node.engine.cache.in_use_tokens == 0


def test_a_node_that_dies_of_a_callback_fails_the_others_once():
    node = Node()
    twins(node)
    node.on["first", "a"] = node.engine.kill
    node.run()
    assert node.heard("a") == ["first", "failed"] and node.heard("b") == ["failed"]


def test_a_prefill_leg_that_is_dropped_as_it_ends_leaves_no_lease():
    node = Node()
    blocker = node.send("blocker", 900, 1)
    node.run(0.013)
    node.send("a", 20, 1)
    leg = node.send("leg", 20, 1, Kind.PREFILL)
    node.on["first", "a"] = lambda: node.engine.abort(leg)
    node.run()
    assert blocker.ended and leg.ended
    assert node.heard("leg") == [] and node.engine.cache.in_use_tokens == 0


def test_what_a_callback_sends_is_served():
    node = Node()
    node.send("a", 20, 3)
    node.on["done", "a"] = lambda: node.send("a2", (("a", 30),), 3)
    node.on["failed", "x"] = lambda: node.send("y", 10, 1)
    node.send("x", 10, 0)
    node.run()
    assert node.heard("a2") == ["first", "done"] and node.heard("y") == ["first", "done"]


# -- death ---------------------------------------------------------------------------------------------------


def crowded() -> Node:
    """A node with requests in every phase, long before any of them ends."""
    node = Node(SMALL)
    node.send("decoding", 100, 300)
    node.run(0.2)
    node.send("loading", 100, 50, Kind.RECEIVE, pull_s=1.0)
    node.send("loading too", 100, 50, Kind.RECEIVE, pull_s=1.0)
    node.send("chunking", 600, 50)
    node.run(0.03)
    node.send("waiting", 900, 50)
    node.run(0.03)
    node.send("front", 200, 50)
    node.run(0.005)
    return node


def test_death_fails_every_request_once_whatever_it_was_doing():
    node = crowded()
    engine = node.engine
    state = (
        len(engine._running),
        len(engine._chunking),
        len(engine._loading),
        len(engine._waiting),
        len(engine._fronting),
    )
    assert state == (1, 1, 2, 1, 1)
    engine.kill()
    failed = [request for what, request, _ in node.diary if what == "failed"]
    assert sorted(failed) == ["chunking", "decoding", "front", "loading", "loading too", "waiting"]
    engine.kill()
    node.run()
    assert [what for what, _, _ in node.diary].count("failed") == 6
    assert (engine.running, engine.waiting, engine.kv_usage, engine.cache.resident_tokens) == (0, 0, 0, 0)


def test_those_who_fail_are_told_in_the_same_order_every_time():
    def order() -> list[str]:
        node = crowded()
        node.engine.kill()
        return [request for what, request, _ in node.diary if what == "failed"]

    assert order() == ["waiting", "chunking", "decoding", "loading", "loading too", "front"]
    assert order() == order()


def test_a_new_process_starts_empty_and_hears_nothing_of_the_old_one():
    node = crowded()
    node.engine.kill()
    node.engine.revive()
    heard = len(node.diary)
    again = node.send("again", (("decoding", 150),), 5)
    node.run()
    assert again.cached_tokens == 0
    assert [(what, request) for what, request, _ in node.diary[heard:]] == [
        ("first", "again"),
        ("done", "again"),
    ]
    assert node.engine.epoch == 1 and node.engine.cache.in_use_tokens == 0


def test_a_new_process_does_exactly_what_a_fresh_engine_does():
    node = crowded()
    node.engine.kill()
    node.engine.revive()
    start_s = node.events.now_s
    fresh = Node(SMALL)
    for each in (node, fresh):
        each.diary.clear()
        for n in range(6):
            each.send(f"r{n}", 150 + n, 40, Kind.RECEIVE if n % 2 else Kind.FULL)
        each.run()
    assert node.told == fresh.told and len(fresh.told) == 12
    assert node.times_s == pytest.approx([at_s + start_s for at_s in fresh.times_s])


def test_a_dead_node_refuses_and_a_lease_from_before_death_is_void():
    node = Node()
    leg = node.send("leg", 500, 1, Kind.PREFILL)
    node.run()
    node.engine.kill()
    node.send("refused", 10, 1)
    node.run()
    assert node.heard("refused") == ["failed"]
    node.engine.revive()
    node.engine.let_go(leg)
    assert node.engine.cache.resident_tokens == 0


def test_one_who_left_a_node_before_it_died_hears_nothing():
    node = crowded()
    job = node.send("gone", 10, 10)
    node.engine.abort(job)
    node.engine.kill()
    refused = node.send("gone too", 10, 10)
    node.engine.abort(refused)
    node.run()
    assert node.heard("gone") == [] and node.heard("gone too") == []


# -- the clock -----------------------------------------------------------------------------------------------


def test_events_run_in_order_of_time_and_ties_in_order_of_scheduling():
    events = Events()
    ran: list[str] = []
    for when, name in [(2.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "late")]:
        events.at(when, ran.append, name)
    assert events.run(5.0) == 3 and ran == ["a", "b", "c"]
    assert (events.now_s, events.pending) == (5.0, 1)
    events.at(1.0, ran.append, "past")
    events.after(4.0, ran.append, "last")
    events.at(2.0, lambda: ran.append(str(events.now_s)))
    assert events.run(9.0) == 4 and ran[3:] == ["past", "5.0", "late", "last"]


def test_an_event_may_schedule_another_for_now():
    events = Events()
    ran: list[float] = []
    events.at(1.0, lambda: events.after(0.0, ran.append, events.now_s))
    events.run(1.0)
    assert ran == [1.0]
