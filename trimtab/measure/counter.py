"""How many tokens an engine counts: by /tokenize where it has that route, else by the usage of one generated token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from router.body import parse_answer
from router.turn import Role
from router.upstream import NodeError, Upstream

from .fleet import Engine, Fleet, FleetError
from .texts import Message

COUNT_S = 60.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
SMALL: Message = {"role": "user", "content": "a first message"}
ANCHOR_TOKENS = 8


class TokenCounter:
    """Counts tokens on an engine, by /tokenize or by usage."""

    def __init__(self, upstream: Upstream, fleet: Fleet) -> None:
        self._upstream = upstream
        self._fleet = fleet
        self._tokenizes = False

    async def choose(self) -> None:
        """Find out which of the two the engine knows."""
        status, body = await self._post(self._fleet.engines[0], "/tokenize", self._messages([SMALL]))
        self._tokenizes = status == 200 and _whole(body, "count") is not None

    async def count(self, messages: Sequence[Message]) -> int:
        """Tokens of these messages with the header of the answer to come. Raises FleetError."""
        engine = self._fleet.engines[0]
        if self._tokenizes:
            _, body = await self._post(engine, "/tokenize", {**self._messages(messages), "add_generation_prompt": True})
            found = _whole(body, "count")
            if found is None:
                raise FleetError(f"{engine} does not count at /tokenize")
            return found
        return (await self._complete(engine, messages, 1))[0]

    async def anchor(self) -> tuple[Sequence[Message], int]:
        """An opener and its answer, and the tokens of both."""
        engine = next(each for each in self._fleet.engines if each.role is Role.DECODE)
        tokens, text = await self._complete(engine, [SMALL], ANCHOR_TOKENS)
        return [SMALL, {"role": "assistant", "content": text}], tokens + ANCHOR_TOKENS

    async def _complete(self, engine: Engine, messages: Sequence[Message], tokens: int) -> tuple[int, str]:
        body = {**self._messages(messages), "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        status, content = await self._post(engine, "/v1/chat/completions", {**body, "temperature": 0})
        answer = parse_answer(content) if status == 200 else None
        if answer is None or answer.usage is None:
            raise FleetError(f"{engine} answers {status} to a chat completion: does the model have a chat template?")
        return answer.usage.prompt_tokens, answer.text

    def _messages(self, messages: Sequence[Message]) -> dict[str, object]:
        return {"model": self._fleet.model, "messages": list(messages)}

    async def _post(self, engine: Engine, path: str, body: Mapping[str, object]) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        try:
            reply = await self._upstream.open(f"{engine.url}{path}", json.dumps(body).encode(), headers, COUNT_S)
            return reply.status, await reply.body(MAX_ANSWER_BYTES)
        except NodeError as error:
            raise FleetError(f"{engine} does not answer {path}: {error}") from None


def _whole(body: bytes, name: str) -> int | None:
    try:
        value = json.loads(body)[name]
    except (ValueError, KeyError, TypeError):
        return None
    return value if type(value) is int else None
