"""Where nodes hand over, by engine URL: what an operator gave, what follows from the URL, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from router.connectors import ADDRESSES
from router.turn import Role
from slos.problem import did_you_mean


def hand_over_addresses(
    connector: str, nodes: Mapping[Role, Sequence[str]], given: Iterable[tuple[str, str]], where: str
) -> dict[str, str]:
    """Address by URL (without a trailing slash) of every node that needs one. `where` is the setting's name.

    Raises ValueError with what to change: an address that is missing, malformed or held twice, or that no node has.
    """
    rule = ADDRESSES.get(connector)
    known = {url.rstrip("/"): role for role, urls in nodes.items() for url in urls}
    found: dict[str, str] = {}
    for url, address in given:
        node = url.rstrip("/")
        if rule is None:
            raise ValueError(f"{where} names {url!r}, but {connector} needs no addresses; remove it")
        if node not in known:
            raise ValueError(f"{where} names {url!r}, which is no node here; {did_you_mean(node, tuple(known))}")
        if known[node] not in rule.roles:
            raise ValueError(
                f"{where} names the {known[node]} node {url!r}, which needs none with {connector}; remove it"
            )
        if node in found:
            raise ValueError(f"{where} names {url!r} twice; keep one of them")
        found[node] = address
    if rule is None:
        return found
    for node, role in known.items():
        if role not in rule.roles:
            continue
        if node not in found and rule.default:
            found[node] = rule.default.format(host=_host(node))
        if node not in found:
            raise ValueError(f"{where} lacks {role} node {node!r}; write {node}: {rule.example}")
        if not rule.form.fullmatch(found[node]) or not 0 < int(found[node].rpartition(":")[2]) <= 65535:
            raise ValueError(
                f"{where}: {found[node]!r} of {node!r} is no address for {connector}; write {rule.example}"
            )
    holders: dict[str, str] = {}
    for node, address in found.items():
        if address in holders:
            raise ValueError(f"{where}: {holders[address]!r} and {node!r} both have {address!r}; give each its own")
        holders[address] = node
    return found


def _host(url: str) -> str:
    """As it stands in a URL, with the brackets of an IPv6 address."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host
