"""A second engine to judge the first by: one loop iteration per engine step, every sequence advanced token by token.

Written from the words of emulator/engine.py, prefix_cache.py and profiles.py, not from their code, and as plainly as
possible: lists instead of heaps, sums instead of series, searches instead of bookkeeping. Slow, and meant to be.

`Task` says what is asked of the engine, `Seen` what its caller sees. `serve` runs tasks through the oracle and
`emulate` runs the same tasks through emulator.engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from emulator.engine import Engine, Job, Kind
from emulator.events import Events
from emulator.profiles import EngineProfile

Path = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Task:
    """One request. `start_s` counts from time 0, or from the last token of the task named `follows`."""

    name: str
    kind: Kind
    prompt: Path
    output_tokens: int
    start_s: float
    follows: str | None = None
    pull_ms: float = 0.0
    """RECEIVE: the transfer takes this, and a microsecond for every token pulled."""
    hold_s: float = 0.0
    """PREFILL: how long the lease lasts."""
    abort_s: float | None = None
    """The client leaves this long after it sent the request."""

    def pull_s(self, tokens: int) -> float:
        return self.pull_ms / 1e3 + tokens * 1e-6


@dataclass
class Seen:
    """What the caller of one task saw; times in seconds. `cached_tokens` comes with the end of the answer."""

    first_s: float | None = None
    last_s: float | None = None
    cached_tokens: int | None = None
    failed: bool = False


# -- memory --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Hold:
    """What one admitted request keeps from others: cached tokens by segment, and room that is not filled yet."""

    cached: dict[str, int]
    room: int
    hit: int


class PlainCache:
    """Segments in a dict, recency in a list (least recent first), every total summed when it is asked for."""

    def __init__(self, capacity: int, block: int) -> None:
        self.capacity = capacity
        self.block = block
        self.tokens: dict[str, int] = {}
        self.recency: list[str] = []
        self.holds: list[Hold] = []
        self.evicted = 0

    def hit(self, prompt: Path) -> int:
        length = sum(tokens for _, tokens in prompt)
        found = 0
        for key, tokens in prompt:
            found += min(tokens, self.tokens.get(key, 0))
            if self.tokens.get(key, 0) < tokens:
                break
        found = min(found, length - 1)
        return found // self.block * self.block

    def idle(self, key: str) -> int:
        return self.tokens[key] - max((hold.cached.get(key, 0) for hold in self.holds), default=0)

    def free(self) -> int:
        return self.capacity - sum(self.tokens.values()) - sum(hold.room for hold in self.holds)

    def available(self) -> int:
        return self.free() + sum(self.idle(key) for key in self.tokens)

    def admit(self, prompt: Path, output: int) -> Hold | None:
        hit = self.hit(prompt)
        hold = Hold({}, sum(tokens for _, tokens in prompt) - hit + output, hit)
        position = 0
        for key, tokens in prompt:
            inside = min(hit - position, tokens)
            if inside > 0:
                hold.cached[key] = inside
            position += tokens
        before = self.free()
        self.holds.append(hold)
        if before + sum(self.idle(key) for key in self.tokens) < hold.room:
            self.holds.remove(hold)
            return None
        self.squeeze()
        return hold

    def squeeze(self) -> None:
        while self.free() < 0:
            key = next(key for key in self.recency if self.idle(key) > 0)
            drop = min(self.idle(key), -self.free())
            self.tokens[key] -= drop
            self.evicted += drop
            if self.tokens[key] == 0:
                del self.tokens[key]
                self.recency.remove(key)

    def computed(self, hold: Hold, prompt: Path) -> None:
        hold.room -= sum(tokens for _, tokens in prompt) - hold.hit
        hold.cached = dict(prompt)
        for key, tokens in prompt:
            if key not in self.recency:
                self.recency.append(key)
            self.tokens[key] = max(self.tokens.get(key, 0), tokens)

    def end(self, hold: Hold, kept: Path) -> None:
        self.holds.remove(hold)
        for key in [*reversed(hold.cached), *(key for key, _ in reversed(kept))]:
            if key in self.recency:
                self.recency.remove(key)
            self.recency.append(key)
        for key, tokens in kept:
            self.tokens[key] = max(self.tokens.get(key, 0), tokens)


# -- the engine ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Live:
    task: Task
    prompt_tokens: int
    left: int = 0
    made: int = 0
    redo: int = 0
    """Tokens of the answer that are to be computed again."""
    hold: Hold | None = None
    first_hit: int | None = None
    again: bool = False
    """It gave way once: what it had received is gone, so it computes its prompt itself."""
    joined: int = 0
    aborted: bool = False
    over: bool = False


@dataclass
class Oracle:
    """One node, one life. `outside` holds what happens to it from without: (time, number, action)."""

    profile: EngineProfile
    tasks: Sequence[Task]
    now_s: float = 0.0
    seen: dict[str, Seen] = field(default_factory=dict)
    outside: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    scheduled: int = 0
    steps: int = 0
    waits: int = 0
    """Step boundaries at which the head of the queue found no room."""
    gave_way: int = 0
    joins: int = 0
    chunked: int = 0
    """Chunks that left a part of their prompt for a later step."""
    waiting: list[Live] = field(default_factory=list)
    prefilling: list[Live] = field(default_factory=list)
    decoding: list[Live] = field(default_factory=list)
    loading: list[Live] = field(default_factory=list)
    arrived: list[Live] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = PlainCache(self.profile.kv_capacity_tokens, self.profile.block_tokens)

    def run(self) -> dict[str, Seen]:
        for task in self.tasks:
            if task.follows is None:
                self.later(task.start_s, self.send, task)
        while True:
            stall_ms = self.between_steps()
            if not self.step(stall_ms):
                if not self.outside:
                    return self.seen
                self.happen()

    # What happens outside ---------------------------------------------------------------------------------

    def later(self, at_s: float, action: Callable[..., None], *args: object) -> None:
        self.scheduled += 1
        self.outside.append((at_s, self.scheduled, lambda: action(*args)))

    def happen(self) -> None:
        """Let the next thing outside happen."""
        soonest = min(self.outside, key=lambda entry: entry[:2])
        self.outside.remove(soonest)
        self.now_s = soonest[0]
        soonest[2]()

    def send(self, task: Task) -> None:
        p = self.profile
        live = Live(task, sum(tokens for _, tokens in task.prompt))
        self.seen[task.name] = Seen()
        if task.kind is Kind.RECEIVE:
            front_ms = p.link.hop_ms
        else:
            uncached = live.prompt_tokens - self.cache.hit(task.prompt)
            front_ms = p.front_ms + p.tokenise_ms_per_token * uncached
        self.later(self.now_s + front_ms / 1e3, self.queue, live)
        if task.abort_s is not None:
            self.later(self.now_s + task.abort_s, self.leave, live)

    def queue(self, live: Live) -> None:
        if live.aborted:
            return
        self.waiting.append(live)
        if live.task.kind is Kind.RECEIVE and self.waiting == [live]:
            self.admit()

    def leave(self, live: Live) -> None:
        live.aborted = not live.over

    def arrive(self, live: Live) -> None:
        self.loading.remove(live)
        self.arrived.append(live)

    # Between steps ----------------------------------------------------------------------------------------

    def between_steps(self) -> float:
        self.drop_aborted(self.waiting, self.prefilling, self.decoding)
        self.drop_aborted(self.arrived)
        stall_ms = self.profile.link.receive_stall_ms * len(self.arrived)
        for live in self.arrived:
            self.join(live)
        self.decoding += self.arrived
        self.arrived.clear()
        if not self.make_room() or not (self.decoding or self.prefilling):
            self.admit()
        self.waits += bool(self.waiting)
        return stall_ms

    def drop_aborted(self, *groups: list[Live]) -> None:
        for group in groups:
            for gone in [live for live in group if live.aborted]:
                group.remove(gone)
                if gone.hold is not None:
                    self.cache.end(gone.hold, ())

    def join(self, live: Live) -> None:
        self.joins += 1
        live.joined = self.joins

    def make_room(self) -> bool:
        """vLLM's way: a slot for each decoding sequence, and the last to have joined gives way for it."""
        before = self.gave_way
        if self.profile.preempts:
            while self.decoding and self.cache.available() < len(self.decoding):
                self.preempt(max(self.prefilling + self.decoding, key=lambda live: live.joined))
            for live in self.decoding:
                assert live.hold is not None
                live.hold.room += 1
            self.cache.squeeze()
        return self.gave_way > before

    def preempt(self, live: Live) -> None:
        self.gave_way += 1
        assert live.hold is not None
        if live in self.prefilling:
            self.prefilling.remove(live)
            self.cache.end(live.hold, ())
        else:
            self.decoding.remove(live)
            live.redo = live.made
            self.cache.end(live.hold, self.kept(live, live.made))
        live.hold, live.again = None, True
        self.waiting.insert(0, live)

    def kept(self, live: Live, made: int) -> Path:
        """The last token's KV is never computed."""
        more = made - 1 if self.profile.reuse_responses and made else 0
        *head, (key, tokens) = live.task.prompt
        return (*head, (key, tokens + more))

    def admit(self) -> None:
        while self.waiting:
            head = self.waiting[0]
            task = head.task
            inside = self.prefilling + self.decoding + self.loading + self.arrived
            if len(inside) >= self.profile.max_sequences:
                return
            if head.prompt_tokens + task.output_tokens > self.cache.capacity:
                self.waiting.remove(head)
                self.seen[task.name].failed = True
                continue
            *path, (key, tokens) = task.prompt
            room = 0 if self.profile.preempts else task.output_tokens
            hold = self.cache.admit((*path, (key, tokens + head.redo)), room)
            if hold is None:
                return
            self.waiting.remove(head)
            head.hold = hold
            head.left = head.prompt_tokens + head.redo - hold.hit
            if not head.again:
                head.first_hit = hold.hit
            self.join(head)
            if task.kind is Kind.RECEIVE and not head.again:
                self.loading.append(head)
                self.later(self.now_s + task.pull_s(head.left), self.arrive, head)
            else:
                self.prefilling.append(head)

    # One step ---------------------------------------------------------------------------------------------

    def step(self, stall_ms: float) -> bool:
        p = self.profile
        budget = p.token_budget - len(self.decoding)
        chunks: list[tuple[Live, int]] = []
        for live in self.prefilling:
            new = min(live.left, budget)
            if new > 0:
                chunks.append((live, new))
                budget -= new
        if not chunks and not self.decoding:
            return False

        ms = linear_ms(p, len(self.decoding) + sum(new for _, new in chunks)) + p.step_fixed_ms + stall_ms
        for live in self.decoding:
            # The first token of a full job is made by its last chunk and has no KV before the next step.
            context = live.prompt_tokens + live.made - (live.task.kind is Kind.FULL or live.again)
            ms += p.per_sequence_ms + context * p.kv_read_ms_per_token
        for live, new in chunks:
            computed = live.prompt_tokens + live.redo - live.left
            ms += p.per_sequence_ms + p.attention_ms_per_token2 * new * (computed + new / 2)
            self.chunked += new < live.left
        self.steps += 1
        end_s = self.now_s + ms / 1e3
        while self.outside and min(entry[0] for entry in self.outside) <= end_s:
            self.happen()
        self.now_s = end_s

        self.drop_aborted(self.waiting, self.prefilling, self.decoding)
        for live in list(self.decoding):
            self.token(live)
        for live, new in chunks:
            live.left -= new
            if live.left == 0 and not live.aborted:
                self.prefilling.remove(live)
                if live.task.kind is Kind.PREFILL:
                    self.prefilled(live)
                else:
                    self.decoding.append(live)
                    self.token(live)
        return True

    def token(self, live: Live) -> None:
        task = live.task
        visible_s = self.now_s + self.profile.first_token_ms / 1e3
        live.made += 1
        if live.made == 1:
            self.seen[task.name].first_s = visible_s
        if live.made == task.output_tokens:
            self.decoding.remove(live)
            self.finish(live, visible_s)
            assert live.hold is not None
            self.cache.end(live.hold, self.kept(live, live.made))

    def prefilled(self, live: Live) -> None:
        assert live.hold is not None
        self.cache.computed(live.hold, live.task.prompt)
        self.finish(live, self.now_s)
        self.later(self.now_s + live.task.hold_s, self.cache.end, live.hold, live.task.prompt)

    def finish(self, live: Live, visible_s: float) -> None:
        live.over = True
        view = self.seen[live.task.name]
        view.last_s, view.cached_tokens = visible_s, live.first_hit
        for task in self.tasks:
            if task.follows == live.task.name:
                self.later(visible_s + task.start_s, self.send, task)


def linear_ms(profile: EngineProfile, tokens: int) -> float:
    """The table between its points; its last slope beyond them."""
    points = profile.linear_ms
    if tokens <= points[0][0]:
        return points[0][1]
    for (t0, ms0), (t1, ms1) in pairwise(points):
        if tokens <= t1 or t1 == points[-1][0]:
            return ms0 + (ms1 - ms0) / (t1 - t0) * (tokens - t0)
    raise AssertionError("unreachable")


def serve(profile: EngineProfile, tasks: Sequence[Task]) -> tuple[dict[str, Seen], Oracle]:
    """Run tasks through the oracle."""
    oracle = Oracle(profile, tasks)
    return oracle.run(), oracle


# -- the engine under test -----------------------------------------------------------------------------------


@dataclass
class Emulation:
    """What `emulate` gives: what the callers saw, the engine afterwards, and the events that it took."""

    seen: dict[str, Seen]
    engine: Engine
    events_run: int


def emulate(
    profile: EngineProfile,
    tasks: Sequence[Task],
    before_abort: Callable[[Engine, Job], None] = lambda engine, job: None,
    until_s: float = 1e6,
) -> Emulation:
    """Run tasks through emulator.engine; `before_abort` may look at a job and its engine before its client leaves."""
    events = Events()
    engine = Engine("E0", profile, events)
    seen: dict[str, Seen] = {}
    left: set[str] = set()

    def send(task: Task) -> None:
        view = seen[task.name] = Seen()

        def first(job: Job, at_s: float) -> None:
            assert view == Seen() and task.name not in left
            view.first_s = at_s

        def done(job: Job, at_s: float) -> None:
            assert view.last_s is None and not view.failed and task.name not in left
            view.last_s = at_s
            view.cached_tokens = job.cached_tokens
            if task.kind is Kind.PREFILL:
                events.after(task.hold_s, engine.let_go, job)
            for other in tasks:
                if other.follows == task.name:
                    events.at(at_s + other.start_s, send, other)

        def failed(job: Job, at_s: float) -> None:
            assert view.last_s is None and not view.failed and task.name not in left
            view.failed = True

        job = Job(task.name, task.kind, task.prompt, task.output_tokens, first, done, failed)
        job.transfer = lambda job, arrived: events.after(task.pull_s(job.left), arrived, True)
        engine.submit(job)
        if task.abort_s is not None:
            events.after(task.abort_s, leave, task, job)

    def leave(task: Task, job: Job) -> None:
        before_abort(engine, job)
        left.add(task.name)
        engine.abort(job)

    for task in tasks:
        if task.follows is None:
            events.at(task.start_s, send, task)
    ran = events.run(until_s)
    return Emulation(seen, engine, ran)
