"""What a client may want to see beside the text: log-probabilities, token ids, its own prompt.

The numbers are no model's; they are the same for the same token, and have the shapes of vLLM's. Chat has a list of
objects, completions four lists side by side.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from . import vocabulary
from .vocabulary import likelihood, number, piece, rivals


@dataclass(frozen=True, slots=True)
class Prelude:
    """A prompt, as far as the client wants to see it again."""

    ids: tuple[int, ...] = ()
    text: str | None = None
    """Chat: the prompt behind the template. Completions: what stands before the answer."""
    logprobs: list[dict[str, object] | None] | None = None


@dataclass(frozen=True, slots=True)
class Extras:
    """What was asked for. Numbers are how many rivals of each token; None: nothing."""

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False

    @property
    def of_prompt(self) -> bool:
        """Whether the tokens of the prompt have to be known."""
        return self.token_ids or self.prompt_logprobs is not None

    @property
    def of_tokens(self) -> bool:
        """Whether each token of an answer comes with something."""
        return self.token_ids or self.logprobs is not None

    def prelude(self, ids: Sequence[int], text: str | None) -> Prelude:
        """Of a prompt with these tokens."""
        logprobs = _prompt(ids, self.prompt_logprobs) if self.prompt_logprobs is not None else None
        return Prelude(tuple(ids), text, logprobs)


def chat(tokens: Sequence[bytes], top: int) -> dict[str, object]:
    """Of a chat's choice or delta."""
    return {
        "content": [
            {**_entry(token), "top_logprobs": [_entry(each, rank) for rank, each in enumerate(_best(token, top))]}
            for token in tokens
        ]
    }


def text(tokens: Sequence[bytes], top: int, offset: int, prompt: Sequence[int] = ()) -> dict[str, object]:
    """Of a completion's choice or chunk; `offset` is where its text begins, `prompt` is echoed before it."""
    everything = [*(piece(token) for token in prompt), *tokens]
    offsets, at = [], offset
    for token in everything:
        offsets.append(at)
        at += len(_text(token))
    values: list[float | None] = [likelihood(token) for token in everything]
    maps: list[dict[str, float] | None] = [
        {_text(each): likelihood(each, rank) for rank, each in enumerate(_best(token, max(1, top)))}
        for token in everything
    ]
    if prompt:  # nothing says how likely the first token of all is
        values[0] = maps[0] = None
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": [_text(token) for token in everything],
        "top_logprobs": maps,
    }


def dumps(value: object) -> str:
    """As it stands in an event."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def tokens_of(text: str, count: int) -> list[bytes]:
    """The tokens of an answer; those that a client gets no text of are empty."""
    found = list(vocabulary.pieces(text))[:count]
    return [*found, *[b""] * (count - len(found))]


def _prompt(ids: Sequence[int], top: int) -> list[dict[str, object] | None]:
    made: list[dict[str, object] | None] = [None]
    for token in ids[1:]:
        made.append(
            {
                str(token if rank == 0 else number(each)): {
                    "logprob": likelihood(each, rank),
                    "rank": rank + 1,
                    "decoded_token": _text(each),
                }
                for rank, each in enumerate(_best(piece(token), max(1, top)))
            }
        )
    return made


def _best(token: bytes, top: int) -> list[bytes]:
    return [token, *rivals(token, top - 1)] if top > 0 else []


def _entry(token: bytes, rank: int = 0) -> dict[str, object]:
    return {"token": _text(token), "logprob": likelihood(token, rank), "bytes": list(token)}


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")
