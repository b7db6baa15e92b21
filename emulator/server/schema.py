"""The bodies of requests: fields and types as vLLM 0.32 declares them, as far as they can be wrong or change an answer.

Unknown fields pass, as in vLLM. Messages are checked for what every message has; vLLM checks each against the OpenAI
types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_Id = Annotated[int, Field(ge=0)]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class StreamOptions(_Open):
    """What a stream says of usage."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _JsonSchema(_Open):
    name: str
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class ResponseFormat(_Open):
    """JSON, by a schema or of any kind."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None


class StructuralTagResponseFormat(_Open):
    """Structure by tags: taken, and not emulated."""

    type: Literal["structural_tag"]
    format: Any


class _LegacyStructuralTagResponseFormat(_Open):
    type: Literal["structural_tag"]
    structures: list[Any]
    triggers: list[str]


class StructuredOutputs(_Open):
    """vLLM's own guides."""

    json_schema: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Body(_Open):
    """What both routes take."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | StructuralTagResponseFormat | _LegacyStructuralTagResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    request_id: str | None = None
    session_id: str | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class Message(_Open):
    """One message of a chat."""

    role: str
    content: str | list[Any] | None = None


class _Function(_Open):
    name: str
    parameters: dict[str, Any] | None = None


class _Tool(_Open):
    type: str = "function"
    function: _Function


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[Message]
    n: int | None = 1
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_completion_tokens: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_prompt_text: bool | None = None


class TextBody(Body):
    """POST /v1/completions."""

    prompt: list[_Id] | list[list[_Id]] | str | list[str] | None = None
    n: int = 1
    echo: bool | None = False
    logprobs: int | None = None
    suffix: str | None = None


class TokenizeText(_Open):
    """POST /tokenize with a prompt."""

    model: str | None = None
    prompt: str
    return_token_strs: bool | None = False


class TokenizeChat(_Open):
    """POST /tokenize with messages."""

    model: str | None = None
    messages: list[Message]
    tools: list[_Tool] | None = None
    return_token_strs: bool | None = False


class Detokenize(_Open):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[_Id]
