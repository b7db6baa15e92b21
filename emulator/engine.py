"""One emulated engine in virtual time: continuous batching, chunked prefill, prefix cache, KV admission.

Work is first come, first served. A step takes every running sequence (one token each) and, with what is left
of the token budget, prompt chunks in order of arrival. Between two events the decode-only steps form an
arithmetic series (each reads `batch` more tokens of context than the one before), so a stretch of them is one
event with a closed-form end: time per run grows with events, not with tokens. What arrives during a stretch
joins at the next step boundary, as in the real engine.

Three kinds of job: *prefill* (a P node's leg: compute the prompt, keep it under a lease), *full* (prompt and
answer here), *receive* (the prompt's KV is pulled from a P node as soon as there is memory for it, then the
answer here).

Memory for prompt and whole answer is reserved at admission. With `preempts` it is taken token by token as in
vLLM V1: where the running sequences need more than there is, the last admitted request gives way, joins the head
of the queue and computes its prompt and what it had said again; nobody is admitted at that boundary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf, sqrt

from .events import Events
from .prefix_cache import Grant, PrefixCache, Prompt, prompt_tokens
from .profiles import EngineProfile, StepTime


class Kind(StrEnum):
    """What an engine is asked to do with a prompt."""

    PREFILL = "prefill"
    FULL = "full"
    RECEIVE = "receive"


@dataclass(slots=True, eq=False)
class Job:
    """One request on one engine. Callbacks get the time in seconds at which the caller sees the event."""

    request_id: str
    kind: Kind
    prompt: Prompt
    output_tokens: int
    on_first: Callable[[Job, float], None] | None
    on_done: Callable[[Job, float], None]
    on_failed: Callable[[Job, float], None]
    transfer: Callable[[Job, Callable[[bool], None]], None] | None = None
    """RECEIVE: fetches the `left` tokens that this node lacks; calls back with whether they arrived."""
    on_token: Callable[[float], None] | None = None
    """Each token after the first, at the time it is seen: for whoever follows `Engine.on_stretch` (pace.py)."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    grant: Grant | None = None
    left: int = 0
    """Prompt tokens still to compute."""
    stall_ms: float | None = None
    """RECEIVE: what taking it in costs the step that it joins; None: the profile's own."""
    made: int = 0
    """Tokens of the answer that were out when it last gave way: they are computed again as part of the prompt."""
    preemptions: int = 0
    admitted: int = 0
    """Its place in the order in which the batch was joined: the last gives way first."""
    entered_step: int = -1
    """The engine's count of steps when it began to decode, -1 while it does not; it had then made `entered_made`
    tokens over `entered_context` tokens of KV."""
    entered_made: int = 0
    entered_context: int = 0
    ended: bool = False
    streaming: bool = False
    """The first token is out."""
    muted: bool = False
    """The client left or has been told of a failure: no callback follows."""
    session: str | None = None
    """Whose it is, as its client says: repeated in KV events."""
    poisoned: bool = False
    """What it received was not its prompt's KV."""
    queued_s: float = 0.0
    """When the scheduler got it."""
    scheduled_s: float = 0.0
    """When it was admitted; RECEIVE: when it joined the batch."""

    @property
    def known(self) -> Prompt:
        """The prompt, and what was said before it gave way."""
        if not self.made:
            return self.prompt
        key, tokens = self.prompt[-1]
        return (*self.prompt[:-1], (key, tokens + self.made))


@dataclass(slots=True)
class Stretch:
    """`steps` equal-batch steps that began at `start_s`; only a decode-only stretch has more than one."""

    start_s: float
    steps: int
    base_ms: float
    read_ms: float
    """Context read of the first step."""
    growth_ms: float
    """Context read that each step adds to the next."""
    chunks: list[tuple[Job, int]] = field(default_factory=list)
    grown: int = 1
    """Steps whose memory has been taken; of use where the engine preempts."""

    def end_s(self, steps: int) -> float:
        """When that many of its steps are done."""
        reads = steps * self.read_ms + self.growth_ms * (steps * (steps - 1) / 2)
        return self.start_s + (steps * self.base_ms + reads) / 1e3

    def boundary_after(self, now_s: float) -> int:
        """The first number of whole steps whose end is not before `now_s`."""
        elapsed_ms = (now_s - self.start_s) * 1e3
        first = self.base_ms + self.read_ms
        half = self.growth_ms / 2
        if half > 0:
            slope = first - half
            guess = (sqrt(slope * slope + 4 * half * elapsed_ms) - slope) / (2 * half)
        else:
            guess = elapsed_ms / first
        steps = min(max(1, int(guess)), self.steps)
        while steps > 1 and self.end_s(steps - 1) >= now_s:
            steps -= 1
        while steps < self.steps and self.end_s(steps) < now_s:
            steps += 1
        return steps


class Engine:
    """A node of the fleet. `submit` is its HTTP front, `kill` and `revive` are its process."""

    def __init__(self, name: str, profile: EngineProfile, events: Events) -> None:
        self.name = name
        self.profile = profile
        self.cache = PrefixCache(profile.kv_capacity_tokens, profile.block_tokens)
        self.alive = True
        self.recomputes = False
        """Whether a prompt whose KV did not come is computed here; else its request fails."""
        self.epoch = 0
        """Counts process starts: what an earlier process held is gone."""
        self.busy_s = 0.0
        self.steps_done = 0
        self.slowdown = 1.0
        """Every step takes that many times as long."""
        self.preemptions = 0
        self.on_stretch: Callable[[Stretch, list[Job]], None] | None = None
        """Told of each stretch as it begins, and of the jobs that get a token at the end of every step of it.

        Its `steps` may shrink while it runs, but only to a boundary that is not past.
        """
        self._events = events
        self._time = StepTime(profile)
        self._waiting: deque[Job] = deque()
        self._chunking: list[Job] = []
        self._running: list[tuple[int, int, Job]] = []
        self._first_pending: list[Job] = []
        self._arrived: list[Job] = []
        # Dicts as sets that keep their order: a run must not depend on where objects lie in memory.
        self._loading: dict[Job, None] = {}
        self._fronting: dict[Job, None] = {}
        self._context_tokens = 0
        self._stretch: Stretch | None = None
        self._plan = 0
        self._order = 0
        self._admissions = 0
        self._aborted = False

    # -- the front -------------------------------------------------------------------------------------------

    def submit(self, job: Job, arrived_s: float | None = None) -> None:
        """Take a request. It reaches the scheduler after the front's time, counted from `arrived_s` (default: now)."""
        if not self.alive:
            self._events.after(0.0, self._fail, job)
            return
        job.prompt_tokens = prompt_tokens(job.prompt)
        p = self.profile
        self._settle()
        if job.kind is Kind.RECEIVE:
            front_ms = p.link.hop_ms
        else:
            front_ms = p.front_ms + p.tokenise_ms_per_token * (job.prompt_tokens - self.cache.hit_tokens(job.prompt))
        self._fronting[job] = None
        since_s = self._events.now_s if arrived_s is None else arrived_s
        self._events.at(since_s + front_ms / 1e3, self._enqueue, job, self.epoch)

    def abort(self, job: Job) -> None:
        """The client left: no callback follows.

        Memory is free at the next step boundary; if the KV is on its way, at the first after it has arrived.
        """
        job.muted = True
        if job.ended:
            return
        job.ended = True
        self._aborted = True
        if self._stretch is not None:
            self._cut_short()
        elif self.alive:
            self._boundary()

    def kill(self) -> None:
        """The process dies: every request on it fails, its cache is lost."""
        if not self.alive:
            return
        self.alive = False
        jobs = [*self._waiting, *self._chunking, *(job for _, _, job in self._by_order())]
        jobs += [*self._arrived, *self._loading, *self._fronting]
        self._waiting.clear()
        self._chunking.clear()
        self._running.clear()
        self._first_pending.clear()
        self._arrived.clear()
        self._loading.clear()
        self._fronting.clear()
        self._context_tokens = 0
        self._stretch = None
        self._plan += 1
        self.epoch += 1
        self.cache.clear()
        for job in jobs:
            self._fail(job)

    def revive(self) -> None:
        """A new, empty process."""
        self.alive = True

    def slow(self, factor: float) -> None:
        """From the next step on, steps take `factor` times as long; 1 ends it."""
        if not 0 < factor < inf:
            raise ValueError(f"{self.name}: a slowdown is a finite factor above 0, got {factor}")
        self.slowdown = factor
        if self._stretch is not None:
            self._cut_short()

    # -- what /metrics would say -----------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences in prefill or decode."""
        return len(self._running) + len(self._chunking)

    @property
    def decoding(self) -> int:
        """Sequences that get a token from every step."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that the scheduler has not admitted, or whose KV is on the way."""
        return len(self._waiting) + len(self._loading) + len(self._arrived)

    @property
    def fetching(self) -> tuple[int, int, int]:
        """Requests whose KV is to come: not begun for want of memory, on the way, arrived but not in the batch."""
        to_start = sum(job.kind is Kind.RECEIVE for job in self._waiting)
        return to_start, len(self._loading), len(self._arrived)

    @property
    def kv_usage(self) -> float:
        """Share of the KV memory held by running requests and leases, 0..1 (idle cached blocks are free)."""
        self._settle()
        return self.cache.in_use_tokens / self.cache.capacity_tokens

    # -- the scheduler ---------------------------------------------------------------------------------------

    def _enqueue(self, job: Job, epoch: int) -> None:
        self._fronting.pop(job, None)
        if job.ended or epoch != self.epoch:
            return
        job.queued_s = self._events.now_s
        self._settle()
        self._waiting.append(job)
        if job.kind is Kind.RECEIVE and len(self._waiting) == 1:
            # A transfer needs memory, not a step: it starts at once if there is room, joins when it arrived.
            self._admit()
            if self.profile.preempts:  # what it took, the running stretch was counting on
                self._cut_short()
        if self._waiting:
            self._wake()

    def _received(self, job: Job, epoch: int, ok: bool) -> None:
        if epoch != self.epoch:
            return
        self._loading.pop(job, None)
        if ok:
            self._arrived.append(job)
        elif self.recomputes and not job.ended:
            job.kind = Kind.FULL
            self._chunking.append(job)
        else:
            self._settle()
            self._free(job)
            self._fail(job)
        self._wake()

    def _wake(self) -> None:
        if self._stretch is None:
            self._boundary()
        else:
            self._cut_short()

    def _cut_short(self) -> None:
        stretch = self._stretch
        if stretch is None or stretch.steps == 1:
            return
        steps = stretch.boundary_after(self._events.now_s)
        if steps < stretch.steps:
            stretch.steps = steps
            self._schedule(stretch)

    def _schedule(self, stretch: Stretch) -> None:
        self._plan += 1
        self._events.at(stretch.end_s(stretch.steps), self._end_of_stretch, self._plan)

    def _end_of_stretch(self, plan: int) -> None:
        if plan == self._plan:
            self._boundary()

    def _boundary(self) -> None:
        """Between two steps: account for the stretch that ended, then compose the next one."""
        now = self._events.now_s
        stretch = self._stretch
        finished: list[tuple[Job, bool]] = []
        if stretch is not None:
            self._stretch = None
            self.busy_s += now - stretch.start_s
            self.steps_done += stretch.steps
            self._take_memory(stretch, stretch.steps)
            self._context_tokens += len(self._running) * stretch.steps
        if self._aborted:
            self._aborted = False
            self._drop_aborted()
        if stretch is not None:
            self._finish(finished, stretch)
        stall_ms = self._join_received()
        gave_way = self.profile.preempts and self._make_room()
        if not gave_way or not (self._running or self._chunking):  # a step without work takes no time
            self._admit()
        # Compose before callbacks run: what they submit meets a busy engine, as it would over a network.
        self._compose(now, stall_ms, gave_way)
        seen_s = now + self.profile.first_token_ms / 1e3
        for job, last in finished:
            if job.muted:  # by an earlier callback
                if job.kind is Kind.PREFILL:
                    self.let_go(job)
                continue
            if not last:
                if job.on_first is not None:
                    job.on_first(job, seen_s)
            else:
                job.on_done(job, now if job.kind is Kind.PREFILL else seen_s)

    def _finish(self, finished: list[tuple[Job, bool]], stretch: Stretch) -> None:
        for job in self._first_pending:
            job.streaming = True
            finished.append((job, False))
        self._first_pending.clear()
        running = self._running
        while running and running[0][0] <= self.steps_done:
            _, _, job = heappop(running)
            self._context_tokens -= self._context(job)
            self._complete(job)
            finished.append((job, True))
        for job, new in stretch.chunks:
            if job.ended:  # aborted
                continue
            job.left -= new
            if job.left > 0:
                continue
            self._chunking.remove(job)
            if job.kind is Kind.PREFILL:
                job.ended = True  # its memory stays until the lease ends: let_go()
                assert job.grant is not None
                self.cache.hold(job.grant)
                finished.append((job, True))
                continue
            if not job.streaming:
                job.streaming = True
                finished.append((job, False))
            if job.output_tokens == job.made + 1:
                self._complete(job)
                finished.append((job, True))
            else:
                self._run(job, job.made + 1)

    def _run(self, job: Job, made: int) -> None:
        """The sequence decodes from the next step on; `made` tokens of its answer are out."""
        job.entered_step = self.steps_done
        job.entered_made = made
        job.entered_context = job.prompt_tokens + job.made
        self._order += 1
        heappush(self._running, (self.steps_done + job.output_tokens - made, self._order, job))
        self._context_tokens += job.entered_context

    def _join_received(self) -> float:
        stall_ms = 0.0
        for job in self._arrived:
            if job.ended:
                self._free(job)
                continue
            stall_ms += self.profile.link.receive_stall_ms if job.stall_ms is None else job.stall_ms
            job.scheduled_s = self._events.now_s
            self._number(job)
            self._first_pending.append(job)
            self._run(job, 0)
        self._arrived.clear()
        return stall_ms

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting:
            job = waiting[0]
            if job.ended:
                waiting.popleft()
                continue
            if self.running + len(self._loading) + len(self._arrived) >= self.profile.max_sequences:
                return
            try:
                left, ahead = job.output_tokens - job.made, not self.profile.preempts
                grant = self.cache.admit(job.known, left, ahead=ahead, session=job.session)
            except ValueError:
                waiting.popleft()
                self._events.after(0.0, self._fail, job)
                continue
            if grant is None:
                return
            waiting.popleft()
            job.grant = grant
            if not job.preemptions:
                job.scheduled_s = self._events.now_s
                job.cached_tokens = grant.hit_tokens
            job.left = job.prompt_tokens + job.made - grant.hit_tokens
            self._number(job)
            if job.kind is Kind.RECEIVE and not job.preemptions:
                assert job.transfer is not None
                self._loading[job] = None
                job.transfer(job, partial(self._received, job, self.epoch))
            else:
                self._chunking.append(job)

    def _compose(self, now_s: float, stall_ms: float, gave_way: bool) -> None:
        batch = len(self._running)
        chunks: list[tuple[Job, int]] = []
        if self._chunking:
            budget = self.profile.token_budget - batch
            for job in self._chunking:
                if budget <= 0:
                    break
                new = min(job.left, budget)
                budget -= new
                chunks.append((job, new))
        if chunks:
            sizes = [(new, job.prompt_tokens + job.made - job.left) for job, new in chunks]
            base = self._time.mixed_ms(batch, self._context_tokens, sizes, stall_ms) * self.slowdown
            stretch = Stretch(now_s, 1, base, 0.0, 0.0, chunks)
        elif batch:
            # After somebody gave way the queue is looked at again at the next boundary.
            steps = 1 if self._first_pending or gave_way else self._running[0][0] - self.steps_done
            if steps > 1 and self.profile.preempts:
                steps = min(steps, 1 + self.cache.available_tokens // batch)
            kv = self._time.kv_read * self.slowdown
            base = (self._time.decode_base_ms(batch) + stall_ms) * self.slowdown
            stretch = Stretch(now_s, steps, base, kv * self._context_tokens, kv * batch)
        else:
            return
        self._stretch = stretch
        self._schedule(stretch)
        if self.on_stretch is not None:
            self.on_stretch(stretch, [job for _, _, job in self._running if job.streaming])

    def _drop_aborted(self) -> None:
        self._waiting = deque(job for job in self._waiting if not job.ended)
        for job in [job for job in self._chunking if job.ended]:
            self._chunking.remove(job)
            self._free(job)
        for _, _, job in self._by_order():
            if job.ended:
                self._context_tokens -= self._context(job)
                self._free(job)
        self._running = [entry for entry in self._running if not entry[2].ended]
        heapify(self._running)

    def _by_order(self) -> list[tuple[int, int, Job]]:
        """Running sequences in the order in which they began to decode."""
        return sorted(self._running, key=lambda entry: entry[1])

    def _context(self, job: Job) -> int:
        """Tokens of KV that a decoding sequence has now, between two steps."""
        return job.entered_context + self.steps_done - job.entered_step

    def _number(self, job: Job) -> None:
        self._admissions += 1
        job.admitted = self._admissions

    # -- memory ----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take the memory of the steps that have begun by now: the closed form takes a stretch's at its end."""
        stretch = self._stretch
        if stretch is not None and stretch.steps > stretch.grown and self.profile.preempts:
            self._take_memory(stretch, stretch.boundary_after(self._events.now_s))

    def _take_memory(self, stretch: Stretch, steps: int) -> None:
        if self.profile.preempts and steps > stretch.grown:
            self.cache.grow(len(self._running) * (steps - stretch.grown))
            stretch.grown = steps

    def _make_room(self) -> bool:
        """Memory for one token of each running sequence; whether somebody had to give way for it."""
        running, chunking = self._running, self._chunking
        gave_way = False
        while running and self.cache.available_tokens < len(running):
            self._preempt(max([*chunking, *(job for _, _, job in running)], key=lambda job: job.admitted))
            running, gave_way = self._running, True
        self.cache.grow(len(running))
        return gave_way

    def _preempt(self, job: Job) -> None:
        """Back to the head of the queue; what it had said is computed again."""
        self.preemptions += 1
        job.preemptions += 1
        if job in self._chunking:
            self._chunking.remove(job)
            self._free(job)
        else:
            self._context_tokens -= self._context(job)
            self._running = [entry for entry in self._running if entry[2] is not job]
            heapify(self._running)
            job.made = job.entered_made + self.steps_done - job.entered_step
            if job in self._first_pending:
                self._first_pending.remove(job)
            self._release(job, self._kept(job, job.made))
            job.entered_step = -1
        self._waiting.appendleft(job)

    def _complete(self, job: Job) -> None:
        job.ended = True
        self._release(job, self._kept(job, job.output_tokens))

    def _free(self, job: Job) -> None:
        if job.grant is not None:
            self._release(job, ())

    def _kept(self, job: Job, made: int) -> Prompt:
        """What stays cached when `made` tokens of the answer are out, of which the last has no KV yet."""
        if not self.profile.reuse_responses or made < 1:
            return job.prompt
        key, tokens = job.prompt[-1]
        return (*job.prompt[:-1], (key, tokens + made - 1))

    def _release(self, job: Job, kept: Prompt) -> None:
        assert job.grant is not None
        if self.profile.preempts and job.entered_step >= 0:  # it has grown by a token a step
            job.grant.reserved_tokens += self.steps_done - job.entered_step
        self.cache.release(job.grant, kept)
        job.grant = None

    def let_go(self, job: Job) -> None:
        """The lease of a prefilled prompt ended (read, or expired): its KV becomes ordinary cache."""
        if job.grant is not None:
            self._settle()
            self.cache.release(job.grant, job.prompt)
            job.grant = None
            if self._waiting:
                self._wake()

    def _fail(self, job: Job) -> None:
        if job.ended:
            return
        job.ended = job.muted = True
        job.grant = None
        job.on_failed(job, self._events.now_s)
