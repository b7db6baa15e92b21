"""Registrations by heartbeat (the paper's B.4): a node is there as long as it says so.

A node says so every 10 s, and is gone after 30 s without. The message is the one with which vLLM's P2P-NCCL engines
register with their proxy, in msgpack as they send it, or the same in JSON:

    {"type": "P" | "D" | "R", "http_address": "10.0.0.1:8000", "zmq_address": "10.0.0.1:21001", "model": ...}

`zmq_address`, where the engine hands over, and `model` may be missing. Whoever reaches the port can say anything, so a
node counts only if its address is an IP address within the networks that the operator named. Pure: bytes and times in,
members out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

import msgspec

from .member import Member, member
from .roster import MAX_MEMBERS

EVERY_S = 10.0
EXPIRY_S = 30.0
MAX_BYTES = 4096
LOOPBACK = ("127.0.0.0/8", "::1/128")

Network = IPv4Network | IPv6Network


class HeartbeatError(ValueError):
    """A message that registers nobody; the text says why."""


class _Message(msgspec.Struct):
    type: str
    http_address: str
    zmq_address: str = ""
    model: str = ""


_MSGPACK = msgspec.msgpack.Decoder(_Message)
_JSON = msgspec.json.Decoder(_Message)


def networks(given: Iterable[str]) -> tuple[Network, ...]:
    """Networks from their text. Raises ValueError with what to write."""
    found = []
    for text in given:
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            raise ValueError(f"{text[:60]!r} is no network; write e.g. 10.0.0.0/8") from None
    return tuple(found)


def read_heartbeat(body: bytes, within: tuple[Network, ...]) -> Member:
    """Who it registers. Raises HeartbeatError."""
    if len(body) > MAX_BYTES:
        raise HeartbeatError(f"it has more than {MAX_BYTES} bytes")
    try:
        told = (_JSON if body[:1] == b"{" else _MSGPACK).decode(body)
        url = told.http_address if "://" in told.http_address else f"http://{told.http_address}"
        found = member(url, told.type, told.zmq_address[:256], told.model[:256])
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise HeartbeatError(str(error)) from None
    for where in (found.url, found.address) if found.address else (found.url,):
        _check(where, within)
    return found


def _check(where: str, within: tuple[Network, ...]) -> None:
    try:
        host = urlsplit(where if "://" in where else f"//{where}").hostname or ""
        address = ip_address(host)
    except ValueError:
        raise HeartbeatError(f"{where!r} has no IP address") from None
    if not any(address in network for network in within):
        raise HeartbeatError(f"{host} is in none of the networks that may register")


@dataclass(slots=True)
class Registrations:
    """Who said it is there, and when last."""

    expiry_s: float = EXPIRY_S
    _heard: dict[str, tuple[Member, float]] = field(default_factory=dict)

    def heard(self, who: Member, now_s: float) -> None:
        """A heartbeat. Raises HeartbeatError if there are too many already."""
        if who.url not in self._heard and len(self._heard) >= MAX_MEMBERS:
            raise HeartbeatError(f"{MAX_MEMBERS} nodes have registered, which is the most")
        self._heard[who.url] = who, now_s

    def members(self, now_s: float) -> list[Member]:
        """Who is there now; who expired is forgotten."""
        for url in [url for url, (_, at_s) in self._heard.items() if now_s - at_s >= self.expiry_s]:
            del self._heard[url]
        return sorted((who for who, _ in self._heard.values()), key=lambda who: who.url)
