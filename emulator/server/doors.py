"""What a node answers beside generation: models, tokens there and back, version, load."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from pydantic import ValidationError

from . import errors, vocabulary
from .bodies import Limits, plain
from .schema import Detokenize, TokenizeChat, TokenizeText
from .tokens import chat_text
from .validation import complaints, invalid, read_json, typed

VERSION = "0.32.0"


def version(raw: bytes, limits: Limits) -> dict[str, object]:
    """GET /version."""
    return {"version": VERSION}


def load(raw: bytes, limits: Limits) -> dict[str, object]:
    """GET /load: vLLM counts only where it was started with --enable-server-load-tracking, and says 0 else."""
    return {"server_load": 0}


def tokenize(raw: bytes, limits: Limits) -> dict[str, object]:
    """POST /tokenize. Raises ApiError."""
    found = read_json(raw)
    body = _either(found)
    if body.model is not None and body.model != limits.model:
        raise errors.no_model(body.model, limits.model)
    if isinstance(body, TokenizeText):
        text = body.prompt
    else:
        tools = [tool.model_dump(exclude_unset=True) for tool in body.tools] if body.tools else None
        text = chat_text(plain(body.messages), tools)
    ids = vocabulary.encode(text)
    strings = [vocabulary.decode([token]) for token in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": limits.max_model_len, "tokens": ids, "token_strs": strings}


def detokenize(raw: bytes, limits: Limits) -> dict[str, object]:
    """POST /detokenize. Raises ApiError."""
    body = typed(Detokenize, read_json(raw))
    if body.model is not None and body.model != limits.model:
        raise errors.no_model(body.model, limits.model)
    return {"prompt": vocabulary.decode(body.tokens)}


def models(limits: Limits, created: int) -> bytes:
    """GET /v1/models."""
    permission = {
        "id": f"modelperm-{uuid4().hex[:16]}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": limits.model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": limits.model,
        "parent": None,
        "max_model_len": limits.max_model_len,
        "permission": [permission],
    }
    return json.dumps({"object": "list", "data": [card]}).encode()


Door = Callable[[bytes, Limits], dict[str, object]]


def _either(found: dict[str, Any]) -> TokenizeText | TokenizeChat:
    """A prompt or messages; what is wrong is said of both, as of any union."""
    said = []
    for model in (TokenizeText, TokenizeChat):
        try:
            return model.model_validate(found)
        except ValidationError as error:
            said += complaints(error)
    raise invalid(said)
