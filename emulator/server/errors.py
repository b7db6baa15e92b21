"""What vLLM answers when it does not answer: one body shape, and the words of the cases that a client may meet.

`type` is "Bad Request" where FastAPI's validation refused the body and "BadRequestError" where vLLM's own checks
did. A bad key gets another shape, as in vLLM.
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

    def body(self) -> bytes:
        """The JSON body."""
        return json.dumps({"error": self._error()}, separators=(",", ":")).encode()

    def event(self) -> bytes:
        """The same as an event, where the stream has begun."""
        return f"data: {json.dumps({'error': self._error()})}\n\n".encode()

    def _error(self) -> dict[str, object]:
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """vLLM's own checks refuse it."""
    return ApiError(400, message, "BadRequestError", param)


def invalid(message: str, param: str | None = None) -> ApiError:
    """The body is not what the endpoint takes."""
    return ApiError(400, f"1 validation error:\n  {message}", "Bad Request", param)


def no_model(name: str) -> ApiError:
    """Another model is served here."""
    return ApiError(404, f"The model `{name}` does not exist.", "NotFoundError", "model")


def internal(message: str = "Internal server error") -> ApiError:
    """The engine could not do it."""
    return ApiError(500, message, "InternalServerError")


def too_long(prompt_tokens: int, output_tokens: int, limit: int) -> ApiError:
    """Prompt and answer exceed the context."""
    return bad_request(
        f"This model's maximum context length is {limit} tokens. However, you requested {output_tokens} output tokens "
        f"and your prompt contains at least {prompt_tokens} input tokens, for a total of at least "
        f"{prompt_tokens + output_tokens} tokens. Please reduce the length of the input prompt or the number of "
        "requested output tokens.",
        "input_tokens",
    )
