"""`models.NAME.discover`: what it reads, what it refuses, and what it needs installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from router.membership.dns import DnsSource
from router.membership.orders_source import OrdersSource
from router.membership.registrations import LOOPBACK
from slos.problem import SpecError
from trimtab.discover import NOWHERE, Discover
from trimtab.processes import StartError, read_settings, save_settings
from trimtab.settings import Settings
from trimtab.settings_file import parse_settings
from trimtab.sources import roster_for, sources


def read(discover: str, more: str = "") -> Settings:
    text = f"version: 1\nmodels:\n  llm:\n{more}    discover: {discover}\n"
    return parse_settings(text, "t.yaml", Path("/etc/trimtab"))


def test_everything_is_read_and_files_are_relative_to_the_settings():
    found = read(
        "{file: nodes.yaml, dns: {prefill: 'http://p.svc:8000', decode: 'http://d.svc:8000/', every: 10s}, "
        "heartbeats: {bind: 'tcp://0.0.0.0:30001', networks: [10.0.0.0/8], expiry: 40s}, "
        "kubernetes: {namespace: inference, selector: app=vllm, port: http, role_label: role, kubeconfig: kube}}"
    ).discover
    assert found == Discover(
        file="/etc/trimtab/nodes.yaml",
        dns=(("prefill", "http://p.svc:8000"), ("decode", "http://d.svc:8000")),
        dns_every_s=10.0,
        heartbeats="tcp://0.0.0.0:30001",
        heartbeat_networks=("10.0.0.0/8",),
        heartbeat_expiry_s=40.0,
        kube_namespace="inference",
        kube_selector="app=vllm",
        kube_port="http",
        kube_role_label="role",
        kubeconfig="/etc/trimtab/kube",
    )


def test_heartbeats_are_taken_from_this_machine_unless_networks_are_named():
    assert read("{heartbeats: {bind: 'tcp://127.0.0.1:30001'}}").discover.heartbeat_networks == LOOPBACK


def test_who_discovers_nodes_need_name_none_and_who_does_neither_is_told_of_both():
    assert read("{file: nodes.yaml}").checked().decode == ()
    with pytest.raises(ValueError, match=r"models\.NAME\.decode.*models\.NAME\.discover"):
        Settings().checked()


def test_settings_for_child_processes_keep_it(tmp_path: Path):
    settings = read("{file: nodes.yaml, dns: {decode: 'http://d.svc:8000'}}").checked()
    settings = replace(settings, state_dir=str(tmp_path))
    assert read_settings(save_settings(settings)) == settings


@pytest.mark.parametrize(
    ("discover", "told"),
    [
        ("{files: x}", 't.yaml:4:16 E101 models.llm.discover."files": unknown key'),
        ("{dns: {decode: nowhere}}", "E104 models.llm.discover.dns.decode: 'nowhere' is no engine address"),
        ("{dns: {decode: 'https://d.svc'}}", "a certificate names no address; write http://HOST:PORT"),
        ("{dns: {decode: 'http://_http._tcp.d:8000'}}", "SRV records have the port; write http://_SERVICE._tcp.NAME"),
        ("{dns: {every: 5s}}", "E103 models.llm.discover.dns: no name to look up"),
        ("{heartbeats: {expiry: 30s}}", "E103 models.llm.discover.heartbeats: bind is missing"),
        ("{heartbeats: {bind: 'udp://x'}}", "is nowhere to listen; write tcp://"),
        ("{heartbeats: {bind: 'tcp://x:1', networks: [ten]}}", "'ten' is no network; write e.g. 10.0.0.0/8"),
        ("{kubernetes: {selector: a=b}}", "E103 models.llm.discover.kubernetes: namespace is missing"),
        ("nodes.yaml", "E104 models.llm.discover: must be a mapping"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_the_fix(discover: str, told: str):
    with pytest.raises(SpecError) as refused:
        read(discover)
    assert told in str(refused.value)


def test_sources_count_in_their_order_after_the_static_nodes(tmp_path: Path):
    found = sources(
        Discover(file="x", dns=(("decode", "http://d:1"), ("prefill", "http://p:1"))), "llm", OrdersSource(tmp_path)
    )
    assert roster_for(found, "llm").sources == ("static", "admin", "file", "dns:decode", "dns:prefill")
    assert roster_for(sources(NOWHERE, "*", OrdersSource(tmp_path)), "*").sources == ("static", "admin")


def test_a_name_of_srv_records_is_looked_up_as_such(tmp_path: Path):
    pytest.importorskip("dns", reason="dnspython is not installed (extra dns)")
    found = sources(Discover(dns=(("decode", "http://_http._tcp.d.svc"),)), "llm", OrdersSource(tmp_path))
    assert isinstance(found[1], DnsSource) and found[1].name == "dns:decode" and found[1].asks_for_records


@pytest.mark.parametrize(
    ("missing", "given", "extra"),
    [
        ("zmq", Discover(heartbeats="tcp://127.0.0.1:*"), "heartbeats"),
        ("dns.asyncresolver", Discover(dns=(("decode", "http://_http._tcp.d.svc"),)), "dns"),
        ("kubernetes.config", Discover(kube_namespace="x"), "kubernetes"),
    ],
)
def test_a_source_whose_library_is_missing_names_the_extra(
    missing: str, given: Discover, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "router.membership.srv", raising=False)
    with pytest.raises(StartError, match=rf"models\.llm\.discover\.{extra} needs .*'trimtab\[{extra}\]'"):
        sources(given, "llm", OrdersSource(tmp_path))


def test_an_address_that_is_taken_is_told(tmp_path: Path):
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed (extra heartbeats)")
    with zmq.Context() as context, context.socket(zmq.PULL) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(StartError, match=r"cannot listen on .*; choose another"):
            sources(Discover(heartbeats=f"tcp://127.0.0.1:{port}"), "llm", OrdersSource(tmp_path))


def test_outside_a_cluster_a_kubeconfig_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("kubernetes", reason="the kubernetes client is not installed (extra kubernetes)")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for given in (Discover(kube_namespace="x"), Discover(kube_namespace="x", kubeconfig=str(tmp_path / "none"))):
        with pytest.raises(StartError, match=r"no API server is known .*give kubeconfig"):
            sources(given, "llm", OrdersSource(tmp_path))
