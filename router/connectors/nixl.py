"""NIXL, as in vLLM 0.32: P answers with `kv_transfer_params`, D gets them verbatim and pulls.

D does not check them. Null or too few blocks and a missing request id kill its engine; an expired lease is
read as garbage into its prefix cache. So the object is validated before D sees it, and the decode leg carries
the lease as its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..placement import Placement
from ..turn import Turn
from .protocol import ConnectorOptions, Handshake, HandshakeError, Leg, LegReply, Purpose

PREFILL_PARAMS: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True, slots=True)
class NixlConnector:
    """Where P's block size is known, from P itself or from the options, it checks that the blocks cover the prompt."""

    options: ConnectorOptions = field(default_factory=ConnectorOptions)

    def handshake(self, turn: Turn, placement: Placement) -> Handshake:
        """Local: the client's request to D. Transfer: P first, then D with P's object."""
        if placement.prefill is None:
            return Leg(placement.decode, Purpose.DECODE)
        leg = Leg(placement.prefill, Purpose.PREFILL, PREFILL_PARAMS)
        reply = yield leg
        params = self._validated(leg, reply, placement.block_tokens or self.options.block_tokens)
        return Leg(placement.decode, Purpose.DECODE, params, reply.at_s + self.options.lease_s - self.options.margin_s)

    def _validated(self, leg: Leg, reply: LegReply, block: int | None) -> Mapping[str, object]:
        params = reply.kv_transfer_params
        if reply.status != 200:
            raise HandshakeError(leg, f"prefill answered {reply.status}")
        if not isinstance(params, Mapping):
            raise HandshakeError(leg, "the prefill reply has no kv_transfer_params; is this a kv_producer?")
        if params.get("do_remote_prefill") is not True:
            raise HandshakeError(leg, "kv_transfer_params do not offer a remote prefill")
        for name in ("remote_engine_id", "remote_request_id", "remote_host"):
            if not isinstance(params.get(name), str) or not params[name]:
                raise HandshakeError(leg, f"kv_transfer_params lack {name}")
        port = params.get("remote_port")
        if type(port) is not int or not 0 < port < 65_536:
            raise HandshakeError(leg, "kv_transfer_params lack remote_port")
        groups = params.get("remote_block_ids")
        if not isinstance(groups, Sequence) or isinstance(groups, str) or not groups:
            raise HandshakeError(leg, "kv_transfer_params hold no blocks")
        for group in groups:
            if not isinstance(group, Sequence) or isinstance(group, str) or not group:
                raise HandshakeError(leg, "kv_transfer_params hold an empty group of blocks")
            if any(type(block) is not int or block < 0 for block in (group[0], group[-1])):
                raise HandshakeError(leg, "kv_transfer_params hold a block id that is no number")
            if block and len(group) * block < reply.prompt_tokens:
                raise HandshakeError(leg, f"{len(group)} blocks do not cover {reply.prompt_tokens} prompt tokens")
        return params
