"""The client's request body: what the router has to know of it, and the two bodies made from it.

Only the top level is taken apart; every value that is passed on keeps its bytes. D's body is the client's own
plus `kv_transfer_params` and `stream_options.include_usage`. P's copy asks for one token, unstreamed, and
leaves out what would make a one-token prefill fail or end other than by its length: P keeps nothing for D then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from .errors import Code, RequestError


class Api(StrEnum):
    """The two hot routes."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: role, canonical bytes for recognition, the text of its content, size on the wire."""

    role: str
    canonical: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A parsed request. `raw` holds every top-level value as bytes."""

    api: Api
    raw: dict[str, msgspec.Raw]
    model: str
    stream: bool
    wants_usage: bool
    max_tokens: int | None
    messages: tuple[Message, ...]
    prompt_bytes: int
    conversation_id: str | None
    local_only: bool

    @property
    def forces_tool_call(self) -> bool:
        """The answer must be a call of a tool, which cannot be made in one token."""
        return bytes(self.raw.get("tool_choice", b"null")) not in (b"null", b'"none"', b'"auto"')


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_Number = int | float | None
"""1.0 is a whole number in JSON, and engines take it as one."""
MAX_COUNT = 2**53
"""More tokens than that are as many as that."""


class _Model(msgspec.Struct):
    model: object = ""


class _Head(msgspec.Struct):
    model: str = ""
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: _Number = None
    max_completion_tokens: _Number = None
    n: _Number = None
    best_of: _Number = None
    echo: bool | None = None
    prompt_logprobs: _Number = None
    use_beam_search: bool | None = None
    conversation_id: str | None = None


_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decode_model = msgspec.json.Decoder(_Model)
_decode_head = msgspec.json.Decoder(_Head)
_decode_list = msgspec.json.Decoder(list[msgspec.Raw])
_decode_message = msgspec.json.Decoder(dict[str, object])
_encode = msgspec.json.Encoder(order="sorted")
_COUNTS = ("max_tokens", "max_completion_tokens", "n", "best_of", "prompt_logprobs")
_IDENTITY = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What makes a message the same message when a client sends it again; the rest is decoration."""
_NOT_FOR_PREFILL = frozenset(
    {
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "n",
        "best_of",
        "logprobs",
        "top_logprobs",
        "logprob_token_ids",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "structural_tag",
        "thinking_token_budget",
        "stream_interval",
        "repetition_detection",
        "conversation_id",
    }
)
OURS = frozenset(
    {
        *("kv_transfer_params", "ec_transfer_params"),
        *("do_remote_prefill", "do_remote_decode", "remote_engine_id", "remote_block_ids", "remote_request_id"),
        *("remote_host", "remote_port", "remote_tp_size", "tp_size", "transfer_id"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
    }
)
"""Where an engine should fetch KV from. Only the router says that: a client could have an engine connect to any
address, or read another conversation's memory."""
_FALSE, _TRUE, _ONE = (msgspec.Raw(text) for text in (b"false", b"true", b"1"))


def parse(api: Api, body: bytes) -> ClientRequest:
    """Parse a body. Raises RequestError (400) naming the field; the message never quotes content."""
    _check_text(body)
    try:
        raw = _decode_raw.decode(body)
        head = _decode_head.decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(Code.BAD_REQUEST, f"invalid request: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RequestError(Code.BAD_REQUEST, "the request body is no JSON object") from None
    except RecursionError:
        raise RequestError(Code.BAD_REQUEST, "the request body is nested too deep") from None
    if not head.model:
        raise RequestError(Code.BAD_REQUEST, "the field model is missing", "model")
    _refuse_ours(raw)
    _inside(raw, "stream_options")
    counts = {name: _count(head, name) for name in _COUNTS}
    for name in ("max_tokens", "max_completion_tokens"):
        value = counts[name]
        if value is not None and value < 1:
            raise RequestError(Code.BAD_REQUEST, f"{name} must be at least 1", name)
    newer = counts["max_completion_tokens"]
    messages: tuple[Message, ...] = ()
    if api is Api.CHAT:
        messages = _messages(raw)
    elif "prompt" not in raw:
        raise RequestError(Code.BAD_REQUEST, "the field prompt is missing", "prompt")
    return ClientRequest(
        api=api,
        raw=raw,
        model=head.model,
        stream=bool(head.stream),
        wants_usage=bool(head.stream_options and head.stream_options.include_usage),
        max_tokens=newer if newer is not None else counts["max_tokens"],
        messages=messages,
        prompt_bytes=len(raw["prompt"]) if api is Api.COMPLETIONS else sum(m.size_bytes for m in messages),
        conversation_id=head.conversation_id,
        local_only=max(counts["n"] or 1, counts["best_of"] or 1) > 1
        or bool(head.echo)
        or counts["prompt_logprobs"] is not None
        or bool(head.use_beam_search)
        or (api is Api.COMPLETIONS and _several_prompts(raw)),
    )


def _check_text(body: bytes) -> None:
    """JSON is UTF-8; what is skipped over is not checked for that by its parser. Raises RequestError."""
    try:
        if not body.isascii():
            body.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError(Code.BAD_REQUEST, "the request body is no UTF-8, so no JSON object") from None


def _inside(raw: Mapping[str, msgspec.Raw], name: str) -> dict[str, msgspec.Raw]:
    """The values of an object within; none if it is no object. Raises RequestError if a key cannot be read."""
    if not bytes(raw.get(name, b"")).startswith(b"{"):
        return {}
    try:
        return _decode_raw.decode(raw[name])
    except msgspec.MsgspecError:
        raise RequestError(Code.BAD_REQUEST, f"{name} has a key that is no text", name) from None


def _count(head: _Head, name: str) -> int | None:
    """A number of the request that has to be whole. Raises RequestError."""
    value: _Number = getattr(head, name)
    if value is None:
        return None
    if isinstance(value, float) and not value.is_integer():
        raise RequestError(Code.BAD_REQUEST, f"{name} must be a whole number", name)
    return max(-MAX_COUNT, min(MAX_COUNT, int(value)))


def check_passed_on(body: bytes) -> str:
    """The model that a JSON body asks for, "" if it names none, where the body goes to an engine as it is. Raises
    RequestError (400) where it is none that every parser reads alike, or asks for what is not the client's to ask."""
    _check_text(body)
    try:
        raw = _decode_raw.decode(body)
        head = _decode_model.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise RequestError(Code.BAD_REQUEST, "the request body is no JSON object") from None
    except RecursionError:
        raise RequestError(Code.BAD_REQUEST, "the request body is nested too deep") from None
    _refuse_ours(raw)
    return head.model if isinstance(head.model, str) else ""


def _refuse_ours(raw: Mapping[str, msgspec.Raw]) -> None:
    """Raises RequestError (400) on hand-over parameters, wherever engines take some."""
    names = set(raw)
    for inner in ("vllm_xargs", "extra_args", "sampling_params"):
        arguments = _inside(raw, inner)
        names.update(arguments, _inside(arguments, "extra_args"))
    for name in sorted(names & OURS):
        raise RequestError(Code.BAD_REQUEST, f"{name} is set by the router, not by clients", name)


def _messages(raw: Mapping[str, msgspec.Raw]) -> tuple[Message, ...]:
    if "messages" not in raw:
        raise RequestError(Code.BAD_REQUEST, "the field messages is missing", "messages")
    try:
        items = _decode_list.decode(raw["messages"])
        found: list[Message] = []
        for item in items:
            value = _decode_message.decode(item)
            role = value.get("role")
            if not isinstance(role, str):
                raise RequestError(Code.BAD_REQUEST, f"messages[{len(found)}] has no role", "messages")
            identity = {name: value[name] for name in _IDENTITY if value.get(name) is not None}
            found.append(Message(role, _encode.encode(identity), len(item)))
    except (msgspec.MsgspecError, RecursionError):
        raise RequestError(Code.BAD_REQUEST, "messages must be a list of objects", "messages") from None
    if not found:
        raise RequestError(Code.BAD_REQUEST, "messages is empty", "messages")
    return tuple(found)


def _several_prompts(raw: Mapping[str, msgspec.Raw]) -> bool:
    """Whether a completion request holds more than one prompt: D would read one hand-over for all of them."""
    if "prompt_embeds" in raw:
        return True
    if not bytes(raw["prompt"]).startswith(b"["):
        return False
    items = _decode_list.decode(raw["prompt"])
    return len(items) > 1 and bytes(items[0])[:1] in (b'"', b"[")


def assistant_identity(content: str) -> bytes:
    """The canonical bytes of a plain answer, as a client will send it back."""
    return _encode.encode({"role": "assistant", "content": content})


def prefill_body(request: ClientRequest, params: Mapping[str, object] | None) -> bytes:
    """P's copy: one token, whichever it is, not streamed, with the hand-over parameters."""
    body: dict[str, object] = {name: value for name, value in request.raw.items() if name not in _NOT_FOR_PREFILL}
    if request.forces_tool_call:
        del body["tool_choice"]
    body["stream"] = _FALSE
    body["max_tokens"] = _ONE
    body["ignore_eos"] = _TRUE
    if request.api is Api.CHAT:
        body["max_completion_tokens"] = _ONE
    if params is not None:
        body["kv_transfer_params"] = params
    return msgspec.json.encode(body)


def decode_body(request: ClientRequest, params: Mapping[str, object] | None) -> bytes:
    """D's body: the client's values as they came, plus the hand-over and a usage chunk to count by."""
    body: dict[str, object] = {name: value for name, value in request.raw.items() if name != "conversation_id"}
    if request.stream and not request.wants_usage:
        options: dict[str, object] = {}
        if "stream_options" in request.raw and bytes(request.raw["stream_options"]) != b"null":
            options = dict(_decode_raw.decode(request.raw["stream_options"]))
            options.pop("continuous_usage_stats", None)  # without include_usage it means nothing, with ours it would
        options["include_usage"] = _TRUE
        body["stream_options"] = options
    if params is not None:
        body["kv_transfer_params"] = params
    return msgspec.json.encode(body)


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts of an answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """What the engine says was cached; None where it does not say."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Message(msgspec.Struct):
    content: object = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class Answer(msgspec.Struct):
    """An unstreamed answer, as far as the router reads it."""

    usage: Usage | None = None
    choices: list[_Choice] = []
    kv_transfer_params: dict[str, object] | None = None

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        return self.choices[0].finish_reason if self.choices else None

    @property
    def text(self) -> str:
        """The first choice's content, if it is text."""
        message = self.choices[0].message if self.choices else None
        return message.content if message is not None and isinstance(message.content, str) else ""


_decode_answer = msgspec.json.Decoder(Answer)


def parse_answer(body: bytes) -> Answer | None:
    """An engine's unstreamed answer; None if it is none."""
    try:
        return _decode_answer.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
