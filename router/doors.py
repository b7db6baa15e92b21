"""Who may come in: API keys with names, and what of a client's request may go on to an engine.

Keys are written `NAME:KEY` or `KEY`, separated by commas or lines; `#` begins a comment line. Several keys may have one
name, so that a new one is handed out before the old one goes, and a client keeps its conversations: they belong to the
name, or to the key where it has none.

A name may be that of a tenant, whom SLOs may match; other names match none.

Keys are compared by a digest that is keyed with a secret of the process: how long it takes to find one says nothing of
any other. Neither keys nor digests are ever shown.

Not here: what a key may do. Every key may ask for everything that is served.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .errors import Code, RequestError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SEPARATOR = re.compile(r"[,\n]")
MAX_KEYS = 10_000
MAX_FORWARDED_CHARACTERS = 1024
FORWARDED = ("traceparent", "tracestate")
"""Request headers that go on to engines unless told otherwise: whose trace this belongs to."""
NEVER_FORWARDED = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "expect", "host", "content-length", "content-type", "content-encoding"),
        *("accept", "accept-encoding", "x-request-id", "x-session-id", "x-data-parallel-rank"),
    }
)
"""Of one connection only, or the router's own to set."""


class BadKeys(ValueError):
    """Keys that cannot be read; the message holds none of them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `owner`: whose conversations the request belongs to: the key's name, or the key; None: nobody's in
    particular. `tenant` is "" for whoever is none."""

    owner: str | None = field(default=None, repr=False)
    tenant: str = ""


class Doors:
    """The keys in force, and which of their names are tenants. Without any key, everybody may come in."""

    def __init__(self, keys: Iterable[tuple[str, str]] = (), secret: bytes = b"", tenants: Iterable[str] = ()) -> None:
        self._secret = secret
        self._tenants = frozenset(tenants)
        self._names: dict[bytes, str] = {}
        self.replace(keys)

    def __len__(self) -> int:
        return len(self._names)

    def replace(self, keys: Iterable[tuple[str, str]]) -> None:
        """These keys (name or "", key) are in force from now on; a name goes before none. Raises BadKeys where a key
        has two names: then those before stay."""
        names: dict[bytes, str] = {}
        for name, key in keys:
            digest = self._digest(key)
            known = names.get(digest, "")
            if name and known and name != known:
                raise BadKeys(f"{known} and {name} have a key in common; give each its own")
            names[digest] = name or known
        self._names = names

    def caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Who asks. Raises RequestError (401)."""
        value = headers.get(b"authorization", b"").decode("latin-1").strip()
        key = value[7:].strip() if value[:7].lower() == "bearer " else None
        if not self._names:
            return Caller(key)
        name = None if key is None else self._names.get(self._digest(key))
        if name is None:
            raise RequestError(Code.UNAUTHORIZED, "missing or unknown API key; send Authorization: Bearer KEY")
        return Caller(f"name\0{name}", name if name in self._tenants else "") if name else Caller(key)

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, key.encode("utf-8", "surrogateescape"), hashlib.sha256)


def read_keys(text: str, source: str) -> list[tuple[str, str]]:
    """(name or "", key) of each. Raises BadKeys, which says which entry of `source` is wrong and shows none."""
    found: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for entry in _SEPARATOR.split(line):
            if not entry.strip():
                continue
            name, colon, key = entry.strip().rpartition(":")
            if colon and not _NAME.fullmatch(name):
                raise BadKeys(f"{source}: line {number}: a name is 1-64 letters, digits, . _ or -; write NAME:KEY")
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise BadKeys(f"{source}: line {number}: a key is printable ASCII without spaces; write NAME:KEY")
            found.append((name, key))
    if not found:
        raise BadKeys(f"{source}: holds no key; write NAME:KEY, one a line")
    if len(found) > MAX_KEYS:
        raise BadKeys(f"{source}: holds more than {MAX_KEYS} keys")
    return found


def read_tenant_keys(text: str, tenant: str, source: str) -> list[tuple[str, str]]:
    """The same of keys that are all one tenant's. Raises BadKeys."""
    found = read_keys(text, source)
    if any(name not in ("", tenant) for name, _ in found):
        raise BadKeys(f"{source}: holds keys of {tenant} (router.tenants); write them without another name")
    return [(tenant, key) for _, key in found]


def check_forwarded(names: Iterable[str]) -> tuple[str, ...]:
    """Names of request headers that may go on, in lower case. Raises ValueError."""
    lower = tuple(name.lower() for name in names)
    for name in lower:
        if name in NEVER_FORWARDED:
            raise ValueError(f"router.forward_headers: {name} is of one connection, or the router's own; leave it out")
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name):
            raise ValueError(f"router.forward_headers: {name[:64]!r} is no header name; write e.g. traceparent")
    return lower


def forwarded(headers: Mapping[bytes, bytes], allowed: Iterable[str]) -> dict[str, str]:
    """What of a client's headers goes on to engines: those allowed, if they are plain text of a sane length."""
    found: dict[str, str] = {}
    for name in allowed:
        value = headers.get(name.encode())
        if value is not None and len(value) <= MAX_FORWARDED_CHARACTERS:
            text = value.decode("latin-1").strip()
            if text and text.isascii() and text.isprintable():
                found[name] = text
    return found
