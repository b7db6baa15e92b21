"""Single requests: what a client may send, what it may send wrong, and the doors beside the two hot routes.

A prompt of token ids is as long on every engine, so its counts can be compared (`exact`); all other prompts are words
that each tokenizer counts for itself. `nonce` makes prompts of one run new to the caches of engines that have been
asked before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FIRST_ID, IDS = 70, 60
"""Token ids of printable letters in the tiny model that the project makes; below every real vocabulary's size."""
CITY = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["C", "F"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": CITY}}
FINISH = {"8": 100, "2": 90}
"""Makes the tiny model close what it has opened: its tokens for a quotation mark and for the end."""
NAMED = {"type": "function", "function": {"name": "look"}}


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and whether its prompt has the same number of tokens everywhere."""

    name: str
    path: str
    body: object = None
    node: str = "D"
    method: str | None = None
    headers: Mapping[str, str] | None = None
    exact: bool = False
    counted: bool = True
    """Whether its answer has as many tokens everywhere."""


def ids(count: int, nonce: int) -> list[int]:
    """A prompt of token ids."""
    return [FIRST_ID + (nonce * 7919 + at * (1 + nonce % 53) + at // 11) % IDS for at in range(count)]


def chat(model: str, /, *said: str, **more: object) -> dict[str, Any]:
    """A chat body of five tokens of answer."""
    messages = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(said)]
    body = {"model": model, "messages": messages or [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    return {name: value for name, value in {**body, "temperature": 0, **more}.items() if value is not ...}


def text(model: str, prompt: object = "Once", /, **more: object) -> dict[str, Any]:
    """A completions body of five tokens of answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": 5, "temperature": 0}
    return {name: value for name, value in {**body, **more}.items() if value is not ...}


def cases(model: str, max_model_len: int, nonce: int) -> Iterator[Case]:
    """All of them, in the order in which they are asked."""
    yield from _doors(model)
    yield from _tokenizer(model)
    for name, more in _GOOD_CHAT.items():
        yield Case(f"chat: {name}", CHAT, chat(model, **more), counted=not _dictated(more))
    for name, more in _GOOD_TEXT.items():
        prompt = more.get("prompt", [*ids(40, nonce)])
        yield Case(
            f"text: {name}",
            TEXT,
            text(model, **{"prompt": prompt, **more}),
            exact=_exact(prompt),
            counted=not _dictated(more),
        )
    for name, more in _BAD_BOTH.items():
        yield Case(f"bad chat: {name}", CHAT, chat(model, **more))
        yield Case(f"bad text: {name}", TEXT, text(model, **more))
    for name, more in _BAD_CHAT.items():
        yield Case(f"bad chat: {name}", CHAT, chat(model, **more))
    for name, more in _BAD_TEXT.items():
        yield Case(f"bad text: {name}", TEXT, text(model, **more))
    yield from _raw(model)
    yield from _too_long(model, max_model_len, nonce)


def _dictated(more: Mapping[str, object]) -> bool:
    """Whether a schema, a choice or a tool says what is said, so that its length is its tokenizer's or template's."""
    shaped = more.get("response_format") not in (None, {"type": "text"}, {"type": "json_object"})
    return shaped or "structured_outputs" in more or "tools" in more


def _exact(prompt: object) -> bool:
    return isinstance(prompt, list) and not isinstance(prompt[0], str)


def _doors(model: str) -> Iterator[Case]:
    for node in ("P", "D"):
        for path in ("/health", "/version", "/v1/models", "/metrics"):
            yield Case(f"{node} GET {path}", path, node=node)
    for path in ("/ping", "/load", "/v1/models/", "/v1/models/tiny", "/nope", CHAT):
        yield Case(f"GET {path}", path)
    yield Case("POST /ping", "/ping", b"")
    yield Case("POST /health", "/health", b"")
    yield Case("DELETE /v1/models", "/v1/models", method="DELETE")
    yield Case("OPTIONS chat", CHAT, method="OPTIONS")
    yield Case("HEAD /health", "/health", method="HEAD")
    yield Case("id in the header", CHAT, chat(model), headers={**_JSON, "X-Request-Id": "face-1"})
    yield Case("id in the body", TEXT, text(model, request_id="face-2"))
    yield Case("id in both", CHAT, chat(model, request_id="face-4"), headers={**_JSON, "X-Request-Id": "face-3"})
    yield Case("id of an error", CHAT, chat(model, max_tokens=0), headers={**_JSON, "X-Request-Id": "face-5"})


def _tokenizer(model: str) -> Iterator[Case]:
    prompts: dict[str, dict[str, object]] = {
        "prompt": {"prompt": "Once upon"},
        "messages": {"messages": [{"role": "user", "content": "Hi"}]},
        "strings too": {"prompt": "Once upon", "return_token_strs": True},
        "without special tokens": {"prompt": "Once", "add_special_tokens": False},
        "nothing": {},
        "empty prompt": {"prompt": ""},
        "prompt of numbers": {"prompt": [1, 2]},
        "another model": {"prompt": "Once", "model": "other"},
    }
    for name, body in prompts.items():
        yield Case(f"tokenize: {name}", "/tokenize", {"model": model, **body})
    yield Case("tokenize: no JSON", "/tokenize", b"{")
    yield Case("tokenize: no model", "/tokenize", {"prompt": "Once"})
    tokens: dict[str, dict[str, object]] = {
        "none": {"tokens": []},
        "missing": {},
        "words": {"tokens": ["a"]},
        "below zero": {"tokens": [-1]},
        "another model": {"tokens": [70], "model": "other"},
    }
    for name, body in tokens.items():
        yield Case(f"detokenize: {name}", "/detokenize", {"model": model, **body})


_JSON = {"Content-Type": "application/json"}
_USAGE: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}
_EACH: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_CALL: dict[str, object] = {**_USAGE, "tools": [TOOL], "max_tokens": 120, "logit_bias": FINISH}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}

_GOOD_CHAT: dict[str, dict[str, Any]] = {
    "plain": {},
    "model left out": {"model": ...},
    "system first": {"messages": [{"role": "system", "content": "Terse."}, {"role": "user", "content": "Hi"}]},
    "content in parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "unknown role": {"messages": [{"role": "narrator", "content": "Hi"}]},
    "null content": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}]},
    "max_completion_tokens": {"max_tokens": ..., "max_completion_tokens": 3},
    "both limits": {"max_tokens": 2, "max_completion_tokens": 3},
    "min_tokens": {"min_tokens": 5},
    "ignore_eos": {"ignore_eos": True},
    "one token": {"max_tokens": 1},
    "seed and dice": {"seed": 7, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "two choices": {"n": 2, "temperature": 0.7, "seed": 1},
    "stop that never comes": {"stop": ["\u0001never"]},
    "logprobs": {"logprobs": True},
    "two top logprobs": {"logprobs": True, "top_logprobs": 2},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "echo": {"echo": True},
    "token ids too": {"return_token_ids": True},
    "prompt text too": {"return_prompt_text": True},
    "unknown field": {"favourite_colour": "blue"},
    "user and salt": {"user": "u", "cache_salt": "face"},
    "no kv_transfer_params": {"kv_transfer_params": None},
    "empty kv_transfer_params": {"kv_transfer_params": {}},
    "JSON object": {"response_format": {"type": "json_object"}, "max_tokens": 8},
    "text format": {"response_format": {"type": "text"}},
    "JSON schema": {"response_format": _SCHEMA, "max_tokens": 60},
    "guided choice": {"structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 20},
    "tools, none chosen": {"tools": [TOOL], "tool_choice": "none"},
    "tools left to the model": {"tools": [TOOL]},
    "tools, auto": {"tools": [TOOL], "tool_choice": "auto"},
    "tool required": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 120, "logit_bias": FINISH},
    "tool named": {"tools": [TOOL], "tool_choice": NAMED, "max_tokens": 120, "logit_bias": FINISH},
    "stream": {"stream": True},
    "stream, usage": _USAGE,
    "stream, usage each": _EACH,
    "stream, usage each alone": {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    "stream, no usage": {"stream": True, "stream_options": {"include_usage": False}},
    "stream, two choices": {**_USAGE, "n": 2, "temperature": 0.7, "seed": 1},
    "stream, logprobs": {"stream": True, "logprobs": True, "top_logprobs": 2},
    "stream, token ids too": {"stream": True, "return_token_ids": True},
    "stream, tool named": {**_CALL, "tool_choice": NAMED},
    "stream, tool required": {**_CALL, "tool_choice": "required"},
}
_GOOD_TEXT: dict[str, dict[str, Any]] = {
    "plain": {},
    "words": {"prompt": "Once upon"},
    "no limit": {"max_tokens": ...},
    "two prompts": {"prompt": ["Once", "Twice"]},
    "two prompts of ids": {"prompt": [ids(30, 5), ids(20, 6)]},
    "two choices": {"n": 2, "temperature": 0.7, "seed": 1},
    "echo": {"echo": True},
    "echo of words": {"echo": True, "prompt": "Once"},
    "echo alone": {"echo": True, "max_tokens": 0},
    "logprobs 0": {"logprobs": 0},
    "logprobs 2": {"logprobs": 2},
    "echo, logprobs": {"echo": True, "logprobs": 1},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "token ids too": {"return_token_ids": True},
    "best_of": {"best_of": 2},
    "JSON schema": {"response_format": _SCHEMA, "max_tokens": 60},
    "stream": {"stream": True},
    "stream, usage": _USAGE,
    "stream, usage each": _EACH,
    "stream, echo": {**_USAGE, "echo": True},
    "stream, logprobs": {"stream": True, "logprobs": 1},
    "stream, two prompts": {**_USAGE, "prompt": [ids(30, 5), ids(20, 6)]},
}
_BAD_BOTH: dict[str, dict[str, Any]] = {
    "max_tokens 0": {"max_tokens": 0},
    "max_tokens -1": {"max_tokens": -1},
    "max_tokens in words": {"max_tokens": "many"},
    "max_tokens a fraction": {"max_tokens": 1.5},
    "min_tokens above max_tokens": {"min_tokens": 6},
    "min_tokens -1": {"min_tokens": -1},
    "n 0": {"n": 0},
    "n -1": {"n": -1},
    "n null": {"n": None},
    "n a million": {"n": 1_000_000, "temperature": 0.7},
    "n greedy": {"n": 2},
    "n in words": {"n": "two"},
    "temperature -1": {"temperature": -1},
    "temperature in words": {"temperature": "hot"},
    "top_p 0": {"top_p": 0},
    "top_p 1.5": {"top_p": 1.5},
    "top_k -2": {"top_k": -2},
    "min_p 2": {"min_p": 2},
    "presence_penalty 3": {"presence_penalty": 3},
    "frequency_penalty 3": {"frequency_penalty": 3},
    "repetition_penalty 0": {"repetition_penalty": 0},
    "seed in words": {"seed": "x"},
    "stop empty": {"stop": [""]},
    "stop a number": {"stop": 5},
    "stream in words": {"stream": "maybe"},
    "stream_options alone": {"stream_options": {"include_usage": True}},
    "stream_options in words": {"stream": True, "stream_options": "usage"},
    "prompt_logprobs -2": {"prompt_logprobs": -2},
    "prompt_logprobs in a stream": {"prompt_logprobs": 1, "stream": True},
    "ignore_eos in words": {"ignore_eos": "perhaps"},
    "logit_bias of words": {"logit_bias": {"a": 1}},
    "unknown format": {"response_format": {"type": "xml"}},
    "schema left out": {"response_format": {"type": "json_schema"}},
    "guided choice empty": {"structured_outputs": {"choice": []}},
    "two guides": {"structured_outputs": {"choice": ["a"], "regex": "b"}},
    "salt empty": {"cache_salt": ""},
    "kv_transfer_params in words": {"kv_transfer_params": "please"},
    "model unknown": {"model": "other"},
    "model a number": {"model": 5},
}
_BAD_CHAT: dict[str, dict[str, Any]] = {
    "max_completion_tokens 0": {"max_completion_tokens": 0},
    "logprobs in words": {"logprobs": "some"},
    "top_logprobs alone": {"top_logprobs": 2},
    "top_logprobs 30": {"logprobs": True, "top_logprobs": 30},
    "top_logprobs -2": {"logprobs": True, "top_logprobs": -2},
    "tools empty": {"tools": []},
    "tools in words": {"tools": "look"},
    "tool without a function": {"tools": [{"type": "function"}]},
    "tool without a name": {"tools": [{"type": "function", "function": {}}]},
    "tool required, none given": {"tool_choice": "required"},
    "tool named, none given": {"tool_choice": NAMED},
    "tool unknown": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
    "tool_choice unknown": {"tools": [TOOL], "tool_choice": "always"},
    "tool_choice a number": {"tools": [TOOL], "tool_choice": 5},
    "messages missing": {"messages": ...},
    "messages in words": {"messages": "Hi"},
    "messages empty": {"messages": []},
    "message empty": {"messages": [{}]},
    "message in words": {"messages": ["Hi"]},
    "role missing": {"messages": [{"content": "Hi"}]},
    "role a number": {"messages": [{"role": 5, "content": "Hi"}]},
    "content a number": {"messages": [{"role": "user", "content": 5}]},
    "content missing": {"messages": [{"role": "user"}]},
    "part unknown": {"messages": [{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]},
    "prompt to go on and to begin": {"add_generation_prompt": True, "continue_final_message": True},
}
_BAD_TEXT: dict[str, dict[str, Any]] = {
    "prompt missing": {"prompt": ...},
    "prompt null": {"prompt": None},
    "prompt empty": {"prompt": ""},
    "prompt an empty list": {"prompt": []},
    "prompt of empty lists": {"prompt": [[]]},
    "prompt of one empty text": {"prompt": ["", "b"]},
    "prompt below zero": {"prompt": [-1]},
    "prompt an object": {"prompt": {"a": 1}},
    "prompt a number": {"prompt": 5},
    "prompt beyond the vocabulary": {"prompt": [10**12]},
    "logprobs -2": {"logprobs": -2},
    "logprobs 100": {"logprobs": 100},
    "suffix": {"suffix": "end"},
    "stream and beam search": {"use_beam_search": True, "stream": True},
}


def _raw(model: str) -> Iterator[Case]:
    bodies = {
        "nothing": b"",
        "half an object": b"{not json",
        "an open string": b'{"model": "',
        "a list": b"[]",
        "a word": b'"hello"',
        "null": b"null",
        "no UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
        "an empty object": b"{}",
    }
    for name, raw in bodies.items():
        yield Case(f"raw chat: {name}", CHAT, raw)
        yield Case(f"raw text: {name}", TEXT, raw)
    yield Case("raw chat: plain text", CHAT, chat(model), headers={"Content-Type": "text/plain"})
    yield Case("raw chat: a form", CHAT, b"a=b", headers={"Content-Type": "application/x-www-form-urlencoded"})
    yield Case("raw chat: no content type", CHAT, chat(model), headers={})
    charset = {"Content-Type": "application/json; charset=utf-8"}
    yield Case("raw chat: JSON with a charset", CHAT, chat(model), headers=charset)
    yield Case("raw chat: JSON of a kind", CHAT, chat(model), headers={"Content-Type": "application/vnd.api+json"})


def _too_long(model: str, limit: int, nonce: int) -> Iterator[Case]:
    full = ids(limit, nonce)
    yield Case("too long: prompt", TEXT, text(model, full, max_tokens=1), exact=True)
    yield Case("too long: prompt by far", TEXT, text(model, full + full, max_tokens=1), exact=True)
    yield Case("too long: answer", TEXT, text(model, full[:-8], max_tokens=20), exact=True)
    yield Case("too long: answer in a stream", TEXT, text(model, full[:-8], max_tokens=20, **_USAGE), exact=True)
    yield Case("too long: answer beyond all", TEXT, text(model, full[:100], max_tokens=limit + 1), exact=True)
    yield Case("too long: chat answer beyond all", CHAT, chat(model, max_tokens=limit + 1))
    yield Case("too long: min_tokens", TEXT, text(model, full[:-8], max_tokens=20, min_tokens=15), exact=True)
    yield Case("too long: chat prompt", CHAT, chat(model, "word " * (2 * limit)))
    yield Case("fits to the token", TEXT, text(model, full[:-4], max_tokens=4), exact=True)
    yield Case("as long as the context allows", TEXT, text(model, full[:-4], max_tokens=None), exact=True)
