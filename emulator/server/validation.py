"""A body that is not what its endpoint takes, in the words in which vLLM 0.32 says so.

FastAPI reads the JSON and pydantic checks its types there as here, so the errors are the same ones; what is vLLM's own
is how it lists them: at most ten, containers by their size, and no names of union branches in the path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import ApiError, Detail

M = TypeVar("M", bound=BaseModel)

_MAX_ERRORS = 10
_MAX_INPUT_CHARS = 200
_FORMATS = ("ResponseFormat", "StructuralTagResponseFormat", "_LegacyStructuralTagResponseFormat")
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", *_FORMATS})


def read_json(raw: bytes) -> dict[str, Any]:
    """The object that a body holds. Raises ApiError."""
    try:
        value = json.loads(raw) if raw else None
    except json.JSONDecodeError as error:
        found = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise invalid([found]) from None
    except (ValueError, RecursionError):
        raise Detail(400, "There was an error parsing the body") from None
    if value is None:
        raise invalid([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    if not isinstance(value, dict):
        said = "Input should be a valid dictionary or object to extract fields from"
        raise invalid([{"type": "model_attributes_type", "loc": ("body",), "msg": said, "input": value}])
    return value


def typed(model: type[M], value: Mapping[str, Any]) -> M:
    """The object as the model has it. Raises ApiError."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(complaints(error)) from None


def complaints(error: ValidationError) -> list[dict[str, Any]]:
    """pydantic's errors as FastAPI has them."""
    found = []
    for each in error.errors(include_url=False):
        entry: dict[str, Any] = {**each, "loc": ("body", *each["loc"])}
        if each["type"] == "model_type":
            entry["type"] = "model_attributes_type"
            entry["msg"] = "Input should be a valid dictionary or object to extract fields from"
            del entry["ctx"]
        found.append(entry)
    return found


def invalid(found: Sequence[Mapping[str, Any]]) -> ApiError:
    """The 400 that lists them."""
    word = "error" if len(found) == 1 else "errors"
    lines = [f"{len(found)} validation {word}:", *(f"  {_shown(each)}" for each in found[:_MAX_ERRORS])]
    if len(found) > _MAX_ERRORS:
        lines.append(f"  ...and {len(found) - _MAX_ERRORS} more errors")
    return ApiError(400, "\n".join(lines), "Bad Request", _path(found[0]["loc"]))


def _shown(error: Mapping[str, Any]) -> dict[str, Any]:
    return {**error, "loc": _path(error["loc"]), "input": _summary(error["input"])}


def _path(loc: Sequence[object]) -> str:
    return ".".join(str(part) for part in loc if not (str(part) in _BRANCHES or "[" in str(part)))


def _summary(value: object) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _MAX_INPUT_CHARS else f"{text[:_MAX_INPUT_CHARS]}...[truncated]"
