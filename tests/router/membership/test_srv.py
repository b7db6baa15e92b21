"""Nodes of SRV records: what counts of them, and dnspython against a name server on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.membership.dns import DnsSource, Srv, is_srv, nodes_of
from router.membership.member import MIN_WEIGHT
from router.turn import Role
from tests.router.membership.test_sources import Line

pytest.importorskip("dns", reason="dnspython is not installed (extra dns)")
import dns.asyncresolver
import dns.message
import dns.rcode
import dns.rrset

from router.membership.srv import SrvResolver

URL = "http://_http._tcp.decode.inference.svc"
NAME = "_http._tcp.decode.inference.svc"


def weights(*records: Srv) -> dict[str, float]:
    return {each.url: each.weight for each in nodes_of(URL, Role.DECODE, records)}


def test_a_name_that_no_host_can_have_is_one_of_srv_records():
    assert is_srv(URL) and not is_srv("http://decode.inference.svc:8000")


def test_every_record_is_a_node_with_its_port_and_its_weight_against_the_heaviest():
    found = nodes_of(URL, Role.DECODE, [Srv(0, 30, 8001, "D-1.svc."), Srv(0, 60, 8000, "d-0.svc.")])
    assert [(each.url, each.weight) for each in found] == [("http://d-0.svc:8000", 1.0), ("http://d-1.svc:8001", 0.5)]
    assert {each.role for each in found} == {Role.DECODE}


def test_a_weight_of_0_is_the_least_there_is_and_of_all_it_is_none():
    assert weights(Srv(0, 0, 1, "a."), Srv(0, 10, 1, "b.")) == {"http://a:1": MIN_WEIGHT, "http://b:1": 1.0}
    assert weights(Srv(0, 0, 1, "a."), Srv(0, 0, 1, "b.")) == {"http://a:1": 1.0, "http://b:1": 1.0}


def test_of_several_priorities_the_lowest_counts():
    assert weights(Srv(20, 100, 1, "spare."), Srv(10, 1, 1, "a."), Srv(10, 1, 1, "b.")).keys() == {
        "http://a:1",
        "http://b:1",
    }


def test_the_target_that_says_that_there_is_nobody_is_no_node():
    assert nodes_of(URL, Role.DECODE, [Srv(0, 0, 0, ".")]) == []


@given(st.lists(st.builds(Srv, st.integers(0, 3), st.integers(0, 65535), st.integers(1, 65535), st.just("a.svc."))))
def test_weights_are_such_as_a_node_may_have(records: list[Srv]):
    assert all(MIN_WEIGHT <= each.weight <= 1.0 for each in nodes_of(URL, Role.DECODE, records))


def test_a_name_whose_records_cannot_be_had_or_used_keeps_its_nodes():
    answers: list[object] = [
        [Srv(0, 0, 8000, "a."), Srv(0, 0, 8000, "b.")],
        OSError(0, "there is no such name"),
        [Srv(0, 0, 0, ".")],
        [Srv(0, 0, 0, "a.")],
        [Srv(0, 0, 8000, "b.")],
    ]

    async def records(name: str) -> Sequence[Srv]:
        assert name == NAME
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer  # type: ignore[return-value]

    line, problems = Line("dns:decode"), []
    source = DnsSource(Role.DECODE, URL, records=records)

    async def scene() -> None:
        while answers:
            await source.look(line.tell)
            problems.append(line.problem)
            assert len(line.urls) == (2 if answers else 1)

    asyncio.run(scene())
    assert problems == [
        "",
        f"{NAME}: there is no such name; its last good set stays",
        "it tells no nodes; its last good set stays",
        f"{NAME}: 'http://a:0' is no engine address; write http://HOST:PORT; its last good set stays",
        "",
    ]


class NameServer(asyncio.DatagramProtocol):
    """Knows one name."""

    def __init__(self, name: str, *records: str) -> None:
        self.name, self.records = f"{name}.", records

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asked = dns.message.from_wire(data)
        answer = dns.message.make_response(asked)
        if asked.question[0].name.to_text() != self.name:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif self.records and asked.question[0].rdtype == dns.rdatatype.SRV:
            answer.answer.append(dns.rrset.from_text(self.name, 5, "IN", "SRV", *self.records))
        self.transport.sendto(answer.to_wire(), addr)


def asked(server: NameServer, name: str) -> Sequence[Srv]:
    async def scene() -> Sequence[Srv]:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: server, ("127.0.0.1", 0))
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], transport.get_extra_info("sockname")[1]
        try:
            return await SrvResolver(resolver).records(name)
        finally:
            transport.close()

    return asyncio.run(scene())


def test_records_are_asked_for_over_the_network():
    server = NameServer(NAME, "0 60 8000 d-0.decode.inference.svc.", "0 30 8001 d-1.decode.inference.svc.")
    assert sorted(asked(server, NAME), key=lambda each: each.port) == [
        Srv(0, 60, 8000, "d-0.decode.inference.svc."),
        Srv(0, 30, 8001, "d-1.decode.inference.svc."),
    ]


@pytest.mark.parametrize(
    ("name", "told"), [("_http._tcp.other.svc", "there is no such name"), (NAME, "it has no SRV records")]
)
def test_a_name_without_records_is_told_in_words(name: str, told: str):
    with pytest.raises(OSError, match=told):
        asked(NameServer(NAME), name)
