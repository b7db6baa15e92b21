"""Request bodies: what a client may send, checked as vLLM checks it, and what it comes to.

Fields that change nothing here (seed, top_p, penalties, ...) are checked and then forgotten. An answer has as many
tokens as max_tokens says (`length`), or its natural length if nothing says (`stop`; completions: 16, as vLLM); a stop
string ends it earlier, and a schema or a choice says what it is. Not emulated: guides by regex, grammar and tag, beam
search, suffix (refused as by a model that cannot fill in).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count as counter
from typing import Any

from . import checks, errors, vocabulary
from .logprobs import Extras, Prelude
from .schema import ChatBody, Message, TextBody
from .script import Script, structured, tool_script, write
from .tokens import Rendered, chat_text, render_chat, render_raw, tool_arguments, tool_named
from .validation import read_json, typed

_COMPLETION_MAX_TOKENS = 16
_PART_TYPES = frozenset({"text", "refusal", "thinking", "image_url", "input_audio", "audio_url", "video_url", "file"})
_unshared = counter(1)


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence to generate: choice `index` of the answer."""

    index: int
    rendered: Rendered
    script: Script
    prelude: Prelude
    """What is known of its prompt, as far as the client wants to see it."""


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
    session_id: str | None
    extras: Extras
    tools: bool
    """Whether a call of a tool may be in the answer."""

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
    found = read_json(raw)
    checks.before(found, chat=True)
    body = typed(ChatBody, found)
    _model(body.model, limits)
    params = body.kv_transfer_params or {}
    extras = Extras(
        body.top_logprobs or 0 if body.logprobs else None,
        body.prompt_logprobs if body.prompt_logprobs is not None or not body.echo else body.top_logprobs or 0,
        bool(body.return_token_ids),
    )
    tool, named = _forced_tool(body)
    prelude = Prelude()
    if params.get("prompt_token_ids") is not None:
        rendered = _render_ids(params["prompt_token_ids"], _salt(body, extras), limits)
    else:
        messages, tools = plain(body.messages), _tools(body)
        rendered = render_chat(messages, tools, _salt(body, extras), tool)
        if extras.of_prompt or body.return_prompt_text:
            text = chat_text(messages, tools)
            prelude = extras.prelude(vocabulary.encode(text), text if body.return_prompt_text else None)
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return _ask(body, [(rendered, prelude)], asked, tool, named, extras, limits)


def read_text(raw: bytes, limits: Limits) -> Ask:
    """POST /v1/completions. Raises ApiError."""
    found = read_json(raw)
    checks.before(found, chat=False)
    body = typed(TextBody, found)
    _model(body.model, limits)
    if body.suffix:
        raise errors.bad_request("suffix is only supported for models with FIM completion rendering", "suffix")
    extras = Extras(
        body.logprobs,
        body.logprobs if body.echo and body.prompt_logprobs is None else body.prompt_logprobs,
        bool(body.return_token_ids),
    )
    prompts = _prompts(body)
    rendered = []
    for prompt in prompts:
        ids = prompt if isinstance(prompt, list) else vocabulary.encode(prompt) if extras.of_prompt else []
        told = (prompt if isinstance(prompt, str) else vocabulary.decode(prompt)) if body.echo else None
        drawn = (
            render_raw(prompt, _salt(body, extras), limits.block_tokens)
            if isinstance(prompt, str)
            else _render_ids(prompt, _salt(body, extras), limits)
        )
        rendered.append((drawn, extras.prelude(ids, told)))
    asked = body.max_tokens if body.max_tokens is not None else _COMPLETION_MAX_TOKENS
    if body.echo and asked == 0:  # the prompt alone: vLLM makes one token and keeps it to itself
        asked = 1
    return _ask(body, rendered, asked, None, False, extras, limits)


def plain(messages: Sequence[Message]) -> list[Mapping[str, object]]:
    """Messages as they came. Raises ApiError."""
    if not messages:
        raise errors.bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    for each in messages:
        for part in each.content if isinstance(each.content, list) else ():
            if not isinstance(part, str) and (not isinstance(part, dict) or part.get("type") not in _PART_TYPES):
                raise errors.bad_request("a content part is of no known type")
    return [{**(each.model_extra or {}), "role": each.role, "content": each.content} for each in messages]


def _model(named: str | None, limits: Limits) -> None:
    if named is not None and named != limits.model:
        raise errors.no_model(named, limits.model)


def _salt(body: ChatBody | TextBody, extras: Extras) -> str:
    """What is to be known of every token of a prompt cannot come from the cache: such a prompt shares nothing."""
    salt = body.cache_salt or ""
    return salt if extras.prompt_logprobs is None else f"{salt} {next(_unshared)}"


def _tools(body: ChatBody) -> list[dict[str, Any]] | None:
    return [tool.model_dump(exclude_unset=True) for tool in body.tools] if body.tools else None


def _prompts(body: TextBody) -> list[str | list[int]]:
    prompts = body.prompt
    if not prompts:
        raise errors.bad_request("You must pass at least one prompt")
    several: list[Any] = [prompts] if isinstance(prompts, str) or isinstance(prompts[0], int) else [*prompts]
    if not all(several):
        raise errors.bad_request("The decoder prompt cannot be empty")
    return several


def _ask(
    body: ChatBody | TextBody,
    prompts: Sequence[tuple[Rendered, Prelude]],
    asked: int | None,
    tool: Mapping[str, object] | None,
    named: bool,
    extras: Extras,
    limits: Limits,
) -> Ask:
    limit = limits.max_model_len
    if asked is not None and asked > limit:
        raise errors.refused(
            f"max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens.",
            "max_tokens",
            asked,
        )
    for rendered, _ in prompts:
        if rendered.tokens > limit:
            raise errors.too_long(rendered.tokens, limit, rendered.counted)
    room = limit - max(rendered.tokens for rendered, _ in prompts)
    # As vLLM: an answer that has no room is cut down to what there is, and refused only if there is none.
    max_tokens = asked if asked is not None and asked < room else room if asked is not None or room < 1 else None
    checks.sampling(body, max_tokens)
    n = body.n or 1
    parts: list[Part] = []
    for rendered, prelude in prompts:
        for choice in range(n):
            voice = rendered.voice if choice == 0 else f"{rendered.voice} choice {choice}"
            script = _script(body, voice, max_tokens, limit - rendered.tokens, tool, named)
            parts.append(Part(len(parts), rendered, script, prelude))
    options = body.stream_options
    return Ask(
        chat=isinstance(body, ChatBody),
        parts=tuple(parts),
        n=n,
        max_tokens=max_tokens if max_tokens is not None else room,
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        request_id=body.request_id,
        kv_transfer_params=body.kv_transfer_params,
        session_id=body.session_id,
        extras=extras,
        tools=isinstance(body, ChatBody) and bool(body.tools) and body.tool_choice != "none",
    )


def _script(
    body: ChatBody | TextBody,
    voice: str,
    max_tokens: int | None,
    room: int,
    tool: Mapping[str, object] | None,
    named: bool,
) -> Script:
    if tool is not None:
        return tool_script(voice, tool, max_tokens, room, named)
    dictated = _dictated(body, voice)
    if dictated is not None:
        return structured(voice, dictated, max_tokens, room)
    return write(
        voice,
        max_tokens,
        room,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop=checks.stops(body),
        include_stop=body.include_stop_str_in_output,
    )


def _dictated(body: ChatBody | TextBody, voice: str) -> str | None:
    """The text that a schema or a choice leaves; None if the answer is free."""
    guides, shape = body.structured_outputs, body.response_format
    if guides is not None and guides.choice:
        return guides.choice[sum(voice.encode()) % len(guides.choice)]
    schema: object = guides.json_schema if guides is not None else None
    if shape is not None and shape.type == "json_schema" and shape.json_schema is not None:
        schema = shape.json_schema.json_schema
    if (guides is not None and guides.json_object) or (shape is not None and shape.type == "json_object"):
        schema = {"properties": {f"field_{number}": {"type": "string"} for number in range(1, 5)}}
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            raise errors.bad_request("Invalid JSON grammar specification.") from None
    return tool_arguments(voice, {"parameters": schema}) if isinstance(schema, Mapping) else None


def _forced_tool(body: ChatBody) -> tuple[Mapping[str, object] | None, bool]:
    """The function that the answer must call, and whether the client named it."""
    choice, tools = body.tool_choice, _tools(body)
    if tools is None or choice in (None, "none", "auto"):
        return None, False
    if isinstance(choice, dict):
        function = choice.get("function")
        return tool_named(tools, function.get("name") if isinstance(function, dict) else None), True
    return tools[0]["function"], False


def _render_ids(ids: object, salt: str, limits: Limits) -> Rendered:
    if not isinstance(ids, list) or not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
        raise errors.bad_request("token ids must be a non-empty list of integers that are not negative", "prompt")
    if max(ids) >= vocabulary.SIZE:
        raise errors.bad_request(f"Token id {max(ids)} is out of vocabulary")
    return render_raw(ids, salt, limits.block_tokens)
