"""NIXL's hand-over on the wire: what P's reply carries and D's request brings back, as captured from vLLM 0.32.

The fleet keeps the lease (`fleet.py`); here its handle gets the keys that only the wire has, and a handle that a
client brings is read as vLLM would read it:

    null blocks, no request id, fewer blocks than the prompt needs    D's engine dies
    a block number that P does not have, another side port            D answers 500
    an engine nobody knows, a P that is gone                          D answers 500 (fleet.py)
    a lease that is over, another prompt's handle                     D answers 200 with other text (fleet.py)

Left out: vLLM takes 4 to 5 s to give up on a P that it cannot reach, and without a request id it hangs until the
client leaves; here both are at once. Parameters of a D's own reply (bidirectional transfer) are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping

SIDE_PORT = 5600
"""Side channel of the first node; each node has its own."""


def to_wire(handle: Mapping[str, object], chat: bool, first_block: int, side_port: int) -> dict[str, object]:
    """P's handle as it stands in its reply."""
    remote_id = str(handle["remote_request_id"])
    blocks = handle["remote_block_ids"]
    assert isinstance(blocks, list) and len(blocks) == 1
    return {
        "do_remote_prefill": handle["do_remote_prefill"],
        "do_remote_decode": handle["do_remote_decode"],
        "remote_block_ids": [[first_block + number for number in range(len(blocks[0]))]],
        "remote_engine_id": handle["remote_engine_id"],
        "remote_request_id": remote_id if chat else remote_id.removeprefix("chat"),
        "remote_host": handle["remote_host"],
        "remote_port": side_port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": handle["remote_num_tokens"],
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": handle["remote_prefill_cached_tokens"],
    }


def from_wire(
    params: Mapping[str, object], prompt_blocks: int, node_blocks: int, side_ports: Mapping[str, int]
) -> Mapping[str, object]:
    """A client's transfer parameters, as `Fleet.call` takes them."""
    if not params.get("do_remote_prefill"):
        return params
    read = {**params, "remote_request_id": lease_id(params)}
    blocks = _block_numbers(params.get("remote_block_ids"))
    owner = params.get("remote_engine_id")
    if len(blocks) < prompt_blocks:
        read["remote_block_ids"] = None
    elif max(blocks) >= node_blocks or min(blocks) < 0 or side_ports.get(str(owner)) != params.get("remote_port"):
        read["remote_engine_id"] = None
    return read


def lease_id(params: Mapping[str, object]) -> object:
    """The fleet's name of the lease: it calls both APIs' requests `chatcmpl-`."""
    remote_id = params.get("remote_request_id")
    return f"chat{remote_id}" if isinstance(remote_id, str) and remote_id.startswith("cmpl-") else remote_id


def _block_numbers(groups: object) -> list[int]:
    """The first group's block numbers; empty if it is not a list of lists of numbers."""
    if not isinstance(groups, list) or not groups or not isinstance(groups[0], list):
        return []
    return [number for number in groups[0] if isinstance(number, int)]
