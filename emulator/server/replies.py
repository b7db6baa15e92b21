"""Answers as vLLM 0.32 writes them: whole, and as the events of a stream, key by key in its order.

Checked against captured replies. Two things in a stream are easy to get wrong: the first chunk has a role and no
text, and the fingerprint is on the last chunk only, which is the usage chunk if the client asked for usage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from .bodies import Part
from .script import Script


def fingerprint(profile: str) -> str:
    """What `system_fingerprint` says: version, and a hash of the configuration."""
    return f"vllm-0.32.0-{blake2b(profile.encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. `created_tokens` is for chat only, as in vLLM."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    created_tokens: int | None

    def short(self) -> str:
        """Without details, as in the middle of a stream."""
        total = self.prompt_tokens + self.completion_tokens
        return (
            f'{{"prompt_tokens":{self.prompt_tokens},"total_tokens":{total},'
            f'"completion_tokens":{self.completion_tokens}}}'
        )

    def full(self, nulls: bool) -> str:
        """With details; `nulls` as in an answer that is not streamed."""
        created = f',"created_cache_tokens":{self.created_tokens}' if self.created_tokens is not None else ""
        if nulls and not created:
            created = ',"created_cache_tokens":null'
        return f'{self.short()[:-1]},"prompt_tokens_details":{{"cached_tokens":{self.cached_tokens}{created}}}}}'


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all events of one answer have in common."""

    id: str
    created: int
    model: str
    fingerprint: str
    chat: bool
    include_usage: bool

    def _event(self, choices: str, rest: str) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        named = f'"id":{json.dumps(self.id)},"object":"{kind}"'
        head = f'{named},"created":{self.created},"model":{json.dumps(self.model)}'
        return f'data: {{{head},"choices":[{choices}]{rest}}}\n\n'.encode()

    def opening(self, index: int, usage: str) -> bytes:
        """The chunk before the first token: chat only."""
        if not self.chat:
            return b""
        choice = f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'
        return self._event(choice, f'{usage},"prompt_token_ids":null,"prompt_text":null')

    def token(self, index: int, delta: str, usage: str) -> bytes:
        """A token that is not the last; `delta` from `delta()`."""
        if self.chat:
            choice = f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null,"token_ids":null}}'
        else:
            choice = (
                f'{{"index":{index},"text":{delta},"logprobs":null,"finish_reason":null,"stop_reason":null,'
                '"prompt_token_ids":null,"token_ids":null}'
            )
        return self._event(choice, usage)

    def last(self, index: int, delta: str, script: Script, usage: str) -> bytes:
        """The last token of a choice."""
        ended = f'"finish_reason":"{script.finish}","stop_reason":{json.dumps(script.stop_reason)}'
        if self.chat:
            choice = f'{{"index":{index},"delta":{delta},"logprobs":null,{ended},"token_ids":null}}'
        else:
            choice = (
                f'{{"index":{index},"text":{delta},"logprobs":null,{ended},"prompt_token_ids":null,"token_ids":null}}'
            )
        mark = "" if self.include_usage else f',"system_fingerprint":"{self.fingerprint}"'
        return self._event(choice, usage + mark)

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices at the end."""
        return self._event("", f',"usage":{usage.full(False)},"system_fingerprint":"{self.fingerprint}"')

    def delta(self, part: Part, script: Script, piece: str, begins_call: bool) -> str:
        """What a token adds, as JSON."""
        text = json.dumps(piece, ensure_ascii=False)
        if not self.chat:
            return text
        if script.tool is None:
            return f'{{"content":{text}}}'
        if begins_call:
            call = (
                f'{{"id":"{call_id(part)}","type":"function","index":0,"function":{{"name":{json.dumps(script.tool)},'
            )
            return f'{{"tool_calls":[{call}"arguments":{text}}}}}]}}'
        return f'{{"tool_calls":[{{"index":0,"function":{{"arguments":{text}}}}}]}}'

    def whole(self, answers: Sequence[tuple[Part, Script]], usage: Usage, handle: Mapping[str, object] | None) -> bytes:
        """The body of an answer that is not streamed."""
        body: dict[str, object] = {
            "id": self.id,
            "object": "chat.completion" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(part, script) for part, script in answers],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": json.loads(usage.full(True)),
        }
        if self.chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        body["kv_transfer_params"] = handle
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def _choice(self, part: Part, script: Script) -> dict[str, object]:
        ended = {"finish_reason": script.finish, "stop_reason": script.stop_reason, "token_ids": None}
        if not self.chat:
            rest = {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
            return {"index": part.index, "text": script.text, "logprobs": None, **ended, **rest}
        message: dict[str, object] = {
            "role": "assistant",
            "content": "" if script.skipped else script.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if script.tool is not None:
            function = {"name": script.tool, "arguments": script.text}
            message["tool_calls"] = [{"id": call_id(part), "type": "function", "function": function}]
        message["reasoning"] = None
        return {"index": part.index, "message": message, "logprobs": None, **ended, "routed_experts": None}


def call_id(part: Part) -> str:
    """The id of a tool call: the same for the same prompt."""
    return f"chatcmpl-tool-{blake2b(part.script.voice.encode(), digest_size=8).hexdigest()}"
