"""One request at one node, from the engine's callbacks to what the client and the counters see.

The engine says when the first token is seen and that the last was made; `pace.py` says when each one between is
seen. The text is known before (`script.py`). A turn that is over (told, failed, or its client gone) hears nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from ..engine import Job, Kind
from ..fleet import Call, Fleet, Reply, Request
from . import errors
from .bodies import Ask, Part
from .clock import WallClock
from .lag import Lag
from .metrics import Counts
from .replies import Usage
from .script import Script
from .stream import Stream, Teller
from .taint import Taint


class Host(Protocol):
    """The node that a turn is at."""

    name: str
    fleet: Fleet
    clock: WallClock
    lag: Lag
    counts: Counts
    taint: Taint

    @property
    def block_tokens(self) -> int: ...


class Turn:
    """A request with all its choices. `done` resolves when there is nothing more to say, or raises ApiError."""

    def __init__(
        self,
        host: Host,
        ask: Ask,
        base_id: str,
        arrived_s: float,
        params: Mapping[str, object] | None,
        session: str | None = None,
    ) -> None:
        self.host = host
        self.ask = ask
        self.params = params
        self.session = session
        self.arrived_s = arrived_s
        self.counts = host.counts
        self.stream: Stream | None = None
        self.over = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sequences = [
            Sequence(self, part, base_id if ask.chat else f"{base_id}-{number // ask.n}")
            for number, part in enumerate(ask.parts)
        ]
        self._left = len(self.sequences)

    def begin(self) -> None:
        """Give it to the engine. Inside `with clock`."""
        for sequence in self.sequences:
            sequence.begin()

    def abort(self) -> None:
        """The client left. Inside `with clock`."""
        self.over = True
        for sequence in self.sequences:
            sequence.abort()

    def ended(self, sequence: Sequence) -> Usage | None:
        """A sequence is complete; the turn's usage if it was the last."""
        self._left -= 1
        return self.usage() if not self._left else None

    def close(self) -> None:
        """The last token is told."""
        self.over = True
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: errors.ApiError) -> None:
        """The engine could not do it: the other choices stop too."""
        if self.over:
            return
        self.abort()
        if not self.done.done():
            self.done.set_exception(error)

    def usage(self) -> Usage:
        """Tokens of all choices; cached ones of the last prompt, in a stream of the first, as in vLLM."""
        told = self.sequences[0 if self.stream is not None else -1]
        reply, job = told.reply, told.job
        assert reply is not None
        created = reply.prompt_tokens // self.host.block_tokens * self.host.block_tokens - reply.cached_tokens
        created = 0 if job.kind is Kind.RECEIVE else max(0, created)
        return Usage(
            self.ask.prompt_tokens,
            sum(sequence.script.tokens for sequence in self.sequences),
            reply.cached_tokens,
            created if self.ask.chat else None,
        )


class Sequence:
    """One choice of a turn."""

    def __init__(self, turn: Turn, part: Part, request_id: str) -> None:
        self.turn = turn
        self.part = part
        self.script: Script = part.script
        self.reply: Reply | None = None
        self._request_id = request_id
        self._call: Call | None = None
        self._made = 0
        self._first_s = 0.0
        self._last_s = 0.0
        self._teller: Teller | None = None

    @property
    def job(self) -> Job:
        """What the engine made of it."""
        assert self._call is not None
        return self._call.job

    def begin(self) -> None:
        """Send it to the engine."""
        turn = self.turn
        self._call = turn.host.fleet.call(
            turn.host.name,
            Request(self._request_id, self.part.rendered.prompt, self.script.tokens, turn.params, turn.session),
            lambda at_s: turn.host.clock.events.at(at_s, self._token, at_s),
            self._done,
            self._failed,
            on_token=self._token,
            arrived_s=turn.arrived_s,
        )

    def abort(self) -> None:
        """Stop the work."""
        if self._call is not None:
            self._call.abort()

    def _done(self, at_s: float, reply: Reply) -> None:
        if self.turn.over:
            return
        self.reply = reply
        if self.job.kind is Kind.PREFILL:  # all that it has to say, at once
            while self._made < self.script.tokens and not self.turn.over:
                self._token(at_s)
        elif self._made == self.script.tokens:
            self._tell(at_s)

    def _failed(self, at_s: float, status: int) -> None:
        turn = self.turn
        if turn.over:
            return
        if self.job.kind is Kind.RECEIVE and self.job.scheduled_s:
            turn.counts.add("external_prefix_cache_queries_total", self.job.left)
            turn.counts.add("external_prefix_cache_hits_total", self.job.left)
        turn.counts.add("request_success_total", value="error")
        turn.fail(errors.internal(errors.ENGINE_DEAD) if status == 503 else errors.internal())

    def _token(self, at_s: float) -> None:
        turn = self.turn
        if turn.over:
            return
        self._made += 1
        turn.counts.generated += 1
        if self._made == 1:
            self._begin_answer(at_s)
        else:
            turn.counts.inter_token.observe((at_s - self._last_s) / turn.host.clock.speed)
        self._last_s = at_s
        if self._made < self.script.tokens:
            if self._teller is not None:
                self._teller.tell(self._made, None)
                turn.host.lag.note(turn.host.clock.late_s(at_s))
        elif self.reply is not None:
            self._tell(at_s)

    def _begin_answer(self, at_s: float) -> None:
        turn = self.turn
        self._first_s = at_s
        if turn.host.taint.taste(self.job):
            self.script = self.script.garbled()
        if turn.stream is not None:
            self._teller = turn.stream.teller(self.part, self.script, turn.ask.continuous_usage)
        count_prompt(turn.counts, self.job)
        turn.counts.observe("time_to_first_token_seconds", (at_s - turn.arrived_s) / turn.host.clock.speed)

    def _tell(self, at_s: float) -> None:
        """The last token."""
        turn = self.turn
        usage = turn.ended(self)
        self._count_answer()
        if self._teller is not None:
            self._teller.tell(self._made, usage)
            turn.host.lag.note(turn.host.clock.late_s(at_s))
        if usage is not None:
            turn.close()

    def _count_answer(self) -> None:
        turn, job, made = self.turn, self.job, self._made
        counts, speed = turn.counts, turn.host.clock.speed
        answered_s = turn.host.fleet.profile.first_token_ms / 1e3 if job.kind is not Kind.PREFILL else 0.0
        decode_s = (self._last_s - self._first_s) / speed
        prefill_s = max(0.0, self._first_s - answered_s - job.scheduled_s) / speed
        finish = "stop" if self.script.finish == "tool_calls" else self.script.finish
        counts.add("request_success_total", value=finish)
        observed = {
            "request_prompt_tokens": job.prompt_tokens,
            "request_generation_tokens": made,
            "request_max_num_generation_tokens": made,
            "request_params_n": turn.ask.n,
            "request_params_max_tokens": turn.ask.max_tokens,
            "request_time_per_output_token_seconds": decode_s / (made - 1) if made > 1 else 0.0,
            "e2e_request_latency_seconds": (self._last_s - turn.arrived_s) / speed,
            "request_queue_time_seconds": max(0.0, job.scheduled_s - job.queued_s) / speed,
            "request_inference_time_seconds": prefill_s + decode_s,
            "request_prefill_time_seconds": prefill_s,
            "request_decode_time_seconds": decode_s,
            "request_num_preemptions": 0.0,
            "request_prefill_kv_computed_tokens": job.prompt_tokens - job.cached_tokens,
        }
        for name, number in observed.items():
            counts.observe(name, number)


def count_prompt(counts: Counts, job: Job) -> None:
    """A prompt is through: where its tokens came from."""
    here, total = job.cached_tokens, job.prompt_tokens
    fetched = total - here if job.kind is Kind.RECEIVE else 0
    planned = total - here if job.transfer is not None else 0  # as in vLLM, whatever became of it
    counts.add("prefix_cache_queries_total", total)
    counts.add("prefix_cache_hits_total", here)
    counts.add("external_prefix_cache_queries_total", total - here)
    counts.add("external_prefix_cache_hits_total", planned)
    counts.add("prompt_tokens_total", total)
    counts.add("prompt_tokens_by_source_total", total - here - fetched, "local_compute")
    counts.add("prompt_tokens_by_source_total", here, "local_cache_hit")
    counts.add("prompt_tokens_by_source_total", fetched, "external_kv_transfer")
    counts.add("prompt_tokens_cached_total", here + fetched)
    counts.add("prompt_tokens_cached_by_source_total", here, "device")
    counts.add("prompt_tokens_cached_by_source_total", fetched, "p2p")
