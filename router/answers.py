"""What goes to a client as a whole: answers, errors with Retry-After, and the headers that say how a turn went."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from .core import Flight
from .errors import RETRY_AFTER_S, STATUS, Code, RequestError, error_body

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]


async def answer(send: Send, status: int, body: bytes, content_type: str, extra: Iterable[Header]) -> None:
    """One whole answer."""
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def refuse(send: Send, error: RequestError, extra: Iterable[Header]) -> None:
    """An error that the router itself has to tell, with when to come back where that helps."""
    await answer(send, error.status, error.body(), "application/json", [*extra, *beside(error.code)])


async def fail(send: Send, code: Code, message: str, extra: Iterable[Header]) -> None:
    """The same by its code."""
    body = error_body(code, message)
    await answer(send, STATUS[code], body, "application/json", [*extra, *beside(code)])


def beside(code: Code) -> list[Header]:
    """What HTTP has a status say more: when to come back, how to come in. A router that is leaving wants no further
    request on the connection."""
    after_s = RETRY_AFTER_S.get(code)
    found = [] if after_s is None else [(b"retry-after", str(after_s).encode())]
    return [*found, *_BESIDE.get(code, [])]


_BESIDE: dict[Code, list[Header]] = {
    Code.DRAINING: [(b"connection", b"close")],
    Code.UNAUTHORIZED: [(b"www-authenticate", b"Bearer")],
    Code.METHOD_NOT_ALLOWED: [(b"allow", b"GET, POST")],
}


def error_event(code: Code, message: str) -> bytes:
    """The same in a stream that has begun."""
    return b"data: " + error_body(code, message) + b"\n\n"


def named(request_id: str) -> Header:
    """The request's id, as its client knows it."""
    return b"x-request-id", request_id.encode("latin-1", "replace")


def told(flight: Flight, request_id: str) -> list[Header]:
    """How the turn went."""
    return [
        named(request_id),
        (b"x-trimtab-route", flight.placement.realised.value.encode()),
        (b"x-trimtab-reason", flight.decision.reason.value.encode()),
        (b"x-trimtab-policy", str(flight.decision.policy_version).encode()),
        (b"x-trimtab-turn", str(flight.number).encode()),
    ]
