"""Nodes from Kubernetes EndpointSlices (discovery.k8s.io/v1), as the API's own JSON: lists and watch events in, members
out. Pure.

A service's labels are on its slices, so one service a role, labelled with the role, says what its pods are for:

    metadata: {labels: {trimtab.dev/role: decode}}

An endpoint is a node while it is ready; one that terminates is none, so it drains. A service published over IPv4 and
IPv6 has a slice for each: of one pod the first address by name counts, so that it is one node. A slice that cannot be
used is named, and counts as it was before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..turn import Role
from .member import ROLES, Member, member

ROLE_LABEL = "trimtab.dev/role"
_ROLES = ROLES | {"both": Role.REPLICA}


class SliceError(ValueError):
    """A slice that cannot be used; the text names it and says why."""


@dataclass(slots=True)
class EndpointSlices:
    """All slices of one selector. `port`: name or number; empty: the only one."""

    port: str = ""
    role_label: str = ROLE_LABEL
    problem: str = ""
    """What is wrong with the last slice that cannot be used."""
    _slices: dict[str, list[tuple[str, Member]]] = field(default_factory=dict)

    def replace(self, items: Sequence[Mapping[str, Any]]) -> None:
        """The result of a list."""
        self.problem = ""
        for gone in self._slices.keys() - {_name(item) for item in items}:
            del self._slices[gone]
        for item in items:
            self._take(item)

    def event(self, kind: str, item: Mapping[str, Any]) -> None:
        """One event of a watch: ADDED, MODIFIED or DELETED; others change nothing."""
        if kind == "DELETED":
            self._slices.pop(_name(item), None)
        elif kind in ("ADDED", "MODIFIED"):
            self.problem = ""
            self._take(item)

    def members(self) -> list[Member]:
        """One a pod, in an order that does not depend on that of the events."""
        found: dict[str, Member] = {}
        for name in sorted(self._slices):
            for pod, each in self._slices[name]:
                found.setdefault(pod, each)
        return sorted(found.values(), key=lambda each: each.url)

    def _take(self, item: Mapping[str, Any]) -> None:
        name = _name(item)
        try:
            self._slices[name] = self._read(item)
        except (SliceError, ValueError, KeyError, TypeError, AttributeError) as error:
            told = str(error) if isinstance(error, SliceError) else f"it has another shape ({type(error).__name__})"
            self.problem = f"EndpointSlice {name or '?'}: {told}"

    def _read(self, item: Mapping[str, Any]) -> list[tuple[str, Member]]:
        told = (item["metadata"].get("labels") or {}).get(self.role_label, "")
        if told not in _ROLES:
            raise SliceError(f"its label {self.role_label} is {told!r}; write prefill, decode, replica or both")
        if item.get("addressType") not in ("IPv4", "IPv6"):
            raise SliceError(f"addresses of type {item.get('addressType')!r} are not followed")
        ready = [each for each in item.get("endpoints") or () if _is_ready(each.get("conditions") or {})]
        if not ready:
            return []
        port, found = self._port(item.get("ports") or ()), []
        for endpoint in ready:
            address = str(endpoint["addresses"][0])
            host = f"[{address}]" if ":" in address else address
            pod = (endpoint.get("targetRef") or {}).get("uid") or host
            found.append((str(pod), member(f"http://{host}:{port}", _ROLES[told])))
        return found

    def _port(self, ports: Sequence[Mapping[str, Any]]) -> int:
        fitting = [each for each in ports if self.port in ("", each.get("name"), str(each.get("port")))]
        if len(fitting) != 1 or not fitting[0].get("port"):
            names = ", ".join(str(each.get("name") or each.get("port")) for each in ports) or "none"
            raise SliceError(f"which port? It has {names}; name one of them as kubernetes.port")
        return int(fitting[0]["port"])


def _name(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _is_ready(conditions: Mapping[str, Any]) -> bool:
    """`ready` unknown means ready, says the API."""
    return conditions.get("ready") is not False and not conditions.get("terminating")
