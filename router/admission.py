"""Who is let in: requests at once, the bytes of their bodies and of answers that are read whole, and nobody any more
once the router is leaving.

A request holds a slot from its headers to its last byte, and its body's bytes with it; an answer that is not streamed
holds its bytes until it is out. All are given back when their `with` block ends, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import Code, RequestError

MAX_REQUESTS = 2048
MAX_BODIES_BYTES = 1 << 30
MAX_ANSWERS_BYTES = 1 << 30


class Slot:
    """One request's place."""

    __slots__ = ("_admission", "held_bytes")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """So many more bytes of its body have come. Raises RequestError where all bodies together are too much."""
        admission = self._admission
        if admission.body_bytes + size_bytes > admission.max_bodies_bytes:
            raise RequestError(Code.BUSY, "the bodies of all requests at once are too much; send the request again")
        self.held_bytes += size_bytes
        admission.body_bytes += size_bytes


class Answer:
    """One answer that is read whole."""

    __slots__ = ("_admission", "held_bytes")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.held_bytes = 0

    def hold(self, size_bytes: int) -> bool:
        """So many more bytes of it have come; False where all such answers together are too much."""
        admission = self._admission
        if admission.answer_bytes + size_bytes > admission.max_answers_bytes:
            return False
        self.held_bytes += size_bytes
        admission.answer_bytes += size_bytes
        return True


class Admission:
    """The gate of one router process."""

    def __init__(
        self,
        max_requests: int = MAX_REQUESTS,
        max_bodies_bytes: int = MAX_BODIES_BYTES,
        max_answers_bytes: int = MAX_ANSWERS_BYTES,
    ) -> None:
        if max_requests < 1 or max_bodies_bytes < 1 or max_answers_bytes < 1:
            raise ValueError(
                f"at least one request and one byte, got {max_requests}, {max_bodies_bytes} and {max_answers_bytes}"
            )
        self.max_requests = max_requests
        self.max_bodies_bytes = max_bodies_bytes
        self.max_answers_bytes = max_answers_bytes
        self.active = 0
        self.body_bytes = 0
        self.answer_bytes = 0
        self.draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """A place for one request. Raises RequestError."""
        if self.draining:
            raise RequestError(Code.DRAINING, "this router is shutting down; send the request again")
        if self.active >= self.max_requests:
            raise RequestError(Code.BUSY, f"{self.active} requests are in flight here; send the request again")
        slot = Slot(self)
        self.active += 1
        self._idle.clear()
        try:
            yield slot
        finally:
            self.active -= 1
            self.body_bytes -= slot.held_bytes
            if not self.active:
                self._idle.set()

    @contextmanager
    def answer(self) -> Iterator[Answer]:
        """Around all that happens to an answer."""
        answer = Answer(self)
        try:
            yield answer
        finally:
            self.answer_bytes -= answer.held_bytes

    async def idle(self) -> None:
        """Wait until no request is left."""
        await self._idle.wait()
