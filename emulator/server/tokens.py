"""Tokens without a tokenizer: how long a prompt is, what names its parts in the prefix cache, what the answer says.

    tokens(message) = 4 (header) + ⌈UTF-8 bytes of its content / 4⌉        prompt = Σ messages + 4

The last 4 are the header of the answer to come (the chat template's generation prompt). When the answer is sent
back as history its message needs no other header, so a prompt of p tokens that was answered with n is a prefix of
p + n tokens of the next turn's prompt, as in vLLM.

A segment's key is a hash of everything up to its end, so shared system prompts and forks meet in the cache. The
answer is drawn from the key of its own header, 4 ASCII bytes a token, and the cache files it under that key. So
an assistant message is found again as far as it is what this model would have said there; from the first edited
token on it is new text. An answer is the same whatever max_tokens, seed or temperature are; shorter is a prefix.

Tools, tool calls and content parts other than text count as their canonical JSON; an answer that calls a tool
counts as `name(arguments)`. Raw prompts (/v1/completions, token ids) are cut into blocks of `block_tokens`, which they
share; in a text, what this model would have said at that place is found again too. Reasoning fields of history are
ignored, as most chat templates drop them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, shake_128
from struct import pack

from ..prefix_cache import Prompt

BYTES_PER_TOKEN = 4
HEADER_TOKENS = 4
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
# An answer neither begins nor ends with a blank: clients that strip it still send back the same text.
_FIRST = tuple(f"{a.upper()}{b}{c}{d}" for a in _CONSONANTS for b in _VOWELS for c in _CONSONANTS for d in _VOWELS)
_LATER = tuple(f" {a}{b}{c}" for a in _CONSONANTS for b in _VOWELS for c in _CONSONANTS)
_BEGINS = re.compile(f"(?=[{_CONSONANTS.upper()}][{_VOWELS}][{_CONSONANTS}][{_VOWELS}])".encode())
_PLAIN: dict[str, object] = {"integer": 7, "number": 7.5, "boolean": True, "array": [], "object": {}, "null": None}

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as the engine and the cache see it, and the key from which its answer is drawn."""

    prompt: Prompt
    tokens: int
    voice: str
    counted: bool = False
    """Whether it came as token ids."""


def render_chat(messages: Sequence[Message], tools: object, salt: str, tool: Mapping[str, object] | None) -> Rendered:
    """A conversation. `tool` is the function that the answer must call, if it must."""
    chain = _key("chat")
    prompt: list[tuple[str, int]] = []
    if tools:
        data = _canonical(tools)
        chain = _key(chain, "tools", data)
        prompt.append((chain, HEADER_TOKENS + count(data)))
    for message in messages:
        role, text, extra = str(message.get("role")), content_text(message.get("content")), _extra(message)
        after = _key(chain, role, text, extra)
        tokens = count(text + extra)
        if role == "assistant":
            voice, own = _own_tokens(chain, text, message.get("tool_calls"), tools)
            prompt.append((voice, HEADER_TOKENS + own))
            if tokens > own:
                prompt.append((after, tokens - own))
        else:
            prompt.append((after, HEADER_TOKENS + tokens))
        chain = after
    voice = _voice(chain, None if tool is None else str(tool.get("name")))
    prompt.append((voice, HEADER_TOKENS))
    return Rendered(_salted(prompt, salt), sum(tokens for _, tokens in prompt), voice)


def chat_text(messages: Sequence[Message], tools: object) -> str:
    """A conversation as one text of as many tokens as `render_chat` counts."""
    said = [("tools", _canonical(tools))] if tools else []
    said += [(str(m.get("role")), content_text(m.get("content")) + _extra(m)) for m in messages]
    return "".join(_padded(f"<|{role}|>", HEADER_TOKENS) + _padded(text, count(text)) for role, text in said) + _padded(
        "<|assistant|>", HEADER_TOKENS
    )


def render_raw(text: str | Sequence[int], salt: str, block_tokens: int) -> Rendered:
    """A prompt without messages: text, or token ids."""
    if isinstance(text, str):
        data = text.encode("utf-8", "surrogatepass")
        prompt, voice = _raw_text(data, BYTES_PER_TOKEN * block_tokens)
        return Rendered(_salted(prompt, salt), sum(tokens for _, tokens in prompt), voice)
    prompt, voice = [], _key("raw", "8")
    for start in range(0, len(text), block_tokens):
        block = text[start : start + block_tokens]
        voice = _chained(voice, pack(f"<{len(block)}q", *block))
        prompt.append((voice, len(block)))
    return Rendered(_salted(prompt, salt), len(text), voice, counted=True)


def _raw_text(data: bytes, block: int) -> tuple[list[tuple[str, int]], str]:
    """Blocks of a text, and within it what this model would have said at that place, under the key before it."""
    prompt: list[tuple[str, int]] = []
    chain, at = _key("raw", str(BYTES_PER_TOKEN)), 0
    for begin in (match.start() for match in _BEGINS.finditer(data)):
        if begin <= at:
            continue
        while begin - at > block:
            chain = _chained(chain, data[at : at + block])
            prompt.append((chain, block // BYTES_PER_TOKEN))
            at += block
        voice = _chained(chain, data[at:begin])
        own = _said(voice, data[begin:])
        if own < 2:  # one word may be chance
            continue
        prompt.append((voice, -(-(begin - at) // BYTES_PER_TOKEN) + own))
        at = begin + own * BYTES_PER_TOKEN
        chain = _chained(voice, data[begin:at])
    while at < len(data):
        chain = _chained(chain, data[at : at + block])
        prompt.append((chain, -(-min(block, len(data) - at) // BYTES_PER_TOKEN)))
        at += block
    return prompt, chain


def _said(voice: str, data: bytes) -> int:
    """How many whole tokens at the beginning of `data` this voice would say."""
    if draw(voice, 1).encode() != data[:BYTES_PER_TOKEN]:
        return 0
    expected = draw(voice, len(data) // BYTES_PER_TOKEN).encode()
    same = next((at for at, (a, b) in enumerate(zip(expected, data, strict=False)) if a != b), len(expected))
    return same // BYTES_PER_TOKEN


def _chained(chain: str, data: bytes) -> str:
    return blake2b(data, digest_size=12, key=chain.encode()).hexdigest()


def count(text: str) -> int:
    """Tokens of a text inside a message."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def draw(voice: str, tokens: int) -> str:
    """The first `tokens` tokens of what the model says with this voice."""
    dice = shake_128(voice.encode()).digest(2 * tokens)
    numbers = [dice[i] << 8 | dice[i + 1] for i in range(0, len(dice), 2)]
    first = _FIRST[numbers[0] % len(_FIRST)] if numbers else ""
    return first + "".join([_LATER[number % len(_LATER)] for number in numbers[1:]])


def word(number: int) -> str:
    """One of the words, of one token each, that answers are made of."""
    return _LATER[number % len(_LATER)]


def natural_tokens(voice: str) -> int:
    """How long the answer is if nobody limits it: 16 to 256 tokens."""
    return 16 + int.from_bytes(shake_128(f"{voice} length".encode()).digest(2), "big") % 241


def tool_arguments(voice: str, tool: Mapping[str, object]) -> str:
    """The JSON with which the answer calls a function: a value for each property of its schema."""
    parameters = tool.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return "{}"
    words = iter(draw(voice, 1 + 4 * len(properties)).split(" "))
    return json.dumps({str(name): _value(schema, words) for name, schema in properties.items()})


def content_text(content: object) -> str:
    """What a message says: text parts joined as vLLM does, other parts as canonical JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        return _canonical(content)
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        parts.append(text if isinstance(text, str) else part if isinstance(part, str) else _canonical(part))
    return "\n".join(parts)


def tool_named(tools: object, name: object) -> Mapping[str, object] | None:
    """The function of that name among a request's tools."""
    for tool in tools if isinstance(tools, Sequence) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("name") == name:
            return function
    return None


def _own_tokens(chain: str, text: str, calls: object, tools: object) -> tuple[str, int]:
    """The voice that may have said this message, and how many whole tokens of it are what that voice says."""
    said = text
    voice = _voice(chain, None)
    expected = ""
    if calls and not text and isinstance(calls, Sequence) and len(calls) == 1 and isinstance(calls[0], Mapping):
        function = calls[0].get("function")
        tool = tool_named(tools, function.get("name")) if isinstance(function, Mapping) else None
        if tool is not None and isinstance(function, Mapping):
            voice = _voice(chain, str(tool.get("name")))
            said = f"{function.get('name')}({function.get('arguments')})"
            expected = f"{tool.get('name')}({tool_arguments(voice, tool)})"
    elif not calls:
        expected = draw(voice, count(text))
    same = len(said)
    if not expected.startswith(said):
        same = next((at for at, (a, b) in enumerate(zip(said, expected, strict=False)) if a != b), len(expected))
    if same == len(said) == len(expected):
        return voice, count(said)
    return voice, same // BYTES_PER_TOKEN


def _salted(prompt: Sequence[tuple[str, int]], salt: str) -> Prompt:
    """A salt parts the caches, and changes nothing of what the model says."""
    return tuple((_key(salt, key), tokens) for key, tokens in prompt) if salt else tuple(prompt)


def _padded(text: str, tokens: int) -> str:
    """Blanks behind it, or its end cut off, to that many tokens."""
    data = text.encode("utf-8", "surrogatepass")[: tokens * BYTES_PER_TOKEN]
    return data.ljust(tokens * BYTES_PER_TOKEN).decode("utf-8", "ignore")


def _voice(chain: str, tool_name: str | None) -> str:
    return _key(chain, "answer") if tool_name is None else _key(chain, "call", tool_name)


def _extra(message: Message) -> str:
    """What a message holds beside its content and counts."""
    calls = message.get("tool_calls")
    if isinstance(calls, Sequence) and calls:
        functions = [call.get("function") for call in calls if isinstance(call, Mapping)]
        named = [f for f in functions if isinstance(f, Mapping)]
        return "".join(f"{f.get('name')}({f.get('arguments')})" for f in named)
    kept = {name: message[name] for name in ("name", "tool_call_id") if message.get(name)}
    return _canonical(kept) if kept else ""


def _value(schema: object, words: Iterator[str]) -> object:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(choices, Sequence) and choices:
        return choices[0]
    if isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind]
    return f"{next(words)} {next(words)}"


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _key(*parts: str) -> str:
    state = blake2b(digest_size=12)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()
