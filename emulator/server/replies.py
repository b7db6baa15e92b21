"""Answers as vLLM 0.32 writes them: whole, and as the events of a stream, key by key in its order.

Checked against captured replies. Two things in a stream are easy to get wrong: the first chunk has a role and no
text, and the fingerprint is on the last chunk only, which is the usage chunk if the client asked for usage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from . import logprobs
from .bodies import Part
from .logprobs import Extras, dumps
from .script import Script
from .vocabulary import number


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

    def _counts(self) -> str:
        total = self.prompt_tokens + self.completion_tokens
        counts = f'"prompt_tokens":{self.prompt_tokens},"total_tokens":{total}'
        return f'{counts},"completion_tokens":{self.completion_tokens}'

    def short(self, chat: bool) -> str:
        """Without details, as in the middle of a stream."""
        details = ',"completion_tokens_details":null' if chat else ""
        return f"{{{self._counts()}{details}}}"

    def full(self) -> str:
        """With details, as at the end of a stream."""
        created = f',"created_cache_tokens":{self.created_tokens}' if self.created_tokens is not None else ""
        return f'{{{self._counts()},"prompt_tokens_details":{{"cached_tokens":{self.cached_tokens}{created}}}}}'

    def whole(self) -> dict[str, object]:
        """With details and nulls, as in an answer that is not streamed."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "created_cache_tokens": self.created_tokens,
                "multimodal_tokens": None,
            },
            "completion_tokens_details": None,
        }


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all events of one answer have in common."""

    id: str
    created: int
    model: str
    fingerprint: str
    chat: bool
    include_usage: bool
    extras: Extras

    def _event(self, choices: str, rest: str) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        named = f'"id":{json.dumps(self.id)},"object":"{kind}"'
        head = f'{named},"created":{self.created},"model":{json.dumps(self.model)}'
        return f'data: {{{head},"choices":[{choices}]{rest}}}\n\n'.encode()

    def opening(self, part: Part, usage: str) -> bytes:
        """The chunk before the first token: chat only."""
        if not self.chat:
            return b""
        start = f'{{"index":{part.index},"delta":{{"role":"assistant","content":""}}'
        ids = dumps(part.prelude.ids) if self.extras.token_ids else "null"
        prompt = f',"prompt_token_ids":{ids},"prompt_text":{dumps(part.prelude.text)}'
        return self._event(f'{start},"logprobs":null,"finish_reason":null}}', usage + prompt)

    def token(self, part: Part, delta: str, usage: str, made: int = 0, tokens: Sequence[bytes] = ()) -> bytes:
        """A token that is not the last; `delta` from `delta()`. `made`: characters told before, of these tokens."""
        if self.chat:
            ended = f'"finish_reason":null,"token_ids":{self._ids(tokens)}'
        else:
            ids = self._prompt_ids(part, made)
            ended = f'"finish_reason":null,"stop_reason":null,"prompt_token_ids":{ids},"token_ids":{self._ids(tokens)}'
        return self._event(self._told(part, delta, ended, made, tokens), usage)

    def last(
        self, part: Part, delta: str, script: Script, usage: str, made: int = 0, tokens: Sequence[bytes] = ()
    ) -> bytes:
        """The last token of a choice."""
        ended = f'"finish_reason":"{script.finish}","stop_reason":{json.dumps(script.stop_reason)}'
        if not self.chat:
            ended += f',"prompt_token_ids":{self._prompt_ids(part, made)}'
        mark = "" if self.include_usage else f',"system_fingerprint":"{self.fingerprint}"'
        ended += f',"token_ids":{self._ids(tokens)}'
        return self._event(self._told(part, delta, ended, made, tokens), usage + mark)

    def _told(self, part: Part, delta: str, ended: str, made: int, tokens: Sequence[bytes]) -> str:
        told = "delta" if self.chat else "text"
        top = self.extras.logprobs
        shown = "null"
        if top is not None and tokens:
            shown = dumps(
                logprobs.chat(tokens, top) if self.chat else logprobs.text(tokens, top, *self._place(part, made))
            )
        return f'{{"index":{part.index},"{told}":{delta},"logprobs":{shown},{ended}}}'

    def _place(self, part: Part, made: int) -> tuple[int, Sequence[int]]:
        """Where a chunk's text begins, and the ids of a prompt that is echoed before it."""
        echoed = part.prelude.text
        if echoed is None:
            return made, ()
        return (0, part.prelude.ids) if not made else (len(echoed) + made, ())

    def _prompt_ids(self, part: Part, made: int) -> str:
        """In the first chunk only; also where the prompt is echoed, as in vLLM."""
        wanted = self.extras.token_ids or part.prelude.text is not None
        return dumps(part.prelude.ids) if wanted and not made else "null"

    def _ids(self, tokens: Sequence[bytes]) -> str:
        return dumps([number(token) for token in tokens]) if self.extras.token_ids else "null"

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices at the end."""
        return self._event("", f',"usage":{usage.full()},"system_fingerprint":"{self.fingerprint}"')

    def call_delta(self, part: Part, script: Script) -> str:
        """What begins a call: its id and name, before any of its arguments."""
        call = f'{{"id":"{call_id(part)}","type":"function","index":0,"function":{{"name":{json.dumps(script.tool)}}}}}'
        return f'{{"content":null,"tool_calls":[{call}]}}'

    def delta(self, script: Script, piece: str) -> str:
        """What a token adds, as JSON."""
        text = json.dumps(piece, ensure_ascii=False)
        if not self.chat:
            return text
        if script.tool is None:
            return f'{{"content":{text}}}'
        return f'{{"content":null,"tool_calls":[{{"index":0,"function":{{"arguments":{text}}}}}]}}'

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
            "usage": usage.whole(),
        }
        if self.chat:
            prelude = answers[0][0].prelude
            ids = list(prelude.ids) if self.extras.token_ids else None
            body |= {"prompt_logprobs": prelude.logprobs, "prompt_token_ids": ids, "prompt_text": prelude.text}
        body |= {"kv_transfer_params": handle, "ec_transfer_params": None, "metrics": None}
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def _choice(self, part: Part, script: Script) -> dict[str, object]:
        extras, prelude = self.extras, part.prelude
        tokens = logprobs.tokens_of(script.text, script.tokens) if extras.of_tokens else []
        shown = None
        if extras.logprobs is not None:
            top = extras.logprobs
            shown = logprobs.chat(tokens, top) if self.chat else logprobs.text(tokens, top, *self._place(part, 0))
        ids = [number(token) for token in tokens] if extras.token_ids else None
        ended = {"finish_reason": script.finish, "stop_reason": script.stop_reason, "token_ids": ids}
        if not self.chat:
            prompt_ids = list(prelude.ids) if extras.token_ids else None
            rest = {"prompt_logprobs": prelude.logprobs, "prompt_token_ids": prompt_ids, "routed_experts": None}
            text = (prelude.text or "") + script.text
            return {"index": part.index, "text": text, "logprobs": shown, **ended, **rest}
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
        return {"index": part.index, "message": message, "logprobs": shown, **ended, "routed_experts": None}


def call_id(part: Part) -> str:
    """The id of a tool call: the same for the same prompt."""
    return f"chatcmpl-tool-{blake2b(part.script.voice.encode(), digest_size=8).hexdigest()}"
