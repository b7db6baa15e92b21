"""Token ids for text, where a client asks for them: /tokenize, /detokenize, echo, log-probabilities.

A token is four bytes of UTF-8, fewer at the end of a text; its id is these bytes as a number behind a leading 1, so
that ids give the text back. An id that no text has (a prompt may be any list of ids) stands for a word of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

from .tokens import BYTES_PER_TOKEN, word

SIZE = 1 << (8 * BYTES_PER_TOKEN + 1)
"""Ids are below it."""


def pieces(text: str) -> Iterator[bytes]:
    """The tokens of a text, as bytes."""
    data = text.encode("utf-8", "surrogatepass")
    for start in range(0, len(data), BYTES_PER_TOKEN):
        yield data[start : start + BYTES_PER_TOKEN]


def encode(text: str) -> list[int]:
    """The ids of a text."""
    return [number(piece) for piece in pieces(text)]


def decode(ids: Sequence[int]) -> str:
    """The text of ids."""
    return b"".join(piece(each) for each in ids).decode("utf-8", "replace")


def number(piece: bytes) -> int:
    """The id of a token."""
    return int.from_bytes(b"\x01" + piece, "big")


def piece(token: int) -> bytes:
    """The bytes of a token."""
    data = token.to_bytes(-(-token.bit_length() // 8) or 1, "big")
    return data[1:] if data[0] == 1 and 1 < len(data) <= BYTES_PER_TOKEN + 1 else word(token).encode()


def likelihood(piece: bytes, rank: int = 0) -> float:
    """A log-probability for it: the same for the same token, lower for the lower rank."""
    return -0.05 - crc32(piece) % 1000 / 1000 - 1.5 * rank


def rivals(piece: bytes, count: int) -> list[bytes]:
    """Tokens that might have stood there instead, the likeliest first."""
    start = crc32(piece)
    found = (word(start + step).encode() for step in range(count + 1))
    return [each for each in found if each != piece][:count]
