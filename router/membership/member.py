"""A node as a source tells it, checked where it enters: every source's words go through `member`."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ..turn import Role

MAX_URL_LENGTH = 256
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
ROLES = {role.value: role for role in Role} | {"P": Role.PREFILL, "D": Role.DECODE, "R": Role.REPLICA}
"""Roles by their words, and by the letters of the tables' notation, which engines' heartbeats use too."""


@dataclass(frozen=True, slots=True)
class Member:
    """One engine: `url` without a trailing slash; `address`: where it hands over, if its protocol needs one; `model`:
    what it serves, if its source says so; `weight`: its share of new work, against 1. Another weight is no other
    node."""

    url: str
    role: Role
    address: str = ""
    model: str = ""
    weight: float = field(default=1.0, compare=False)


def member(url: str, role: str, address: str = "", model: str = "", weight: float = 1.0) -> Member:
    """A member from a source's words. Raises ValueError with what to write instead; passwords stay out of it."""
    known = ROLES.get(role)
    if known is None:
        raise ValueError(f"{role[:40]!r} is no role; write prefill, decode or replica")
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:  # also what is no number
        raise ValueError(f"a weight of {weight:g} is not possible; write {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return Member(engine_url(url), known, address, model, weight)


def engine_url(url: str) -> str:
    """The URL without a trailing slash. Raises ValueError if it names anything but an engine's root over HTTP."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        fits = False
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL_LENGTH
    if not (fits and plain) or parts.path not in ("", "/") or parts.query or parts.fragment:
        shown = "…@" + url.rpartition("@")[2] if "@" in url else url
        raise ValueError(f"{shown[:80]!r} is no engine address; write http://HOST:PORT")
    return url.rstrip("/")
