"""The requests that the doctor sends: prompts of two KV blocks that nobody else has, one or two tokens of answer."""

from __future__ import annotations

import json
import secrets

from router.body import Api, ClientRequest, parse

from .facts import Node, Page
from .http import Http, NoAnswer
from .page import read

MAX_WORDS = 512


def unique(node: Node) -> str:
    """A prompt that nobody has sent before, of about two blocks."""
    block = (None if node.page is None else node.page.block_tokens) or 16
    longest = max((model.max_model_len or 0 for model in node.models or ()), default=0) or 4096
    words = max(8, min(2 * block, MAX_WORDS, longest // 16))
    return f"{secrets.token_hex(16)} {'check ' * words}".strip()


def request(model: str, api: Api, prompt: str, max_tokens: int, *, stream: bool) -> ClientRequest:
    """As a client would send it."""
    body: dict[str, object] = {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": stream}
    body |= {"messages": [{"role": "user", "content": prompt}]} if api is Api.CHAT else {"prompt": prompt}
    return parse(api, json.dumps(body).encode())


def new_id() -> str:
    """An id by which the request is found in the engine's log."""
    return f"doctor-{secrets.token_hex(8)}"


async def page_of(http: Http, node: Node) -> Page | None:
    """/metrics now; None if it cannot be read."""
    try:
        reply = await http.get(f"{node.url}/metrics")
        return read(node.name, node.url, node.role, node.name_for(""), reply.body.decode("utf-8"))
    except (NoAnswer, ValueError, LookupError):
        return None
