"""NIXL, as in vLLM 0.32: P answers with `kv_transfer_params`, D gets them verbatim and pulls.

D does not check them. Null or too few blocks and a missing request id kill its engine; an expired lease, and an
object that was read before, are read as garbage into its prefix cache. So the object is validated before D sees it,
none is passed on twice, and the decode leg carries the lease as its deadline. What no object shows (a P that is gone,
an engine id or a port that nobody has) is D's to find out: it fails that leg alone.
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


REMEMBERED_LEASES = 4
"""For as many leases an object that was passed on is remembered."""
REMEMBERED = 16_384
"""As many at most, of more than one lease at any load that one router carries."""


@dataclass(frozen=True, slots=True)
class NixlConnector:
    """Where P's block size is known, from P itself or from the options, it checks that the blocks cover the prompt, and
    where P has told how many it has, that they are among them."""

    options: ConnectorOptions = field(default_factory=ConnectorOptions)
    _passed_on: dict[tuple[object, object], float] = field(default_factory=dict, compare=False, repr=False)

    def handshake(self, turn: Turn, placement: Placement, attempt: int = 1) -> Handshake:
        """Local: the client's request to D. Transfer: P first, then D with P's object."""
        if placement.prefill is None:
            return Leg(placement.decode, Purpose.DECODE)
        leg = Leg(placement.prefill, Purpose.PREFILL, PREFILL_PARAMS)
        reply = yield leg
        params = self._validated(leg, reply, placement.block_tokens or self.options.block_tokens, placement.blocks)
        self._pass_on(leg, params, reply.at_s)
        return Leg(placement.decode, Purpose.DECODE, params, reply.at_s + self.options.lease_s - self.options.margin_s)

    def _pass_on(self, leg: Leg, params: Mapping[str, object], at_s: float) -> None:
        """Each object once: P lets its blocks go when it has been read."""
        handle = (params["remote_engine_id"], params["remote_request_id"])
        if handle in self._passed_on:
            raise HandshakeError(leg, "kv_transfer_params have been passed on before")
        self._passed_on[handle] = at_s
        forgotten_s = at_s - REMEMBERED_LEASES * self.options.lease_s
        while len(self._passed_on) > REMEMBERED or next(iter(self._passed_on.values())) < forgotten_s:
            del self._passed_on[next(iter(self._passed_on))]

    def _validated(self, leg: Leg, reply: LegReply, block: int | None, node_blocks: int | None) -> Mapping[str, object]:
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
            if set(map(type, group)) != {int} or min(group) < 0:  # long: no loop of our own
                raise HandshakeError(leg, "kv_transfer_params hold a block id that is no number")
            if node_blocks is not None and max(group) >= node_blocks:
                raise HandshakeError(leg, f"kv_transfer_params hold a block beyond the {node_blocks} that P has")
            if block and len(group) * block < reply.prompt_tokens:
                raise HandshakeError(leg, f"{len(group)} blocks do not cover {reply.prompt_tokens} prompt tokens")
        return params
