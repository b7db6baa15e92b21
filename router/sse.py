"""Reading a stream while it is relayed: when content starts, what the usage says, what to hold back.

Bytes go on as they came, frame by frame, so that an error event can follow whatever has gone out. The one exception:
the usage chunk that only the router asked for is dropped.
"""

from __future__ import annotations

import re

import msgspec

from .body import Usage

MAX_TEXT_BYTES = 256 * 1024
"""More of an answer than this is not kept to recognise its conversation by."""
MAX_FRAME_BYTES = 4 * 1024 * 1024


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: object = None
    kind: str = msgspec.field(name="object", default="")
    """It is "error" in the error events of older engines."""


_decode = msgspec.json.Decoder(_Chunk)
_BOUNDARY = re.compile(rb"\n\r?\n")
_LONGEST_BOUNDARY = 3


class Meter:
    """One stream. `feed` gives what may go on to the client now; `finish` what was held back at the end."""

    __slots__ = (
        "_drop_usage",
        "_held",
        "_text_bytes",
        "chunks",
        "done",
        "errored",
        "finish_reason",
        "text",
        "usage",
    )

    def __init__(self, drop_usage: bool) -> None:
        self._drop_usage = drop_usage
        self._held = b""
        self._text_bytes = 0
        self.chunks = 0
        """Deltas with content, reasoning or tool calls."""
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.done = False
        self.errored = False
        self.text: list[str] | None = []
        """Pieces of the answer; None once it is too long to keep."""

    @property
    def silent(self) -> bool:
        """No more than an opening has come: neither content nor a finish reason."""
        return self.chunks == 0 and self.finish_reason is None

    def feed(self, data: bytes) -> bytes:
        """Take what came from upstream. Raises ValueError on a frame without end."""
        buffer = self._held + data if self._held else data
        frames: list[bytes] = []
        start = 0
        for boundary in _BOUNDARY.finditer(buffer, max(0, len(self._held) - _LONGEST_BOUNDARY + 1)):
            frame = buffer[start : boundary.end()]
            start = boundary.end()
            if self._read(frame):
                frames.append(frame)
        self._held = buffer[start:]
        if len(self._held) > MAX_FRAME_BYTES:
            raise ValueError("a frame of the stream has no end")
        return b"".join(frames)

    def finish(self) -> bytes:
        """The stream ended: a last frame without its blank line is read and goes on as it is."""
        rest, self._held = self._held, b""
        return rest if rest and self._read(rest) else b""

    def _read(self, frame: bytes) -> bool:
        """Note what the frame says; False if it is the usage chunk to drop."""
        payload = _payload(frame)
        if payload is None:
            return True
        if payload == b"[DONE]":
            self.done = True
            return True
        try:
            chunk = _decode.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return True
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.error is not None or chunk.kind == "error":
            self.errored = True
        for choice in chunk.choices:
            self._note(choice)
        return not (self._drop_usage and chunk.usage is not None and not chunk.choices)

    def _note(self, choice: _Choice) -> None:
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
        delta = choice.delta
        text = choice.text if delta is None else delta.content
        if text or (delta is not None and (delta.reasoning or delta.reasoning_content or delta.tool_calls)):
            self.chunks += 1
        if text and self.text is not None:
            self.text.append(text)
            self._text_bytes += len(text)
            if self._text_bytes > MAX_TEXT_BYTES:
                self.text = None


def _payload(frame: bytes) -> bytes | None:
    """The data of a frame, its lines joined; None for comments and empty frames."""
    if frame.startswith(b"data: ") and frame.find(b"\n") >= len(frame) - _LONGEST_BOUNDARY:
        return frame[6:].strip()
    lines = [line[5:].strip() for line in frame.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
