"""The data port's OpenAPI document, written by hand: what the router itself asks of a request, refuses and adds.

Engines know many more fields, and check them: they are let through here as whatever they are. So a body that this
document allows is one that the router passes on, and one that it does not allow is refused with 400.
"""

from __future__ import annotations

from typing import Any

from .body import OURS
from .errors import STATUS, Code

Json = dict[str, Any]


def _nullable(kind: str, **more: object) -> Json:
    return {"type": [kind, "null"], **more}


def _error(*codes: Code, text: str) -> Json:
    return {"description": text, "content": {"application/json": {"schema": _ref("Error")}}, "x-codes": [*codes]}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_TURN_HEADERS: Json = {
    "x-request-id": {"description": "the client's, or a new one", "schema": {"type": "string"}},
    "x-trimtab-route": {
        "description": "where the prompt was computed",
        "schema": {"type": "string", "enum": ["append_local", "prefill_transfer"]},
    },
    "x-trimtab-reason": {"description": "why", "schema": {"type": "string"}},
    "x-trimtab-policy": {"description": "version of the policy that decided", "schema": {"type": "string"}},
    "x-trimtab-turn": {"description": "number of the turn in its conversation", "schema": {"type": "string"}},
}
_COUNT = _nullable("integer", minimum=1)
_READ: Json = {
    "model": {"type": "string", "minLength": 1},
    "stream": _nullable("boolean"),
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": _nullable("boolean")},
    },
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "n": _nullable("integer"),
    "best_of": _nullable("integer"),
    "echo": _nullable("boolean"),
    "prompt_logprobs": _nullable("integer"),
    "use_beam_search": _nullable("boolean"),
    "conversation_id": _nullable("string"),
}
"""What the router reads of both kinds of request. Bounds on n and prompt_logprobs are the engines' affair."""
_HAND_OVER: Json = {"not": {"anyOf": [{"required": [name]} for name in sorted(OURS)]}}


def _request(required: list[str], more: Json) -> Json:
    return {"type": "object", "required": ["model", *required], "properties": {**_READ, **more}, "allOf": [_HAND_OVER]}


_SCHEMAS: Json = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": _nullable("string"),
                    "code": {"type": ["string", "integer", "null"]},
                },
            }
        },
    },
    "ChatRequest": _request(
        ["messages"],
        {
            "messages": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "object", "required": ["role"], "properties": {"role": {"type": "string"}}},
            }
        },
    ),
    "CompletionRequest": _request(["prompt"], {"prompt": {}}),
    "Answer": {
        "type": "object",
        "description": "as the engine wrote it",
        "required": ["choices"],
        "properties": {"choices": {"type": "array"}, "usage": {"type": ["object", "null"]}},
    },
    "Event": {
        "type": "object",
        "description": "one event: an engine's chunk as JSON, or [DONE], or an error where the answer broke off",
        "required": ["data"],
        "properties": {"data": {"type": "string"}},
    },
    "Models": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {
            "object": {"const": "list"},
            "data": {
                "type": "array",
                "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
            },
        },
    },
    "Health": {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}},
    "Ready": {
        "type": "object",
        "required": ["ready", "reason", "topology"],
        "properties": {
            "ready": {"type": "boolean"},
            "reason": {"type": "string"},
            "topology": {"type": "string"},
            "models": {"type": "object"},
        },
    },
}

_NO_KEY = _error(Code.UNAUTHORIZED, text="A missing or unknown API key, where keys are configured.")
_NO_KEY["headers"] = {"www-authenticate": {"schema": {"type": "string"}}}
_FAILURES: Json = {
    "400": _error(Code.BAD_REQUEST, text="The request is wrong; or an engine says so."),
    "401": _NO_KEY,
    "404": _error(Code.MODEL_NOT_FOUND, text="No such model here; or an engine says so."),
    "408": _error(Code.TOO_SLOW, text="The body did not come in time."),
    "413": _error(Code.TOO_LARGE, text="The body is too large."),
    "422": _error(text="An engine says that the request cannot be processed."),
    "429": _error(Code.BUSY, text="As much as the router or an engine takes is in flight."),
    "431": _error(Code.HEADERS_TOO_LARGE, text="The request's head is too large."),
    "500": _error(Code.INTERNAL, text="A mistake in the router or in an engine."),
    "502": _error(Code.UPSTREAM_ERROR, text="No engine answered."),
    "503": _error(
        *(Code.NO_NODE, Code.P_UNAVAILABLE, Code.DRAINING), text="No engine can serve, or the router shuts down."
    ),
    "504": _error(Code.UPSTREAM_TIMEOUT, text="An engine was silent for too long."),
}
_SESSION: list[Json] = [
    {
        "name": name,
        "in": "header",
        "required": False,
        "description": text,
        "schema": {"type": "string"},
    }
    for name, text in (
        ("X-Session-ID", "The conversation's id, at most 256 printable characters; others are ignored."),
        ("X-Session-Affinity", "The same."),
        ("X-Correlation-ID", "The same."),
        ("X-Request-ID", "Comes back in the answer."),
    )
]


def _turn(name: str, summary: str, schema: str) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        "security": [{}, {"key": []}],
        "parameters": _SESSION,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(schema)}}},
        "responses": {
            "200": {
                "description": "The engine's answer; with stream, its events, byte for byte.",
                "headers": _TURN_HEADERS,
                "content": {
                    "application/json": {"schema": _ref("Answer")},
                    "text/event-stream": {"schema": _ref("Event")},
                },
            },
            **_FAILURES,
        },
    }


def _own(name: str, summary: str, schema: str, *failures: int, keyed: bool = False) -> Json:
    responses: Json = {"200": {"description": "Yes.", "content": {"application/json": {"schema": _ref(schema)}}}}
    if name == "ready":
        responses["503"] = {"description": "Not now.", "content": {"application/json": {"schema": _ref(schema)}}}
    responses.update({str(status): _FAILURES[str(status)] for status in failures})
    return {
        "operationId": name,
        "summary": summary,
        **({"security": [{}, {"key": []}]} if keyed else {}),
        "responses": responses,
    }


DOCUMENT: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "Trimtab router",
        "version": "1",
        "description": "The OpenAI API in front of a vLLM fleet. Other routes of engines below /v1/ are passed on.",
    },
    "paths": {
        "/v1/chat/completions": {"post": _turn("chat", "A turn of a conversation.", "ChatRequest")},
        "/v1/completions": {"post": _turn("complete", "A turn with a raw prompt.", "CompletionRequest")},
        "/v1/models": {"get": _own("models", "What the engines serve.", "Models", 401, 503, keyed=True)},
        "/health": {"get": _own("health", "This process answers.", "Health")},
        "/ready": {"get": _own("ready", "It can serve.", "Ready")},
    },
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    },
}

assert all(int(status) in {*STATUS.values(), 422} for status in _FAILURES)
