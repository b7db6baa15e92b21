"""What vLLM answers when it does not answer: one body shape, and the words of the cases that a client may meet.

`type` is "Bad Request" where FastAPI's validation refused the body (`validation.py`) and "BadRequestError" where vLLM's
own checks did (`checks.py`). Paths, methods and a bad key get other shapes, as in vLLM.
"""

from __future__ import annotations

import json

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
UNAUTHORIZED = b'{"error":"Unauthorized"}'


class ApiError(Exception):
    """A request that ends with this status and body."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param
        self.headers: dict[str, str] = {}

    def body(self) -> bytes:
        """The JSON body."""
        return json.dumps({"error": self._error()}, separators=(",", ":")).encode()

    def event(self) -> bytes:
        """The same as an event, where the stream has begun."""
        return f"data: {json.dumps({'error': self._error()})}\n\n".encode()

    def _error(self) -> dict[str, object]:
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}


class Detail(ApiError):
    """What the web framework says before vLLM's own code has a say."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(status, message, message)
        self.headers = headers

    def body(self) -> bytes:
        """The JSON body."""
        return json.dumps({"detail": self.message}, separators=(",", ":")).encode()


def refused(message: str, param: str, *value: object) -> ApiError:
    """vLLM's own checks refuse a parameter, and say its value if one is given."""
    said = f", value={value[0]}" if value else ""
    return ApiError(400, f"{message} (parameter={param}{said})", "BadRequestError", param)


def bad_request(message: str, param: str | None = None) -> ApiError:
    """vLLM's own checks refuse it, without a word on which parameter."""
    return ApiError(400, message, "BadRequestError", param)


def no_model(name: str, served: str) -> ApiError:
    """Another model is served here."""
    said = f"The model `{name}` does not exist. Valid aliases: {served}."
    return ApiError(404, said, "NotFoundError", "model")


def unsupported() -> ApiError:
    """Neither route nor tokenizer reads anything but JSON."""
    said = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(400, said, "Bad Request")


def internal(message: str = "Internal server error") -> ApiError:
    """The engine could not do it."""
    return ApiError(500, message, "InternalServerError")


def too_long(prompt_tokens: int, limit: int, counted: bool) -> ApiError:
    """The prompt alone exceeds the context; `counted`: it came as token ids."""
    if not counted:  # vLLM stops its tokenizer one token beyond the limit, and then cannot know more
        prompt_tokens = limit + 1
    least = "at least " if prompt_tokens == limit + 1 else ""
    return refused(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {least}{prompt_tokens} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        "prompt.",
        "input_tokens",
        prompt_tokens,
    )
