"""Where nodes are found beside those that are named, `models.NAME.discover`:

    discover:
      file: nodes.yaml
      dns: {prefill: http://prefill.svc:8000, decode: http://_http._tcp.decode.svc, every: 5s}
      heartbeats: {bind: tcp://0.0.0.0:30001, networks: [10.0.0.0/8], expiry: 30s}
      kubernetes: {namespace: inference, selector: app=vllm, port: http, role_label: trimtab.dev/role, kubeconfig: ""}

An operator's orders (`trimtab nodes`, the admin API) are always followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from router.membership.dns import EVERY_S, is_srv
from router.membership.endpoint_slices import ROLE_LABEL
from router.membership.member import engine_url
from router.membership.registrations import EXPIRY_S, LOOPBACK, networks
from router.turn import Role
from slos import phrases
from slos.nodes import Spot, fields, items, scalar


@dataclass(frozen=True, slots=True)
class Discover:
    """Effective settings; what is empty is not followed."""

    file: str = ""
    dns: tuple[tuple[str, str], ...] = ()
    """(role, URL whose host is looked up)."""
    dns_every_s: float = EVERY_S
    heartbeats: str = ""
    heartbeat_networks: tuple[str, ...] = LOOPBACK
    heartbeat_expiry_s: float = EXPIRY_S
    kube_namespace: str = ""
    kube_selector: str = ""
    kube_port: str = ""
    kube_role_label: str = ROLE_LABEL
    kubeconfig: str = ""

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, in words for people."""
        told = {
            f"file {self.file}": self.file,
            "DNS": self.dns,
            f"heartbeats at {self.heartbeats}": self.heartbeats,
            f"EndpointSlices in {self.kube_namespace}": self.kube_namespace,
        }
        return tuple(name for name, given in told.items() if given)


NOWHERE = Discover()


def read_discover(spot: Spot, folder: Path) -> Discover:
    """From a settings file; what is wrong goes to its problems."""
    inside = fields(spot, ("file", "dns", "heartbeats", "kubernetes")) or {}
    values: dict[str, object] = {}
    if "file" in inside:
        name = scalar(inside["file"], "nodes.yaml")
        values["file"] = str(folder / name) if name is not None else ""
    if "dns" in inside:
        _dns(inside["dns"], values)
    if "heartbeats" in inside:
        _heartbeats(inside["heartbeats"], values)
    if "kubernetes" in inside:
        _kubernetes(inside["kubernetes"], values, folder)
    return Discover(**values)  # type: ignore[arg-type]


def _dns(spot: Spot, values: dict[str, object]) -> None:
    found = fields(spot, (*Role, "every")) or {}
    names = []
    for role in Role:
        url = scalar(found[role], "http://decode.svc:8000") if role in found else None
        if url is None:
            continue
        try:
            plain = engine_url(url)
            if not plain.startswith("http://"):
                raise ValueError("a certificate names no address; write http://HOST:PORT")
            if is_srv(plain) and urlsplit(plain).port is not None:
                raise ValueError("SRV records have the port; write http://_SERVICE._tcp.NAME")
            names.append((role.value, plain))
        except ValueError as error:
            _complain(found[role], error)
    if not names and found.keys() <= {"every"} and isinstance(spot.node.value, list):
        spot.complain("E103", "no name to look up", "write {decode: http://decode.svc:8000}")
    values["dns"] = tuple(names)
    _duration(found.get("every"), values, "dns_every_s", "5s")


def _heartbeats(spot: Spot, values: dict[str, object]) -> None:
    found = fields(spot, ("bind", "networks", "expiry")) or {}
    bind = scalar(found["bind"], "tcp://0.0.0.0:30001") if "bind" in found else None
    if "bind" not in found and isinstance(spot.node.value, list):
        spot.complain("E103", "bind is missing", "write {bind: tcp://0.0.0.0:30001, networks: [10.0.0.0/8]}")
    elif bind is not None and not bind.startswith(("tcp://", "ipc://")):
        found["bind"].complain("E104", f"{bind[:60]!r} is nowhere to listen", "write tcp://0.0.0.0:30001")
    values["heartbeats"] = bind or ""
    if "networks" in found:
        told = [text for item in items(found["networks"]) or () if (text := scalar(item, "10.0.0.0/8")) is not None]
        try:
            networks(told)
        except ValueError as error:
            _complain(found["networks"], error)
        values["heartbeat_networks"] = tuple(told)
    _duration(found.get("expiry"), values, "heartbeat_expiry_s", "30s")


def _kubernetes(spot: Spot, values: dict[str, object], folder: Path) -> None:
    found = fields(spot, ("namespace", "selector", "port", "role_label", "kubeconfig")) or {}
    texts = {key: scalar(value, "inference" if key == "namespace" else "app=vllm") for key, value in found.items()}
    if "namespace" not in found and isinstance(spot.node.value, list):
        spot.complain("E103", "namespace is missing", "write {namespace: inference, selector: app=vllm}")
    for key in ("namespace", "selector", "port", "role_label"):
        if texts.get(key):
            values[f"kube_{key}"] = texts[key]
    if texts.get("kubeconfig"):
        values["kubeconfig"] = str(folder / str(texts["kubeconfig"]))


def _duration(spot: Spot | None, values: dict[str, object], name: str, example: str) -> None:
    text = None if spot is None else scalar(spot, example)
    seconds = None if spot is None or text is None else phrases.duration_s(text, spot.complain)
    if seconds is not None:
        values[name] = seconds


def _complain(spot: Spot, error: ValueError) -> None:
    message, _, fix = str(error).partition("; ")
    spot.complain("E104", message, fix)
