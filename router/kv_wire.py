"""vLLM's KV events as they come over ZMQ: one message is (topic, number as 8 bytes, batch in msgpack).

A batch is `[time, events, data_parallel_rank]`. An event is a map with its kind under `type` (vLLM 0.32) or a
list with its kind first (earlier releases); both are read, unknown kinds and fields are passed over. Token ids
are not even decoded: they are a client's words, and as long as its prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .blocks import Cleared, Event, Name, Removed, Stored, Unsupported

GPU = "GPU"
MAX_BLOCK_TOKENS = 2**20


class KvWireError(Exception):
    """A message that is no batch of KV events."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step of the engine changed. `at_s` is the engine's wall clock."""

    number: int
    at_s: float
    events: tuple[Event, ...]


class _Event(msgspec.Struct):
    """All kinds in one. What only later releases may fill otherwise is read as anything."""

    type: str = ""
    block_hashes: list[Name] = []
    parent_block_hash: Name | None = None
    block_size: int = 0
    medium: object = None
    group_idx: object = None
    session_id: object = None


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Event]


class _Listed(msgspec.Struct, array_like=True):
    """An event of the older form; what follows the medium says nothing that is used."""

    type: str
    block_hashes: list[Name] = []
    parent_block_hash: object = None
    token_ids: msgspec.Raw = msgspec.Raw()
    block_size: object = 0
    lora_id: object = None
    medium: object = None


class _ListedBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Listed]


_decode = msgspec.msgpack.Decoder(_Batch)
_decode_listed = msgspec.msgpack.Decoder(_ListedBatch)


def read_batch(number: bytes, payload: bytes) -> Batch:
    """One message's last two frames. Raises KvWireError."""
    if len(number) != 8:
        raise KvWireError("its number is not 8 bytes long")
    try:
        try:
            batch = _decode.decode(payload)
            at_s, events = batch.ts, batch.events
        except msgspec.ValidationError:
            listed = _decode_listed.decode(payload)
            at_s, events = listed.ts, [_as_map(event) for event in listed.events]
        found = tuple(read for event in events if (read := _read(event)) is not None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise KvWireError(f"it is no batch of KV events ({type(error).__name__})") from None
    return Batch(int.from_bytes(number, "big"), at_s, found)


def _as_map(event: _Listed) -> _Event:
    if event.type != "BlockStored":  # a removal has its medium second
        return _Event(event.type, event.block_hashes, medium=event.parent_block_hash)
    parent, size = event.parent_block_hash, event.block_size
    if not isinstance(parent, int | bytes | None) or not isinstance(size, int):
        raise ValueError("a stored block's parent or size")
    return _Event(event.type, event.block_hashes, parent, size, event.medium)


def _read(event: _Event) -> Event | None:
    if event.type == "AllBlocksCleared":
        return Cleared()
    if event.type not in ("BlockStored", "BlockRemoved") or event.medium not in (None, GPU):
        return None
    if event.group_idx not in (None, 0):
        return Unsupported("its model has several KV cache groups")
    if event.type == "BlockRemoved":
        return Removed(event.block_hashes)
    if not 0 < event.block_size <= MAX_BLOCK_TOKENS:
        raise ValueError("a block's size")
    session = event.session_id if isinstance(event.session_id, str) else None
    return Stored(event.parent_block_hash, event.block_hashes, event.block_size, session)
