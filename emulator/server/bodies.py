"""Request bodies: what a client may send, checked as vLLM checks it, and what it comes to.

pydantic reads the JSON; fields that change nothing here (seed, top_p, penalties, ...) pass unread, as do unknown ones.
Not emulated, and refused with 400: log-probabilities, echo, suffix. An answer has as many tokens as max_tokens says
(`length`), or its natural length if nothing says (`stop`; completions: 16, as vLLM); a stop string ends it earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from . import errors
from .script import Script, tool_script, write
from .tokens import Rendered, render_chat, render_raw, tool_named

MAX_CHOICES = 128
_COMPLETION_MAX_TOKENS = 16


class _StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    n: int | None = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    temperature: float | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    prompt_logprobs: int | None = None
    echo: bool | None = False
    cache_salt: str | None = None
    request_id: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[Any] | None = None


class _ChatBody(_Body):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | None = False


class _TextBody(_Body):
    prompt: str | list[int] | list[str] | list[list[int]] | None = None
    logprobs: int | None = None
    suffix: str | None = None


_B = TypeVar("_B", bound=_Body)


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence to generate: choice `index` of the answer."""

    index: int
    rendered: Rendered
    script: Script


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request comes to."""

    chat: bool
    parts: tuple[Part, ...]
    n: int
    max_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    request_id: str | None
    kv_transfer_params: Mapping[str, object] | None

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens over all prompts, each counted once."""
        return sum(part.rendered.tokens for part in self.parts[:: self.n])


@dataclass(frozen=True, slots=True)
class Limits:
    """What this server serves."""

    model: str
    max_model_len: int
    block_tokens: int


def read_chat(raw: bytes, limits: Limits) -> Ask:
    """POST /v1/chat/completions. Raises ApiError."""
    body = _parse(_ChatBody, raw)
    params = _check(body, limits)
    if not body.messages:
        raise errors.invalid("messages: at least one message is required", "messages")
    if body.logprobs:
        raise errors.bad_request("log-probabilities are not emulated", "logprobs")
    tool, named = _forced_tool(body)
    messages = [{**(m.model_extra or {}), "role": m.role, "content": m.content} for m in body.messages]
    if params.get("prompt_token_ids") is not None:
        rendered = _render_ids(params["prompt_token_ids"], body.cache_salt, limits)
    else:
        rendered = render_chat(messages, body.tools, body.cache_salt or "", tool)
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return _ask(body, [rendered], asked, None, tool, named, limits)


def read_text(raw: bytes, limits: Limits) -> Ask:
    """POST /v1/completions. Raises ApiError."""
    body = _parse(_TextBody, raw)
    _check(body, limits)
    if body.logprobs is not None:
        raise errors.bad_request("log-probabilities are not emulated", "logprobs")
    if body.suffix:
        raise errors.bad_request("suffix is not currently supported", "suffix")
    prompts = body.prompt
    if not prompts or (isinstance(prompts, list) and not all(p or p == 0 for p in prompts)):
        raise errors.invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    several: list[object] = [prompts] if isinstance(prompts, str) or isinstance(prompts[0], int) else [*prompts]
    rendered = [
        render_raw(prompt, body.cache_salt or "", limits.block_tokens)
        if isinstance(prompt, str)
        else _render_ids(prompt, body.cache_salt, limits)
        for prompt in several
    ]
    return _ask(body, rendered, body.max_tokens, _COMPLETION_MAX_TOKENS, None, False, limits)


def _parse(model: type[_B], raw: bytes) -> _B:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        # As vLLM: which alternative of a union was tried is none of the client's business.
        named = [str(part) for part in first["loc"] if "[" not in str(part) and part not in ("str", "int")]
        where = ".".join(["body", *named])
        said = {"type": first["type"], "loc": where, "msg": first["msg"], "input": str(first["input"])[:200]}
        raise errors.ApiError(
            400,
            f"{error.error_count()} validation error{'s' if error.error_count() > 1 else ''}:\n  {said}",
            "Bad Request",
            where,
        ) from None


def _check(body: _Body, limits: Limits) -> Mapping[str, Any]:
    """What vLLM checks beside the types; returns the transfer parameters, empty if there are none."""
    if body.model is not None and body.model != limits.model:
        raise errors.no_model(body.model)
    if body.stream_options and not body.stream:
        raise errors.invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    n = body.n if body.n is not None else 1
    if n < 1:
        raise errors.bad_request(f"n must be at least 1, got {n}.", "n")
    if n > MAX_CHOICES:
        raise errors.bad_request(f"n must be at most {MAX_CHOICES}, got {n}.", "n")
    if body.temperature is not None and body.temperature < 0:
        raise errors.bad_request(f"temperature must be non-negative, got {body.temperature}.", "temperature")
    if n > 1 and body.temperature == 0:
        raise errors.bad_request(f"n must be 1 when using greedy sampling, got {n}.")
    if body.min_tokens < 0:
        raise errors.bad_request(f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.", "min_tokens")
    if body.prompt_logprobs is not None or body.echo:
        raise errors.bad_request("log-probabilities of the prompt and echo are not emulated", "echo")
    if "" in _stops(body):
        raise errors.bad_request("stop cannot contain an empty string.", "stop")
    return body.kv_transfer_params or {}


def _ask(
    body: _Body,
    prompts: Sequence[Rendered],
    asked: int | None,
    default: int | None,
    tool: Mapping[str, object] | None,
    named: bool,
    limits: Limits,
) -> Ask:
    max_tokens = asked if asked is not None else default
    if max_tokens is not None and max_tokens < 1:
        raise errors.bad_request(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens")
    if max_tokens is not None and body.min_tokens > max_tokens:
        raise errors.bad_request(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {body.min_tokens}.", "min_tokens"
        )
    n = body.n or 1
    parts: list[Part] = []
    for rendered in prompts:
        room = limits.max_model_len - rendered.tokens
        if room < max(1, max_tokens or 0):
            raise errors.too_long(rendered.tokens, max_tokens or 1, limits.max_model_len)
        for choice in range(n):
            voice = rendered.voice if choice == 0 else f"{rendered.voice} choice {choice}"
            if tool is not None:
                script = tool_script(voice, tool, max_tokens, room, named)
            else:
                script = write(
                    voice,
                    max_tokens,
                    room,
                    min_tokens=body.min_tokens,
                    ignore_eos=body.ignore_eos,
                    stop=_stops(body),
                    include_stop=body.include_stop_str_in_output,
                )
            parts.append(Part(len(parts), rendered, script))
    options = body.stream_options
    return Ask(
        chat=isinstance(body, _ChatBody),
        parts=tuple(parts),
        n=n,
        max_tokens=max_tokens if max_tokens is not None else limits.max_model_len - prompts[0].tokens,
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        request_id=body.request_id,
        kv_transfer_params=body.kv_transfer_params,
    )


def _forced_tool(body: _ChatBody) -> tuple[Mapping[str, object] | None, bool]:
    """The function that the answer must call, and whether the client named it."""
    choice = body.tool_choice
    if body.tools == []:
        raise errors.invalid(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )
    if choice is None or choice == "none":
        return None, False
    if not body.tools:
        raise errors.invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        tool = tool_named(body.tools, name)
        if tool is None:
            raise errors.invalid(
                "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
            )
        return tool, True
    if choice == "auto":
        return None, False
    if choice != "required":
        raise errors.invalid(
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.',
            "tool_choice",
        )
    function = body.tools[0].get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise errors.invalid("tools.0.function.name: Field required", "tools.0.function.name")
    return function, False


def _render_ids(ids: object, salt: str | None, limits: Limits) -> Rendered:
    if not isinstance(ids, list) or not ids or not all(isinstance(token, int) and 0 <= token < 2**63 for token in ids):
        raise errors.bad_request("token ids must be a non-empty list of integers that are not negative", "prompt")
    return render_raw(ids, salt or "", limits.block_tokens)


def _stops(body: _Body) -> Sequence[str]:
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else body.stop
