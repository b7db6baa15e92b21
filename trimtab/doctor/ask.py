"""A shell: one engine alone is asked something tiny, twice, the way the router asks a D."""

from __future__ import annotations

import json
from dataclasses import replace

from router.body import Api, decode_body
from router.sse import Meter
from router.turn import Role

from .facts import Ask, Node
from .http import Http, NoAnswer
from .requests import new_id, request, unique


async def ask(http: Http, node: Node, model: str) -> Ask | None:
    """What a D or replica answers; None of other nodes and of those without a model."""
    if node.problem or node.role not in (Role.DECODE, Role.REPLICA) or not node.name_for(model):
        return None
    prompt = unique(node)
    try:
        first = await _ask_once(http, node, model, Api.CHAT, prompt)
        if first.error.startswith("status 400"):  # a model without a chat template
            text = await _ask_once(http, node, model, Api.COMPLETIONS, prompt)
            first = first if text.error else text
        if first.error:
            return first
        again = await _ask_once(http, node, model, Api.CHAT if first.chat else Api.COMPLETIONS, prompt)
    except (NoAnswer, ValueError) as error:
        return Ask(error=str(error))
    # Older engines leave the details out where nothing was cached.
    return replace(again, details=first.details or again.details, id_taken=first.id_taken)


async def _ask_once(http: Http, node: Node, model: str, api: Api, prompt: str) -> Ask:
    """Raises NoAnswer, and ValueError for what is no stream."""
    request_id = new_id()
    body = decode_body(request(node.name_for(model), api, prompt, 2, stream=True), None)
    reply = await http.post(node.url + api.value, body, {"X-Request-Id": request_id})
    if reply.status != 200:
        return Ask(error=reply.refusal)
    meter = Meter(drop_usage=False)
    meter.feed(reply.body)
    meter.finish()
    if meter.errored or meter.silent:
        return Ask(error="the stream held no answer")
    usage = meter.usage
    return Ask(
        chat=api is Api.CHAT,
        usage=usage is not None,
        details=usage is not None and usage.cached_tokens is not None,
        cached_again=None if usage is None else usage.cached_tokens,
        prompt_tokens=0 if usage is None else usage.prompt_tokens,
        id_taken=request_id in _stream_id(reply.body),
        id_echoed=reply.headers.get("X-Request-Id") == request_id,
    )


def _stream_id(body: bytes) -> str:
    """The answer's id, from its first event."""
    first = body.partition(b"data: ")[2].partition(b"\n")[0]
    try:
        value = json.loads(first)
    except ValueError:
        return ""
    return str(value.get("id", "")) if isinstance(value, dict) else ""
