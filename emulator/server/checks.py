"""What vLLM checks beside the types of a body, in its words: the parameters one by one, and against each other.

`before` looks at the raw object, ahead of the types, as vLLM's validators do; `sampling` at the typed body once it is
known how many tokens the answer may have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import errors
from .schema import Body, ChatBody, TextBody

MAX_CHOICES = 128
"""vLLM's default is 16384, each with a task of its own."""
MAX_LOGPROBS = 20
_GUIDES = ("json", "regex", "choice")


def before(raw: Mapping[str, Any], chat: bool) -> None:
    """Checks of the raw object. Raises ApiError."""
    if raw.get("cache_salt") == "":
        raise errors.refused("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    shape = raw.get("response_format")
    if isinstance(shape, Mapping) and shape.get("type") == "json_schema" and shape.get("json_schema") is None:
        said = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise errors.refused(said, "response_format")
    _guides(raw.get("structured_outputs"), chat)
    if raw.get("stream_options") and not raw.get("stream"):
        raise errors.refused("Stream options can only be defined when `stream=True`.", "stream_options")
    _logprobs(raw, chat)
    if chat:
        _tools(raw)
        if raw.get("continue_final_message") and raw.get("add_generation_prompt"):
            raise errors.bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    elif raw.get("prompt") in (None, ""):
        raise errors.refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def sampling(body: ChatBody | TextBody, max_tokens: int | None) -> None:
    """Checks of what steers the dice and the end of the answer; `max_tokens` None: no limit. Raises ApiError."""
    n = body.n if body.n is not None else 1
    if n < 1:
        raise errors.bad_request(f"n must be at least 1, got {n}.")
    if n > MAX_CHOICES:
        raise errors.bad_request(
            f"n must be at most {MAX_CHOICES}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
            "environment variable."
        )
    _dice(body)
    if max_tokens is not None and max_tokens < 1:
        raise errors.refused(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if body.min_tokens < 0:
        raise errors.bad_request(f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if max_tokens is not None and body.min_tokens > max_tokens:
        said = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {body.min_tokens}."
        raise errors.bad_request(said)
    if "" in stops(body):
        raise errors.bad_request("stop cannot contain an empty string.")
    if n > 1 and body.temperature == 0:
        raise errors.bad_request(f"n must be 1 when using greedy sampling, got {n}.")
    if body.use_beam_search and body.stream:
        raise errors.bad_request("Streaming is not currently supported with beam search")
    if body.structured_outputs is not None and body.structured_outputs.choice == []:
        raise errors.bad_request("Choice '[]' cannot be an empty list")
    odd = [key for key in body.logit_bias or () if not key.lstrip("-").isdigit()]
    if odd:
        said = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {odd}"
        raise errors.refused(said, "logit_bias", odd)
    asked = body.top_logprobs if isinstance(body, ChatBody) else body.logprobs
    if asked is not None and asked > MAX_LOGPROBS:
        said = f"Requested sample logprobs of {asked}, which is greater than max allowed: {MAX_LOGPROBS}"
        raise errors.refused(said, "logprobs", asked)
    if body.prompt_logprobs is not None and body.prompt_logprobs > MAX_LOGPROBS:
        said = f"Requested prompt logprobs of {body.prompt_logprobs}, which is greater than max allowed: {MAX_LOGPROBS}"
        raise errors.refused(said, "prompt_logprobs", body.prompt_logprobs)


def stops(body: Body) -> Sequence[str]:
    """The stop strings."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else body.stop


def _dice(body: Body) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = getattr(body, name)
        if penalty is not None and not -2 <= penalty <= 2:
            raise errors.bad_request(f"{name} must be in [-2, 2], got {penalty}.")
    if body.repetition_penalty is not None and not body.repetition_penalty > 0:
        raise errors.bad_request(f"repetition_penalty must be greater than zero, got {body.repetition_penalty}.")
    if (heat := body.temperature) is not None and not 0 <= heat <= 2:
        said = "non-negative" if heat < 0 else "in [0, 2]"
        raise errors.refused(f"temperature must be {said}, got {heat}.", "temperature", heat)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise errors.refused(f"top_p must be in (0, 1], got {body.top_p}.", "top_p", body.top_p)
    if body.top_k is not None and body.top_k < -1:
        raise errors.bad_request(f"top_k must be 0 (disable), or at least 1, got {body.top_k}.")
    if body.min_p is not None and not 0 <= body.min_p <= 1:
        raise errors.bad_request(f"min_p must be in [0, 1], got {body.min_p}.")


def _guides(given: object, chat: bool) -> None:
    if not isinstance(given, Mapping) or sum(given.get(name) is not None for name in _GUIDES) < 2:
        return
    said = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
    raise errors.bad_request(said) if chat else errors.refused(said, "structured_outputs")


def _logprobs(raw: Mapping[str, Any], chat: bool) -> None:
    asked = raw.get("prompt_logprobs")
    if isinstance(asked, int):
        if raw.get("stream") and (asked > 0 or asked == -1):
            raise errors.refused("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if asked < -1:
            raise errors.refused("`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs", asked)
    name = "top_logprobs" if chat else "logprobs"
    number = raw.get(name)
    if isinstance(number, int) and not isinstance(number, bool):
        if number < -1:
            raise errors.refused(f"`{name}` must be a positive value or -1.", name, number)
        if chat and number and not raw.get("logprobs"):
            raise errors.refused("when using `top_logprobs`, `logprobs` must be set to true.", name)


def _tools(raw: Mapping[str, Any]) -> None:
    """The tools and the choice among them, as far as that is vLLM's own check."""
    tools, choice = raw.get("tools"), raw.get("tool_choice")
    if tools == []:
        said = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise errors.refused(said, "tools")
    if choice is None or choice == "none":
        return
    if not tools:
        raise errors.refused("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        named = [tool.get("function") for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
        if not any(isinstance(each, Mapping) and each.get("name") == name for each in named):
            said = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise errors.refused(said, "tool_choice")
    elif choice not in ("auto", "required"):
        only = 'Only named tools, "none", "auto" or "required" are supported.'
        raise errors.refused(f"Invalid value for `tool_choice`: {choice}! {only}", "tool_choice")
