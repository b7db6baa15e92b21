"""A reply without what differs from run to run: ids, times, hex, the words of a model, the numbers of its tokenizer.

Text becomes `<text>`, a time `<time>`, a list of token ids `<3 ids>`. Counts stay where both sides must count alike:
answers always (their length is what was asked for), prompts if they were sent as token ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import inf
from typing import Any

_TEXTS = frozenset({"content", "text", "token", "decoded_token", "arguments", "reasoning", "prompt_text"})
_TIMES = frozenset({"created"})
_NUMBERS = frozenset({"logprob", "rank", "remote_port"})
_PROMPT_COUNTS = frozenset({"prompt_tokens", "total_tokens", "remote_num_tokens", "count", "text_offset"})
_HEX = re.compile(r"\b(chatcmpl-tool-|chatcmpl-|cmpl-|modelperm-|call_|vllm-[0-9.]+-)([0-9a-f]{8,})\b")
_PLAIN_HEX = re.compile(r"\b[0-9a-f]{32}\b|(?<=-)[0-9a-f]{8}\b")
_LONG_NUMBER = re.compile(r"\d{2,}")
_MESSAGE_CHARS = 300
HEADERS = frozenset({"content-type", "server", "vary", "allow", "x-request-id", "cache-control"})


def body(value: Any, *, exact: bool, key: str = "") -> Any:
    """A decoded JSON body; `exact`: the prompt was token ids."""
    if isinstance(value, dict):
        if key == "top_logprobs" or _is_token_map(value):
            return f"<{len(value)} tokens>"
        return {name: body(each, exact=exact, key=name) for name, each in value.items()}
    if isinstance(value, list):
        return _list(value, exact, key)
    if isinstance(value, bool) or value is None:
        return value
    if key in _TIMES and isinstance(value, int | float):
        return "<time>"
    if isinstance(value, float) or (key in _NUMBERS and isinstance(value, int)):
        return "<number>"
    if key in _PROMPT_COUNTS and isinstance(value, int) and not exact:
        return "<count>"
    if key == "created_cache_tokens" and not exact:
        return "<count>"
    if key == "cached_tokens" and isinstance(value, int) and not exact:
        return "some" if value else 0
    if isinstance(value, str):
        return _string(value, key)
    return value


def _list(value: list[Any], exact: bool, key: str) -> Any:
    if key == "remote_block_ids":
        return [f"<{len(group)} blocks>" if exact else "<blocks>" for group in value]
    if key in ("bytes", "token_ids", "prompt_token_ids", "tokens", "token_strs", "text_offset", "token_logprobs"):
        counted = exact or key in ("token_ids", "token_logprobs")
        kind = "null first" if value and value[0] is None else type(value[0]).__name__ if value else "nothing"
        return f"<{len(value) if counted else 'some'}: {kind}>" if value else []
    if key == "prompt_logprobs":
        return f"<{len(value) if exact else 'some'}: {'null first' if value and value[0] is None else 'maps'}>"
    if key == "top_logprobs" and value and not _is_logprob(value[0]):
        return f"<{len(value)}: {'null first' if value[0] is None else 'maps'}>"
    made = [body(each, exact=exact) for each in value]
    if len(made) > 1 and isinstance(made[0], dict) and all(each == made[0] for each in made):
        return [made[0], f"{len(made)} times"]
    return made


def _is_logprob(value: Any) -> bool:
    return isinstance(value, Mapping) and "logprob" in value


def _is_token_map(value: Mapping[str, Any]) -> bool:
    return bool(value) and all(_is_logprob(each) for each in value.values())


def _string(value: str, key: str) -> str:
    if key in _TEXTS:
        return "<text>"
    if key == "message":
        return message(value)
    if key in ("remote_engine_id", "root", "remote_host"):
        return "<name>"
    value = _HEX.sub(r"\1<hex>", value)
    return _PLAIN_HEX.sub("<hex>", value)


def uncounted(found: Any) -> None:
    """Leave out how long prompt and answer are."""
    for each in found if isinstance(found, list) else [found]:
        usage = each.get("usage") if isinstance(each, dict) else None
        if isinstance(usage, dict):
            usage |= dict.fromkeys(("completion_tokens", "total_tokens"), "<count>")
            usage.get("prompt_tokens_details", {})["cached_tokens"] = "<count>"


def message(text: str) -> str:
    """An error's words, as far as a reader would read; numbers of two digits and more are the installation's."""
    return _LONG_NUMBER.sub("<n>", text)[:_MESSAGE_CHARS]


def headers(given: Mapping[str, str]) -> dict[str, str]:
    """Those that a client may rely on."""
    found = {name.lower(): value for name, value in given.items() if name.lower() in HEADERS}
    return {name: _PLAIN_HEX.sub("<hex>", found[name]) for name in sorted(found)}


def events(raw: str, *, exact: bool) -> list[Any]:
    """A stream: each kind of event once, in the order in which they first come.

    How many there are is not compared: an engine that is asked faster than it is read puts tokens together.
    """
    made: list[Any] = []
    for line in raw.split("\n\n"):
        if not line.strip():
            continue
        data = line.removeprefix("data: ")
        event = "[DONE]" if data == "[DONE]" else _event(json.loads(data), exact)
        if event not in made:
            made.append(event)
    return sorted(made, key=_choice)


def _choice(event: Any) -> float:
    """Choices one after the other: which of two is further is chance."""
    choices = event.get("choices") if isinstance(event, dict) else None
    return choices[0]["index"] if choices else inf


def _event(event: Any, exact: bool) -> Any:
    found = body(event, exact=exact)
    if isinstance(found, dict) and found.get("choices"):
        if found.get("usage"):
            found["usage"] |= {"completion_tokens": "<so far>", "total_tokens": "<so far>"}
        for choice in found["choices"]:
            if choice.get("token_ids"):
                choice["token_ids"] = "<ids>"
            if isinstance(choice.get("logprobs"), dict):
                choice["logprobs"] = {
                    key: each[:1] if isinstance(each, list) else re.sub(r"\d+", "some", str(each))
                    for key, each in choice["logprobs"].items()
                }
    return found
