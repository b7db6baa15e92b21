"""How the control process answers over HTTP: JSON, errors in one shape, bodies of bounded size."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec
from fastapi import Request, Response

from router.errors import Code, error_body

_T = TypeVar("_T", bound=msgspec.Struct)


class TooLarge(Exception):
    """A body has more bytes than are read."""


async def body_of(request: Request, limit: int) -> bytes:
    """The whole body. Raises TooLarge."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


async def body_as(request: Request, limit: int, shape: type[_T]) -> _T:
    """The body as such a struct. Raises ValueError with what to write."""
    try:
        return msgspec.json.decode(await body_of(request, limit), type=shape)
    except TooLarge:
        raise ValueError(f"the body has at most {limit} bytes") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the body: {error}") from None


def answered(value: object, status_code: int = 200) -> Response:
    """A JSON document; what JSON does not have is an error here, not there."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(text, status_code=status_code, media_type="application/json")


def refused(status_code: int, code: Code, message: str) -> Response:
    """An error as routers answer it too."""
    return Response(error_body(code, message), status_code=status_code, media_type="application/json")
