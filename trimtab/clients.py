"""People and tools over HTTP: plays planned conversations against a chat endpoint and measures what they see.

Texts are made so that the engines count the planned tokens, by their `Dialect`. Times are reported in engine time:
wall time × `speed`. Where the dialect knows the answer, that of every turn is checked, token by token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import aiohttp
import msgspec

from emulator.server.tokens import BYTES_PER_TOKEN, HEADER_TOKENS, draw, render_chat
from emulator.workload import ConversationPlan, TurnPlan
from slos.objective import Outcome

TURN_TIMEOUT_S = 120.0
FILLER = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor "


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """One turn as its client saw it. Times in engine seconds since the start of the run."""

    conversation: str
    turn: int
    accepted_s: float
    ttft_s: float | None
    tpot_s: float | None
    output_tokens: int
    outcome: Outcome
    went_local: bool
    reason: str
    status: int
    text_matches: bool | None
    """None where nobody knows beforehand what the engine says."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a kind of engine counts a text, and what it answers to messages in so many tokens."""

    bytes_per_token: int
    header_tokens: int
    """Around each message."""
    answer: Callable[[Sequence[dict[str, object]], int], str] | None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Chunk)


class Crowd:
    """All clients of one run."""

    def __init__(
        self,
        url: str,
        model: str,
        plans: Sequence[ConversationPlan],
        *,
        speed: float = 1.0,
        on_turn: Callable[[SeenTurn], None] | None = None,
        send_session_id: bool = True,
        dialect: Dialect | None = None,
    ) -> None:
        self._url = url.rstrip("/") + "/v1/chat/completions"
        self._model = model
        self._plans = plans
        self._speed = speed
        self._on_turn = on_turn
        self._send_session_id = send_session_id
        self._dialect = dialect or EMULATED
        self._begin = 0.0
        self.turns: list[SeenTurn] = []
        self.waiting: dict[tuple[str, int], float] = {}
        """Turns without a first token: when they were sent (engine seconds)."""
        self.left_waiting: list[tuple[tuple[str, int], float]] = []
        """Those that were waiting when the run was stopped."""
        self.transcripts: dict[str, list[dict[str, object]]] = {}
        """All messages of each conversation so far."""

    @property
    def now_s(self) -> float:
        """Engine seconds since the start."""
        return (monotonic() - self._begin) * self._speed

    async def run(self, until_s: float | None = None) -> None:
        """Play every conversation to its end, or stop at `until_s` (engine seconds)."""
        self._begin = monotonic()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=TURN_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            players = [asyncio.ensure_future(self._play(session, plan)) for plan in self._plans]
            limit = None if until_s is None else until_s / self._speed
            _, late = await asyncio.wait(players, timeout=limit) if players else (set(), set())
            self.left_waiting = list(self.waiting.items())
            for player in late:
                player.cancel()
            results = await asyncio.gather(*players, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _play(self, session: aiohttp.ClientSession, plan: ConversationPlan) -> None:
        await self._sleep_until(plan.start_s)
        messages = self.transcripts.setdefault(plan.name, [])
        for number, turn in enumerate(plan.turns, start=1):
            if number > 1:
                await asyncio.sleep(turn.think_s / self._speed)
            messages.append({"role": "user", "content": _text(plan.name, number, turn, self._dialect)})
            seen, answer = await self._turn(session, plan.name, number, turn, messages)
            self.turns.append(seen)
            if self._on_turn is not None:
                self._on_turn(seen)
            if seen.outcome is not Outcome.COMPLETED:
                return
            messages.append({"role": "assistant", "content": answer})

    async def _turn(
        self,
        session: aiohttp.ClientSession,
        name: str,
        number: int,
        plan: TurnPlan,
        messages: list[dict[str, object]],
    ) -> tuple[SeenTurn, str]:
        body = json.dumps(
            {
                "model": self._model,
                "messages": messages,
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": plan.output_tokens,
                "ignore_eos": True,
                "temperature": 0,
            }
        )
        headers = {"Content-Type": "application/json"}
        if self._send_session_id:
            headers["X-Session-ID"] = name
        sent_s = self.now_s
        self.waiting[name, number] = sent_s
        first_s = last_s = None
        tokens, status, route, reason = 0, 0, "", ""
        pieces: list[str] = []
        done = False
        try:
            async with session.post(self._url, data=body, headers=headers) as response:
                status = response.status
                route = response.headers.get("x-trimtab-route", "")
                reason = response.headers.get("x-trimtab-reason", "")
                async for line in response.content:
                    if not line.startswith(b"data: "):
                        continue
                    payload = line[6:].strip()
                    if payload == b"[DONE]":
                        done = True
                        break
                    chunk = _decode.decode(payload)
                    if chunk.usage is not None:
                        tokens = chunk.usage.completion_tokens
                    for choice in chunk.choices:
                        if choice.delta is not None and choice.delta.content:
                            pieces.append(choice.delta.content)
                            last_s = self.now_s
                            if first_s is None:
                                first_s = last_s
                                self.waiting.pop((name, number), None)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError):
            done = False
        finally:
            self.waiting.pop((name, number), None)
        answer = "".join(pieces)
        ok = done and status == 200
        tpot_s = None
        if ok and first_s is not None and last_s is not None and tokens >= 2:
            tpot_s = (last_s - first_s) / (tokens - 1)
        knows = self._dialect.answer
        seen = SeenTurn(
            conversation=name,
            turn=number,
            accepted_s=sent_s,
            ttft_s=None if first_s is None else first_s - sent_s,
            tpot_s=tpot_s,
            output_tokens=tokens,
            outcome=Outcome.COMPLETED if ok else Outcome.FAILED,
            went_local=route == "append_local",
            reason=reason,
            status=status,
            text_matches=None if knows is None else ok and answer == knows(messages, plan.output_tokens),
        )
        return seen, answer

    async def _sleep_until(self, at_s: float) -> None:
        delay_s = self._begin + at_s / self._speed - monotonic()
        if delay_s > 0:
            await asyncio.sleep(delay_s)


def expected(messages: Sequence[dict[str, object]], tokens: int) -> str:
    """What an emulated engine answers to these messages."""
    return draw(render_chat(messages, None, "", None).voice, tokens)


EMULATED = Dialect(BYTES_PER_TOKEN, HEADER_TOKENS, expected)


def _text(name: str, number: int, turn: TurnPlan, dialect: Dialect) -> str:
    """A message that counts `new_tokens`, different for every turn of everybody."""
    size = max(1, (turn.new_tokens - 2 * dialect.header_tokens) * dialect.bytes_per_token)  # its own and the answer's
    head = f"{name} {number} "
    return (head + FILLER * (1 + size // len(FILLER)))[:size]
