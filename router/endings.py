"""How a request ends: its record, what the core and the watch hear of failures, and what its client is told.

complete      the answer is out
break_off     the stream broke after bytes went out
give_up       no other node is left to try
own_limit     this process cannot connect to anybody
leave         the router goes, and waits no longer
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from slos.objective import Outcome

from .answers import error_event
from .body import Usage, assistant_identity
from .clock import Clock
from .connectors.protocol import Leg
from .core import RouterCore
from .errors import Code
from .exchange import BadAnswer, Exchange
from .metrics import RouterMetrics
from .nodes import NodeWatch
from .recognition import Recogniser
from .record import TurnRecord
from .tokens import TokenRatio
from .upstream import NodeError, NodeTimeout, OwnLimit

log = logging.getLogger("trimtab.dispatch")


class Endings:
    """Of all requests of one router process."""

    def __init__(
        self,
        core: RouterCore,
        watch: NodeWatch,
        recogniser: Recogniser,
        clock: Clock,
        metrics: RouterMetrics,
        ratio: TokenRatio,
        on_record: Callable[[TurnRecord, str], None],
    ) -> None:
        self._core = core
        self._watch = watch
        self._recogniser = recogniser
        self._clock = clock
        self._metrics = metrics
        self._ratio = ratio
        self._on_record = on_record

    def complete(
        self, exchange: Exchange, usage: Usage | None, chunks: int, finish_reason: str | None, text: list[str] | None
    ) -> None:
        """The answer is there: the books, and the record."""
        flight = exchange.flight
        if usage is None:  # an engine without usage: what was seen is a lower bound
            usage = Usage(flight.features.prompt_tokens, max(1, chunks))
        if finish_reason == "error":
            self.end(exchange, Outcome.FAILED)
            return
        self._ratio.learn(exchange.request.model, exchange.request.prompt_bytes, usage.prompt_tokens)
        number = flight.number
        record = self._core.complete(
            flight, self._clock.now_s(), usage.prompt_tokens, max(1, usage.completion_tokens), usage.cached_tokens
        )
        said = assistant_identity("".join(text)) if text else None
        self._recogniser.answered(exchange.found, number, said)
        self._on_record(record, exchange.request_id)

    def end(self, exchange: Exchange, outcome: Outcome) -> None:
        """The turn ended otherwise; one that has ended already stays as it is."""
        if not self._core.is_in_flight(exchange.flight):
            return
        tokens = exchange.meter.chunks if exchange.meter is not None else 0
        record = self._core.end(exchange.flight, self._clock.now_s(), outcome, tokens)
        self._on_record(record, exchange.request_id)

    def note_failure(self, exchange: Exchange, leg: Leg, error: NodeError) -> None:
        """A leg failed: who is told."""
        kind = "timeout" if isinstance(error, NodeTimeout) else "refused" if error.refused else "error"
        self._metrics.leg_failed(str(leg.node), kind)
        log.warning("request %s: %s leg on %s: %s", exchange.request_id, leg.purpose, leg.node, str(error))
        if error.refused:
            self._watch.refused(leg.node)
        elif not isinstance(error, NodeTimeout | BadAnswer):
            self._watch.doubt(leg.node)
        if not error.refused and not (isinstance(error, BadAnswer) and error.reply.status < 500):
            if exchange.started:
                self._core.node_failed(leg.node, kind, self._clock.now_s())
            else:
                self._core.suspect(exchange.flight, leg.node, kind)
        exchange.failure = error

    async def give_up(self, exchange: Exchange, why: str) -> None:
        """No other node is left: the last engine's own answer if it gave one, else our word for it."""
        failure = exchange.failure
        timed_out = isinstance(failure, NodeTimeout)
        self.end(exchange, Outcome.TIMED_OUT if timed_out else Outcome.FAILED)
        if isinstance(failure, BadAnswer):
            await exchange.pass_on(failure.reply, failure.content)
            return
        code = Code.UPSTREAM_TIMEOUT if timed_out else Code.UPSTREAM_ERROR
        await exchange.fail(code, f"no engine answered this request: {why}")

    async def own_limit(self, exchange: Exchange, leg: Leg, error: OwnLimit) -> None:
        """This process cannot connect to anybody: that takes no node out, and another would not do."""
        self._metrics.leg_failed(str(leg.node), "own_limit")
        log.error("request %s: %s", exchange.request_id, str(error))
        if exchange.started:
            await self.break_off(exchange, error)
            return
        self.end(exchange, Outcome.FAILED)
        await exchange.fail(Code.BUSY, "this router is at a limit of its host")

    async def leave(self, exchange: Exchange) -> None:
        """The router waits no longer for this answer."""
        self.end(exchange, Outcome.FAILED)
        why = "this router is shutting down and could not wait for the end of this answer"
        if exchange.started:
            event = error_event(Code.DRAINING, why)
            await exchange.last(event)
        else:
            await exchange.fail(Code.DRAINING, why)

    async def break_off(self, exchange: Exchange, error: NodeError) -> None:
        """The stream broke after bytes went out: say so in the stream, and do not pretend that it is done."""
        self.end(exchange, Outcome.TIMED_OUT if isinstance(error, NodeTimeout) else Outcome.FAILED)
        code = Code.UPSTREAM_TIMEOUT if isinstance(error, NodeTimeout) else Code.UPSTREAM_BROKE_OFF
        event = error_event(code, "the engine broke off in the middle of this answer")
        if exchange.meter is not None and exchange.meter.errored:
            event = b""  # the engine has said so itself
        await exchange.last(event)
