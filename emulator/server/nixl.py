"""NIXL's hand-over on the wire: what P's reply carries and D's request brings back, as captured from vLLM 0.32.

The fleet keeps the lease (`fleet.py`); here its handle gets the keys that only the wire has, and a handle that a
client brings is read as vLLM would read it. What comes of it is the same for both, and for both policies of a failed
load but where "fails" stands: there D answers 500 (`fail`) or computes the prompt itself (`recompute`).

    null blocks, fewer blocks than the prompt needs    D's engine dies
    no request id                                      D hangs, and dies when the client leaves
    an engine that nobody knows, a side port where     fails after 5 s (`recompute`, where P's side channel answers: at
      nobody listens                                     once); the port matters only until D has read from that engine
    a block number that P does not have, D itself      fails at once
    a P that is gone                                   fails at once (fleet.py)
    a lease that is over, another prompt's handle      D answers 200 with other text (fleet.py)

Parameters of a D's own reply (bidirectional transfer) are never sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

SIDE_PORT = 5600
"""Side channel of the first node; each node has its own."""


def to_wire(
    handle: Mapping[str, object], chat: bool, blocks: Sequence[int], tokens: int, side_port: int
) -> dict[str, object]:
    """P's handle as it stands in its reply; `blocks` hold `tokens`."""
    remote_id = str(handle["remote_request_id"])
    wire = {
        "do_remote_prefill": handle["do_remote_prefill"],
        "do_remote_decode": handle["do_remote_decode"],
        "remote_block_ids": [list(blocks)],
        "remote_engine_id": handle["remote_engine_id"],
        "remote_request_id": remote_id if chat else remote_id.removeprefix("chat"),
        "remote_host": handle["remote_host"],
        "remote_port": side_port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
    # vLLM says it only of a prompt that was prefilled and no more.
    if tokens == handle["remote_num_tokens"]:
        wire["remote_prefill_cached_tokens"] = handle["remote_prefill_cached_tokens"]
    return wire


def from_wire(
    params: Mapping[str, object],
    prompt_blocks: int,
    node_blocks: int,
    side_ports: Mapping[str, int],
    met: Collection[str],
) -> Mapping[str, object]:
    """A client's transfer parameters, as `Fleet.call` takes them; `met`: engines that the reader has read from."""
    if not params.get("do_remote_prefill"):
        return params
    read = {**params, "remote_request_id": lease_id(params)}
    blocks = _block_numbers(params.get("remote_block_ids"))
    owner = str(params.get("remote_engine_id"))
    if len(blocks) < prompt_blocks:
        read["remote_block_ids"] = None
    elif owner not in met and side_ports.get(owner) != params.get("remote_port"):
        read |= {"remote_engine_id": None, "side_channel": params.get("remote_port") in side_ports.values()}
    elif max(blocks) >= node_blocks or min(blocks) < 0:
        read["readable"] = False
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
