"""The sources of nodes: what each reads, and what it says of what cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.membership.dns import DnsSource, nodes_at, system_resolver
from router.membership.endpoint_slices import EndpointSlices
from router.membership.member import Member
from router.membership.nodes_file import FileSource, read_nodes
from router.membership.orders import Added, Drained, Orders, change_orders, keep_newer, read_orders, write_orders
from router.membership.orders_source import OrdersSource
from router.membership.registrations import (
    EXPIRY_S,
    LOOPBACK,
    MAX_BYTES,
    HeartbeatError,
    Registrations,
    networks,
    read_heartbeat,
)
from router.membership.roster import MAX_MEMBERS, Roster
from router.membership.source import Source, Tell
from router.turn import Role
from slos.problem import SpecError

NODES = """\
version: 1
prefill: [http://10.0.0.1:8000]
decode:
  - http://10.0.0.2:8000/
  - {url: http://10.0.0.3:8000, address: 10.0.0.3:21001, model: llama}
replica: []
"""


class Line:
    """One source's line to a roster of its own."""

    def __init__(self, source: str, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.roster = Roster((source,))
        self.tell = Tell(source, self.roster, lambda: self.now_s)
        self._state = lambda: self.roster.states[source]

    @property
    def urls(self) -> list[str]:
        return [each.url for each in self._state().members]

    @property
    def problem(self) -> str:
        return self._state().problem


async def running(source: Source, line: Line, until: object, within_s: float = 5.0) -> None:
    """Run the source until `until()` holds."""
    task = asyncio.ensure_future(source.run(line.tell))
    try:
        async with asyncio.timeout(within_s):
            while not until():  # type: ignore[operator]
                assert not task.done(), task.exception()
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# -- file --------------------------------------------------------------------------------------------------------------


def test_a_file_lists_nodes_by_role_with_what_there_is_to_say_of_each():
    assert read_nodes(NODES, "nodes.yaml") == [
        Member("http://10.0.0.1:8000", Role.PREFILL),
        Member("http://10.0.0.2:8000", Role.DECODE),
        Member("http://10.0.0.3:8000", Role.DECODE, "10.0.0.3:21001", "llama"),
    ]


def test_a_file_may_give_a_node_a_weight():
    (heavy,) = read_nodes("version: 1\ndecode: [{url: 'http://a', weight: 2.5}]\n", "n")
    assert heavy.weight == 2.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("decode: [http://a]\n", "n:1:1 E103 the file: version is missing"),
        ("version: 2\n", "n:1:1 E112"),
        ("version: 1\ndecoder: []\n", 'n:2:1 E101 "decoder": unknown key'),
        ("version: 1\ndecode: [ftp://a]\n", "n:2:10 E104 decode[0]: 'ftp://a' is no engine address; write http://"),
        ("version: 1\ndecode:\n  - {address: x}\n", "n:3:5 E103 decode[0]: url is missing"),
        ("version: 1\ndecode: [http://a]\nprefill: [http://a/]\n", "n:2:10 E102"),
        ("version: 1\ndecode: {a: b}\n", "n:2:1 E104"),
        ("version: 1\ndecode:\n  - {url: 'http://a', weight: 0}\n", 'n:3:23 E104 decode[0].weight: "0" is no number'),
        ("version: 1\ndecode:\n  - {url: 'http://a', weight: 0.001}\n", "n:3:5 E104 decode[0]: a weight of 0.001"),
        ("version: 1\n  decode: [\n", "n:2:9 E100"),
        ("", "n:1:1 E107"),
    ],
)
def test_a_mistake_in_a_file_has_its_line_and_column(text: str, told: str):
    with pytest.raises(SpecError) as refused:
        read_nodes(text, "n")
    assert str(refused.value).startswith(told)


@given(st.text(max_size=60))
def test_no_text_makes_the_reader_fail_otherwise(text: str):
    with contextlib.suppress(SpecError):
        read_nodes(f"version: 1\ndecode: [{text}]\n", "n")


def test_a_file_is_read_again_when_it_changes_and_a_bad_one_keeps_what_was_read(tmp_path: Path):
    path = tmp_path / "nodes.yaml"
    path.write_text(NODES)
    line = Line("file")

    async def scene() -> None:
        source = FileSource(path, look_s=0.005)
        await running(source, line, lambda: len(line.urls) == 3)
        path.write_text("version: 1\ndecode: [http://b:1, nonsense]\n")
        await running(source, line, lambda: line.problem)
        assert "nodes.yaml:2:22 E104 decode[1]: 'nonsense' is no engine address" in line.problem
        assert line.problem.endswith("; its last good set stays") and len(line.urls) == 3
        other = tmp_path / "new"
        other.write_text("version: 1\ndecode: [http://c:1]\n")
        other.replace(path)  # as a ConfigMap is updated
        await running(source, line, lambda: line.urls == ["http://c:1"])
        assert not line.problem
        path.unlink()
        await running(source, line, lambda: "cannot be read" in line.problem)
        path.write_bytes(b"version: 1\ndecode: [\xff]\n")
        await running(source, line, lambda: "not UTF-8" in line.problem)
        assert line.urls == ["http://c:1"]

    asyncio.run(scene())


def test_a_file_that_stays_as_it_is_was_read_well_just_now(tmp_path: Path):
    path = tmp_path / "nodes.yaml"
    path.write_text("version: 1\ndecode: [http://a:1]\n")
    line, source = Line("file"), FileSource(path, look_s=0.005)
    state = lambda: line.roster.states["file"]  # noqa: E731

    def later() -> bool:
        line.now_s += 1.0 if state().good_s == line.now_s else 0.0
        return line.now_s > 3.0

    asyncio.run(running(source, line, later))
    path.write_text("version: 1\ndecode: [nonsense]\n")
    asyncio.run(running(source, line, lambda: "E104" in line.problem))
    good_s, line.now_s = state().good_s, 100.0
    asyncio.run(running(source, line, lambda: state().failures and line.urls == ["http://a:1"]))
    assert state().good_s == good_s, "a bad one is no reading"


# -- dns ---------------------------------------------------------------------------------------------------------------


def test_every_address_of_a_name_is_a_node_at_the_port_of_the_url():
    found = nodes_at("http://decode.svc:8200", Role.DECODE, ["10.0.0.9", "fd00::1", "10.0.0.2", "10.0.0.9"])
    assert [each.url for each in found] == ["http://10.0.0.2:8200", "http://10.0.0.9:8200", "http://[fd00::1]:8200"]
    assert {each.role for each in found} == {Role.DECODE}


def test_a_name_that_no_longer_resolves_keeps_its_nodes():
    answers: list[object] = [["10.0.0.1", "10.0.0.2"], OSError(-2, "Name or service not known"), [], ["10.0.0.2"]]

    async def resolve(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("decode.svc", 8200)
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer  # type: ignore[return-value]

    line = Line("dns:decode")
    source = DnsSource(Role.DECODE, "http://decode.svc:8200", resolve=resolve)
    problems = []

    async def scene() -> None:
        while answers:
            await source.look(line.tell)
            problems.append(line.problem)
            assert len(line.urls) == (2 if answers else 1)

    asyncio.run(scene())
    assert problems == [
        "",
        "decode.svc: Name or service not known; its last good set stays",
        "it tells no nodes; its last good set stays",
        "",
    ]


def test_the_systems_resolver_knows_this_machine():
    assert asyncio.run(system_resolver("localhost", 80))[0] in ("127.0.0.1", "::1")


# -- heartbeats --------------------------------------------------------------------------------------------------------

ENGINE = {"type": "P", "http_address": "127.0.0.1:8100", "zmq_address": "127.0.0.1:21001"}
HERE = networks(LOOPBACK)


def test_the_message_of_vllms_p2p_engines_registers_them_in_msgpack_or_json():
    for body in (msgspec.msgpack.encode(ENGINE), json.dumps(ENGINE).encode()):
        assert read_heartbeat(body, HERE) == Member("http://127.0.0.1:8100", Role.PREFILL, "127.0.0.1:21001")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"type": "X"}, "is no role"),
        ({"http_address": "10.0.0.1:8100"}, "none of the networks"),
        ({"http_address": "metadata.internal:80"}, "has no IP address"),
        ({"http_address": "127.0.0.1:8100/v1"}, "is no engine address"),
        ({"zmq_address": "10.0.0.1:21001"}, "none of the networks"),
        ({"http_address": None}, "Expected `str`"),
    ],
)
def test_who_says_what_an_engine_would_not_is_not_registered(changes: dict, why: str):
    with pytest.raises(HeartbeatError, match=why):
        read_heartbeat(msgspec.msgpack.encode({**ENGINE, **changes}), HERE)


@given(st.binary(max_size=200))
def test_no_bytes_register_anybody_by_chance(body: bytes):
    with pytest.raises(HeartbeatError):
        read_heartbeat(body, HERE)


def test_a_message_that_is_too_long_is_not_read():
    with pytest.raises(HeartbeatError, match="more than"):
        read_heartbeat(b"{" * (MAX_BYTES + 1), HERE)


def test_a_node_is_there_for_thirty_seconds_after_its_last_heartbeat():
    found, one = Registrations(), read_heartbeat(json.dumps(ENGINE).encode(), HERE)
    for now_s in (0.0, 10.0, 20.0):
        found.heard(one, now_s)
    assert found.members(20.0 + EXPIRY_S - 0.1) == [one]
    assert found.members(20.0 + EXPIRY_S) == []


def test_no_more_nodes_register_than_a_fleet_may_have():
    found = Registrations()
    for at in range(MAX_MEMBERS):
        found.heard(Member(f"http://10.0.0.1:{at + 1}", Role.DECODE), 0.0)
    with pytest.raises(HeartbeatError, match="which is the most"):
        found.heard(Member("http://10.0.0.2:1", Role.DECODE), 0.0)
    found.heard(Member("http://10.0.0.1:1", Role.DECODE), 1.0)


def test_a_network_that_is_none_is_refused():
    with pytest.raises(ValueError, match="is no network"):
        networks(["10.0.0.0/33"])


def test_engines_register_over_zmq_and_expire():
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed (extra heartbeats)")
    from router.membership.heartbeats import HeartbeatSource

    line = Line("heartbeats")
    source = HeartbeatSource("tcp://127.0.0.1:*", HERE, EXPIRY_S, look_s=0.01)

    async def scene() -> None:
        async def says(*messages: object) -> None:
            for message in messages:
                engine.send(message if isinstance(message, bytes) else msgspec.msgpack.encode(message))

        with zmq.Context() as context, context.socket(zmq.DEALER) as engine:
            engine.setsockopt(zmq.LINGER, 0)
            engine.connect(source.address)
            task = asyncio.ensure_future(source.run(line.tell))
            async with asyncio.timeout(10.0):
                await says(b"nonsense", ENGINE, {**ENGINE, "type": "D", "http_address": "127.0.0.1:8200"})
                while len(line.urls) < 2:
                    await asyncio.sleep(0.005)
                line.now_s += EXPIRY_S - 1
                await says({**ENGINE, "type": "D", "http_address": "127.0.0.1:8200"})
                await asyncio.sleep(0.2)
                line.now_s += 2
                while len(line.urls) > 1:
                    await asyncio.sleep(0.005)
                assert line.urls == ["http://127.0.0.1:8200"]
                line.now_s += EXPIRY_S
                while not line.problem:
                    await asyncio.sleep(0.005)
                assert line.urls == ["http://127.0.0.1:8200"], "all at once is no node's death"
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(scene())


# -- orders ------------------------------------------------------------------------------------------------------------


def test_orders_are_given_followed_and_taken_back(tmp_path: Path):
    line, source = Line("admin"), OrdersSource(tmp_path)
    source.look(line.tell)
    assert (line.urls, line.problem) == ([], "")
    change_orders(tmp_path, lambda orders: orders.add(Added("http://a:1/", "decode")))
    change_orders(tmp_path, lambda orders: orders.add(Added("http://b:1", "D", by="me", weight=3.0)))
    change_orders(tmp_path, lambda orders: orders.drain(Drained("http://a:1/")))
    source.look(line.tell)
    assert line.urls == ["http://a:1", "http://b:1"] and line.roster.drained == {"http://a:1"}
    assert [each.weight for each in line.roster.states["admin"].members] == [1.0, 3.0]
    change_orders(tmp_path, lambda orders: orders.undrain("http://a:1").remove("http://a:1/"))
    source.look(line.tell)
    assert line.urls == ["http://b:1"] and not line.roster.drained
    assert read_orders(tmp_path).version == 4


def test_where_several_models_are_served_an_added_node_is_that_models_which_it_names(tmp_path: Path):
    line, source = Line("admin"), OrdersSource(tmp_path, several=True)
    change_orders(tmp_path, lambda orders: orders.add(Added("http://a:1", "decode", model="llm")))
    change_orders(tmp_path, lambda orders: orders.add(Added("http://b:1", "decode")))
    change_orders(tmp_path, lambda orders: orders.drain(Drained("http://a:1")))
    source.look(line.tell)
    assert line.urls == ["http://a:1"] and line.roster.drained == {"http://a:1"}


@pytest.mark.parametrize(
    "change",
    [
        lambda orders: orders.add(Added("http://a:1", "nobody")),
        lambda orders: orders.add(Added("nowhere", "decode")),
        lambda orders: orders.drain(Drained("nowhere")),
        lambda orders: orders.remove("http://a:1"),
        lambda orders: orders.undrain("http://a:1"),
    ],
)
def test_an_order_that_cannot_be_carried_out_changes_nothing(tmp_path: Path, change):
    with pytest.raises(ValueError, match=r"write|added here|not drained"):
        change_orders(tmp_path, change)
    assert read_orders(tmp_path) == Orders()


def test_a_damaged_file_of_orders_keeps_those_in_force(tmp_path: Path):
    line, source = Line("admin"), OrdersSource(tmp_path)
    change_orders(tmp_path, lambda orders: orders.add(Added("http://a:1", "decode")))
    source.look(line.tell)
    (tmp_path / "nodes.json").write_text('{"version": "x"')
    source.look(line.tell)
    assert line.urls == ["http://a:1"] and "nodes.json holds no orders" in line.problem


def test_only_newer_orders_replace_those_in_force(tmp_path: Path):
    write_orders(tmp_path, Orders(5))
    assert not keep_newer(tmp_path, Orders(5, (Added("http://a:1", "decode"),)))
    assert keep_newer(tmp_path, Orders(6, (Added("http://a:1", "decode"),)))
    assert read_orders(tmp_path).version == 6


def test_a_damaged_copy_gives_way_to_orders_from_elsewhere(tmp_path: Path):
    (tmp_path / "nodes.json").write_text("{")
    assert keep_newer(tmp_path, Orders(1))
    assert read_orders(tmp_path) == Orders(1)


# -- EndpointSlices ----------------------------------------------------------------------------------------------------


def endpoint(address: str, uid: str = "", **conditions: bool) -> dict:
    conditions = conditions or {"ready": True, "serving": True, "terminating": False}
    return {
        "addresses": [address],
        "conditions": conditions,
        "nodeName": "worker-1",
        "targetRef": {"kind": "Pod", "namespace": "inference", "name": f"vllm-{address}", "uid": uid or address},
    }


def slice_of(name: str, role: str, *endpoints: dict, **changes: object) -> dict:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "inference",
            "labels": {"kubernetes.io/service-name": "vllm", "trimtab.dev/role": role},
        },
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
        **changes,
    }


def urls(slices: EndpointSlices) -> list[str]:
    return [each.url for each in slices.members()]


def test_ready_endpoints_of_slices_are_nodes_of_the_slices_role():
    slices = EndpointSlices()
    slices.replace(
        [
            slice_of("p-1", "prefill", endpoint("10.0.0.1")),
            slice_of(
                "d-1",
                "decode",
                endpoint("10.0.1.1"),
                endpoint("10.0.1.2", ready=False, serving=False, terminating=False),
                endpoint("10.0.1.3", ready=False, serving=True, terminating=True),
                endpoint("10.0.1.4", serving=True),
            ),
            slice_of("b-1", "both", endpoint("10.0.2.1")),
        ]
    )
    assert [(each.url, each.role) for each in slices.members()] == [
        ("http://10.0.0.1:8000", Role.PREFILL),
        ("http://10.0.1.1:8000", Role.DECODE),
        ("http://10.0.1.4:8000", Role.DECODE),
        ("http://10.0.2.1:8000", Role.REPLICA),
    ]
    assert not slices.problem


def test_events_of_a_watch_change_the_slices():
    slices = EndpointSlices()
    slices.replace([slice_of("d-1", "decode", endpoint("10.0.1.1"))])
    slices.event("ADDED", slice_of("d-2", "decode", endpoint("10.0.1.2")))
    slices.event("MODIFIED", slice_of("d-1", "decode", endpoint("10.0.1.3")))
    assert urls(slices) == ["http://10.0.1.2:8000", "http://10.0.1.3:8000"]
    slices.event("DELETED", slice_of("d-1", "decode"))
    slices.event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    assert urls(slices) == ["http://10.0.1.2:8000"]


def test_a_pod_with_two_addresses_is_one_node():
    slices = EndpointSlices()
    v6 = slice_of("d-6", "decode", endpoint("fd00::1", "pod-1"), addressType="IPv6")
    slices.replace([v6, slice_of("d-4", "decode", endpoint("10.0.1.1", "pod-1"))])
    assert urls(slices) == ["http://10.0.1.1:8000"]
    slices.event("DELETED", slice_of("d-4", "decode"))
    assert urls(slices) == ["http://[fd00::1]:8000"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (slice_of("d-1", "", endpoint("10.0.1.9")), "write prefill, decode, replica or both"),
        (slice_of("d-1", "decode", endpoint("10.0.1.9"), addressType="FQDN"), "'FQDN' are not followed"),
        (slice_of("d-1", "decode", endpoint("10.0.1.9"), ports=[]), "which port\\? It has none"),
        (
            slice_of("d-1", "decode", endpoint("10.0.1.9"), ports=[{"port": 1}, {"name": "x", "port": 2}]),
            "It has 1, x; name one",
        ),
        (slice_of("d-1", "decode", {"conditions": {}}), "another shape"),
        (slice_of("d-1", "decode", "nonsense"), "another shape"),  # type: ignore[arg-type]
    ],
)
def test_a_slice_that_cannot_be_used_is_named_and_counts_as_it_was(bad: dict, why: str):
    slices = EndpointSlices()
    slices.replace([slice_of("d-1", "decode", endpoint("10.0.1.1"))])
    for change in (lambda: slices.event("MODIFIED", bad), lambda: slices.replace([bad])):
        change()
        assert re.search(why, slices.problem) and "inference/d-1" in slices.problem
        assert urls(slices) == ["http://10.0.1.1:8000"]


def test_a_port_is_chosen_by_name_or_number():
    two = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}]
    for port in ("http", "8000"):
        slices = EndpointSlices(port)
        slices.replace([slice_of("d-1", "decode", endpoint("10.0.1.1"), ports=two)])
        assert urls(slices) == ["http://10.0.1.1:8000"]
