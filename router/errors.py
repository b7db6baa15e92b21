"""Errors as OpenAI clients expect them: one table of codes and statuses, one body shape."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Code(StrEnum):
    """The `code` of an error body; also a metric label."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_LARGE = "request_too_large"
    TOO_SLOW = "request_too_slow"
    BUSY = "busy"
    UNSUPPORTED_TYPE = "unsupported_media_type"
    HEADERS_TOO_LARGE = "headers_too_large"
    NO_NODE = "no_node"
    P_UNAVAILABLE = "p_unavailable"
    DRAINING = "draining"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_BROKE_OFF = "upstream_broke_off"
    INTERNAL = "internal"


STATUS: dict[Code, int] = {
    Code.BAD_REQUEST: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.MODEL_NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.TOO_LARGE: 413,
    Code.TOO_SLOW: 408,
    Code.BUSY: 429,
    Code.UNSUPPORTED_TYPE: 415,
    Code.HEADERS_TOO_LARGE: 431,
    Code.NO_NODE: 503,
    Code.P_UNAVAILABLE: 503,
    Code.DRAINING: 503,
    Code.UPSTREAM_ERROR: 502,
    Code.UPSTREAM_TIMEOUT: 504,
    Code.UPSTREAM_BROKE_OFF: 502,
    Code.INTERNAL: 500,
}


RETRY_AFTER_S: dict[Code, int] = {Code.BUSY: 1, Code.NO_NODE: 2, Code.P_UNAVAILABLE: 2, Code.DRAINING: 1}
"""What `Retry-After` says, where another try may do better soon."""


class RequestError(Exception):
    """A request that is refused. The message is for the client: it never holds text of a prompt or a secret."""

    def __init__(self, code: Code, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return STATUS[self.code]

    def body(self) -> bytes:
        """The OpenAI error object."""
        return error_body(self.code, self.message, self.param)


def error_body(code: Code, message: str, param: str | None = None) -> bytes:
    """`{"error": {message, type, param, code}}`."""
    kind = "invalid_request_error" if STATUS[code] < 500 else "server_error"
    if STATUS[code] == 429:
        kind = "rate_limit_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code.value}})
