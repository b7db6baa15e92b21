"""P2P-NCCL, the paper's: both legs carry one request id that holds both nodes' KV addresses; P pushes to D.

    X-Request-Id: ___prefill_addr_{P's ip:port}___decode_addr_{D's ip:port}_{32 hex digits}

First P with one output token, then D with the client's body. No parameters go or come. D waits without a limit, and
with it its whole engine, for what P has not sent: so D's leg is sent only after P's success, as the example proxy does.

Source: the last upstream P2pNcclConnector and its proxy; vLLM 0.32 no longer has it. From vLLM 0.14 on engines need
VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1, or the two halves never meet. The upstream D takes every prompt token that it
lacks as P's to send, whatever the id says: an engine for local turns has to leave a request without addresses alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b

from ..placement import Placement
from ..turn import Role, Turn
from .protocol import AddressRule, ConnectorOptions, Handshake, HandshakeError, Leg, Purpose


@dataclass(frozen=True, slots=True)
class P2pNcclConnector:
    """Needs the KV address of every P and D from the options."""

    options: ConnectorOptions = field(default_factory=ConnectorOptions)

    def handshake(self, turn: Turn, placement: Placement, attempt: int = 1) -> Handshake:
        """Local: the client's request to D. Transfer: P first, then D, under one id."""
        if placement.prefill is None:
            return Leg(placement.decode, Purpose.DECODE)
        addresses = self.options.addresses
        leg = Leg(placement.prefill, Purpose.PREFILL)
        for node in (placement.prefill, placement.decode):
            if not addresses.get(node):
                raise HandshakeError(leg, f"{node} has no KV address to hand over by")
        name = blake2b(f"{turn.request_id} {attempt}".encode(), digest_size=16).hexdigest()
        shared = f"___prefill_addr_{addresses[placement.prefill]}___decode_addr_{addresses[placement.decode]}_{name}"
        leg = Leg(placement.prefill, Purpose.PREFILL, request_id=shared)
        reply = yield leg
        if reply.status != 200:
            raise HandshakeError(leg, f"prefill answered {reply.status}")
        return Leg(placement.decode, Purpose.DECODE, request_id=shared)


ADDRESSES = AddressRule(
    roles=frozenset({Role.PREFILL, Role.DECODE}),
    form=re.compile(r"([A-Za-z0-9.-]+):[0-9]{1,5}"),
    example="10.0.0.1:21001",
)
"""`kv_ip:kv_port` of an engine's --kv-transfer-config; the port is that of its first rank."""
