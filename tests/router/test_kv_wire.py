"""vLLM's KV events on the wire: both forms, what later releases may add, and what no engine would send."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.blocks import Blocks, Cleared, Removed, Stored, Unsupported
from router.kv_wire import KvWireError, read_batch

SEVEN = (7).to_bytes(8, "big")
STORED = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, 5],
    "parent_block_hash": None,
    "token_ids": list(range(64)),
    "block_size": 32,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "session_id": "A",
}


def batch(*events: object, rest: tuple[object, ...] = (0,)) -> bytes:
    return msgspec.msgpack.encode([1700000000.5, list(events), *rest])


def test_events_as_vllm_0_32_sends_them():
    found = read_batch(
        SEVEN, batch(STORED, {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU", "group_idx": 0})
    )
    assert (found.number, found.at_s) == (7, 1700000000.5)
    assert found.events == (Stored(None, [2**64 - 1, 5], 32, "A"), Removed([5]))


def test_events_as_lists_as_earlier_releases_send_them():
    found = read_batch(
        SEVEN,
        batch(
            ["BlockStored", [b"x", b"y"], b"w", [1, 2], 16, None, "GPU"],
            ["BlockStored", [1], None, [1], 16, None],
            ["BlockRemoved", [b"x"], "CPU"],
            ["BlockRemoved", [b"y"]],
            ["AllBlocksCleared"],
            rest=(),
        ),
    )
    assert found.events == (
        Stored(b"w", [b"x", b"y"], 16, None),
        Stored(None, [1], 16, None),
        Removed([b"y"]),
        Cleared(),
    )


def test_kinds_and_fields_that_nobody_knows_are_passed_over():
    later = {**STORED, "owner": {"a": 1}, "session_id": 3, "group_idx": None, "medium": None}
    found = read_batch(
        SEVEN, batch({"type": "BlockMoved", "to": 3}, later, {"type": "AllBlocksCleared"}, rest=(0, "x"))
    )
    assert found.events == (Stored(None, [2**64 - 1, 5], 32, None), Cleared())


def test_blocks_on_other_tiers_are_not_the_gpus():
    assert read_batch(SEVEN, batch({**STORED, "medium": "CPU"})).events == ()


def test_several_groups_are_said():
    (event,) = read_batch(SEVEN, batch({**STORED, "group_idx": 1})).events
    assert isinstance(event, Unsupported)


@pytest.mark.parametrize(
    ("number", "payload"),
    [
        (b"", batch(STORED)),
        (b"123", batch(STORED)),
        (SEVEN, b""),
        (SEVEN, b"\xc1"),
        (SEVEN, msgspec.msgpack.encode({"a": 1})),
        (SEVEN, msgspec.msgpack.encode([1.0])),
        (SEVEN, msgspec.msgpack.encode(["now", []])),
        (SEVEN, batch({**STORED, "block_hashes": ["text"]})),
        (SEVEN, batch({**STORED, "block_hashes": 5})),
        (SEVEN, batch({**STORED, "parent_block_hash": [1]})),
        (SEVEN, batch({**STORED, "block_size": 0})),
        (SEVEN, batch({**STORED, "block_size": 2**40})),
        (SEVEN, batch(["BlockStored", [1], [2], [], 16, None])),
        (SEVEN, batch(["BlockStored", [1]])),
        (SEVEN, batch(3)),
        (SEVEN, b"\x93" + b"\x91" * 100_000),
    ],
)
def test_what_is_no_batch_is_said_and_quotes_nothing(number: bytes, payload: bytes):
    with pytest.raises(KvWireError) as caught:
        read_batch(number, payload)
    assert "text" not in str(caught.value)


things = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=9)
    | st.text(max_size=9)
    | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
spoilt = st.fixed_dictionaries({}, optional=dict.fromkeys(STORED, things)).map(lambda change: {**STORED, **change})


@given(
    number=st.binary(max_size=9) | st.just(SEVEN),
    payload=st.binary(max_size=60) | st.lists(things | spoilt, max_size=4).map(lambda e: batch(*e)),
)
def test_nothing_that_arrives_raises_anything_else(number, payload):
    try:
        found = read_batch(number, payload)
    except KvWireError:
        return
    blocks = Blocks(limit=50)
    blocks.expect("A")
    blocks.take(found.number, found.events)
    blocks.settle("A", 100)
    held = blocks.held("A")
    assert held is None or held >= 0
