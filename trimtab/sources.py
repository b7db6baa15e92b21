"""The sources of nodes of one router process, by its settings."""

from __future__ import annotations

from pathlib import Path

from router.membership.dns import DnsSource, Records, is_srv
from router.membership.endpoint_slices import EndpointSlices
from router.membership.nodes_file import FileSource
from router.membership.orders_source import OrdersSource
from router.membership.registrations import networks
from router.membership.roster import STATIC, Roster
from router.membership.source import Source
from router.turn import Role

from .discover import Discover
from .processes import StartError


def roster_for(sources: list[Source], model: str, prefix: str = "") -> Roster:
    """The static nodes first: where two sources tell one URL, the first counts. Nodes' names begin with `prefix`."""
    return Roster((STATIC, *(source.name for source in sources)), model, prefix)


def sources(found: Discover, model: str, orders: OrdersSource) -> list[Source]:
    """The sources to run. Raises StartError."""
    built: list[Source] = [orders]
    if found.file:
        built.append(FileSource(Path(found.file)))
    if found.dns:
        built += _dns_sources(found, model)
    if found.heartbeats:
        built.append(_heartbeat_source(found, model))
    if found.kube_namespace:
        built.append(_kubernetes_source(found, model))
    return built


def _dns_sources(found: Discover, model: str) -> list[Source]:
    records: Records | None = None
    if any(is_srv(url) for _, url in found.dns):
        try:
            from router.membership.srv import SrvResolver
        except ImportError:
            where = f"models.{model}.discover.dns"
            raise StartError(
                f"{where} needs dnspython for SRV records: pip install 'trimtab[dns]', or name a host and its port"
            ) from None
        records = SrvResolver().records
    return [
        DnsSource(Role(role), url, found.dns_every_s, records=records if is_srv(url) else None)
        for role, url in found.dns
    ]


def _heartbeat_source(found: Discover, model: str) -> Source:
    where = f"models.{model}.discover.heartbeats"
    try:
        import zmq

        from router.membership.heartbeats import HeartbeatSource
    except ImportError:
        raise StartError(f"{where} needs pyzmq: pip install 'trimtab[heartbeats]', or leave it out") from None
    try:
        return HeartbeatSource(found.heartbeats, networks(found.heartbeat_networks), found.heartbeat_expiry_s)
    except zmq.ZMQError as error:
        raise StartError(f"{where}: cannot listen on {found.heartbeats}: {error.strerror}; choose another") from None


def _kubernetes_source(found: Discover, model: str) -> Source:
    where = f"models.{model}.discover.kubernetes"
    try:
        from kubernetes.config import ConfigException

        from router.membership.kubernetes import KubernetesSource, api
    except ImportError:
        raise StartError(
            f"{where} needs the kubernetes client: pip install 'trimtab[kubernetes]', or leave it out"
        ) from None
    try:
        client = api(found.kubeconfig)
    except (ConfigException, OSError) as error:
        raise StartError(f"{where}: no API server is known ({error}); give kubeconfig, or run in a pod") from None
    slices = EndpointSlices(found.kube_port, found.kube_role_label)
    return KubernetesSource(client, found.kube_namespace, found.kube_selector, slices)
