"""Mooncake, as in vLLM 0.32: P and D get their legs at the same time and meet by a `transfer_id`; P pushes.

D's parameters name P's bootstrap server and engine; the engine's id is asked at `GET /query` there, and a restarted P
has a new one. P's reply carries no parameters. Each half waits for the other, up to VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT
(480 s): D for a P that failed, P's blocks for a D that never came. P keeps its blocks only if it ended with `length`,
so any other end means that D waits in vain. A `transfer_id` is never used twice: P remembers one that D asked for.

Source: mooncake_connector.py, mooncake_utils.py and the example proxy of vLLM 0.32. Left out: more than one
data-parallel engine behind one bootstrap server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from ..placement import Placement
from ..turn import Role, Turn
from .protocol import AddressRule, ConnectorOptions, Handshake, HandshakeError, Leg, Purpose


@dataclass(frozen=True, slots=True)
class MooncakeConnector:
    """Needs P's bootstrap address from the options and P's engine id from the placement."""

    options: ConnectorOptions = field(default_factory=ConnectorOptions)

    def handshake(self, turn: Turn, placement: Placement, attempt: int = 1) -> Handshake:
        """Local: the client's request to D. Transfer: D with P beside it."""
        if placement.prefill is None:
            return Leg(placement.decode, Purpose.DECODE)
        transfer_id = f"xfer-{turn.request_id}-{attempt}"
        offer = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        prefill = Leg(placement.prefill, Purpose.PREFILL, offer)
        address = self.options.addresses.get(placement.prefill)
        if not address or not placement.engine_id:
            raise HandshakeError(prefill, "its bootstrap server has not told its engine id")
        wish = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": address,
            "remote_engine_id": placement.engine_id,
            "transfer_id": transfer_id,
        }
        decode = Leg(placement.decode, Purpose.DECODE, wish, beside=prefill)
        reply = yield decode
        if reply.status != 200:
            raise HandshakeError(prefill, f"prefill answered {reply.status}")
        if reply.finish_reason != "length":
            raise HandshakeError(prefill, "prefill did not end with length, so its blocks are gone")
        return decode


class _Entry(msgspec.Struct):
    engine_id: str


_decode_query = msgspec.json.Decoder(dict[str, _Entry])


def engine_id(answer: bytes) -> str:
    """The engine behind a bootstrap server. Raises ValueError for anything but exactly one."""
    try:
        entries = _decode_query.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError("its bootstrap server does not answer as one") from None
    if len(entries) > 1:
        raise ValueError(f"{len(entries)} data-parallel engines behind one bootstrap server; one is supported")
    found = next((entry.engine_id for entry in entries.values()), "")
    if not found:
        raise ValueError("no engine has registered at its bootstrap server")
    return found


ADDRESSES = AddressRule(
    roles=frozenset({Role.PREFILL}),
    form=re.compile(r"http://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"),
    example="http://10.0.0.1:8998",
    default="http://{host}:8998",
    query="/query",
    identity=engine_id,
)
"""VLLM_MOONCAKE_BOOTSTRAP_PORT is 8998 unless set."""
