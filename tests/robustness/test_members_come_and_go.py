"""Membership under traffic, on emulated engines: nodes join, leave, drain and restart, and no client notices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from router import nodes
from router.membership.member import Member
from router.membership.nodes_file import FileSource
from router.membership.orders import Added, Drained, change_orders
from router.membership.orders_source import OrdersSource
from router.turn import NodeId, Reason, Role
from tests.robustness.members_fleet import Told, at_rest, membership
from tests.router_http.client import Answer, ask, in_loop, until
from tests.router_http.emulated import MODEL, Emulated, emulated
from tests.router_http.fake_engine import FakeEngine
from tests.router_http.installation import Installation, installation
from tests.router_http.test_nodes import page


def urls(fleet: Emulated, *names: str) -> tuple[Member, ...]:
    roles = {"P": Role.PREFILL, "D": Role.DECODE}
    return tuple(Member(fleet.fleet.urls[name], roles[name[0]]) for name in names)


def serving(router: Installation) -> set[str]:
    return {node.url for node in router.core.nodes.values() if node.usable}


def serves(router: Installation, wanted: set[str]) -> bool:
    return serving(router) == wanted


def answered(router: Installation, turns: int, talks: Sequence[asyncio.Future[int]]) -> bool:
    """So many, or a client gave up, which the end of the test tells."""
    return len(router.records) > turns or any(talk.done() for talk in talks)


async def turn(router: Installation, name: str, texts: list[str], tokens: int = 12) -> Answer:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    body = {"model": MODEL, "stream": True, "messages": messages, "max_tokens": tokens}
    answer = await ask(router.url, body, headers={"X-Session-ID": name})
    assert answer.status == 200 and answer.done, answer.body
    return answer


async def talk(router: Installation, name: str, stop: asyncio.Event) -> int:
    """One conversation, turn after turn; every answer has to be whole."""
    texts, turns = [f"conversation {name}"], 0
    while not stop.is_set():
        answer = await turn(router, name, texts)
        turns += 1
        texts += [answer.text, f"and then, {turns}?"]
        if len(texts) > 20:
            texts = texts[:1]
    return turns


@in_loop
async def test_a_fleet_that_changes_under_traffic_loses_no_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "PROBE_S", 0.1)
    async with emulated("nixl", "2P_3D", speed=20.0, members=[]) as fleet:
        router, told, stop = fleet.router, Told(*urls(fleet, "P0", "D0")), asyncio.Event()
        async with membership(router, [told]) as members:
            await until(lambda: len(serving(router)) == 2)
            talks = [asyncio.ensure_future(talk(router, f"c{at}", stop)) for at in range(8)]
            for names in (
                ["P0", "P1", "D0", "D1"],
                ["P1", "D1", "D2"],
                ["P1", "D2"],
                ["P0", "P1", "D0", "D1", "D2"],
                ["P0", "D1"],
            ):
                told.members = urls(fleet, *names)
                wanted = {each.url for each in told.members}
                await until(partial(serves, router, wanted), 10.0)
                await until(partial(answered, router, len(router.records) + 24, talks), 20.0)
            told.problem = "the source is away"
            await until(lambda: members.roster.states["told"].problem)
            assert serving(router) == {each.url for each in told.members}, "an error empties no fleet"
            stop.set()
            turns = await asyncio.gather(*talks)
            await until(lambda: len(router.core.nodes) == 2, 5.0)
        assert sum(turns) == len(router.records)
        assert set(router.core.load) == set(router.core.nodes) == set(router.watch.addresses)
        moved = router.core.moves
        assert moved[Reason.NODE_DRAINED] + moved[Reason.NODE_GONE] >= 8
        assert not set(moved) - {Reason.NODE_DRAINED, Reason.NODE_GONE}
        await at_rest(fleet)


@in_loop
async def test_a_stream_on_a_node_that_leaves_ends_there_and_the_node_goes_after_it():
    async with emulated("nixl", "1P_2D", speed=2.0) as fleet:
        router = fleet.router
        told = Told()
        async with membership(router, [told]) as members:
            first = await turn(router, "c1", ["hello"])
            (conversation,) = router.core.conversations
            home = conversation.decode_node
            assert home is not None
            url = router.watch.addresses[home].url
            long = asyncio.ensure_future(turn(router, "c1", ["hello", first.text, "go on"], 150))
            await until(lambda: router.core.flights() and router.core.flights()[0].watch.tokens > 3)
            members.roster.drained = frozenset({url})
            await until(lambda: not router.core.nodes[home].usable)
            answer = await long
            assert router.records[-1].placement.decode == home and len(answer.text) > 300
            after = await turn(router, "c1", ["hello", first.text, "go on", answer.text, "and now?"])
            assert router.records[-1].placement.decode != home
            assert after.headers["x-trimtab-reason"] == "node_drained"
            for at in range(6):
                await turn(router, f"new{at}", ["hi"])
            assert home not in {record.placement.decode for record in router.records[-7:]}
            members.roster.drained = frozenset()
            await until(lambda: router.core.nodes[home].usable)
        await at_rest(fleet)


@pytest.mark.parametrize("source", ["static", "told", "file", "admin"])
@in_loop
async def test_a_restart_clears_what_was_believed_whatever_told_of_the_node(source: str, tmp_path: Path):
    """The membership side of row 24."""
    d, e = FakeEngine("D0", metrics=page(100.0)), FakeEngine("D1", metrics=page(100.0))
    await e.start()
    async with installation([], [d]) as router:
        told, file, orders = Told(), FileSource(tmp_path / "nodes.yaml", 0.01), OrdersSource(tmp_path)
        async with membership(router, [told, file, orders]):
            if source == "told":
                told.members = (Member(e.url, Role.DECODE),)
            elif source == "file":
                (tmp_path / "nodes.yaml").write_text(f"version: 1\ndecode: [{e.url}]\n")
            elif source == "admin":
                change_orders(tmp_path, lambda orders: orders.add(Added(e.url, "decode")))
            engine, name = (d, NodeId("D0")) if source == "static" else (e, NodeId("D1"))
            await until(lambda: name in router.core.nodes and router.core.nodes[name].healthy)
            change_orders(tmp_path, lambda orders: orders.drain(Drained((e if engine is d else d).url)))
            await until(lambda: serving(router) == {engine.url})
            await ask(router.url, {"model": "m", "messages": [{"role": "user", "content": "hello"}]})
            assert router.core.residency.ledger(name).own_tokens > 0
            await engine.stop()
            engine.metrics = page(200.0)
            await engine.start()
            await until(lambda: router.core.residency.ledger(name).own_tokens == 0)
            (conversation,) = router.core.conversations
            assert conversation.decode_node is None
        await router.settle()
    await e.stop()


@in_loop
async def test_a_node_that_joins_is_asked_before_it_is_used():
    d, e = FakeEngine("D0"), FakeEngine("D1", healthy=False)
    await e.start()
    async with installation([], [d]) as router:
        async with membership(router, [told := Told()]):
            told.members = (Member(e.url, Role.DECODE),)
            await until(lambda: NodeId("D1") in router.core.nodes)
            for at in range(6):
                answer = await ask(router.url, {"model": "m", "messages": [{"role": "user", "content": f"hi {at}"}]})
                assert answer.status == 200
            assert e.calls == 0
            e.healthy = True
            await until(lambda: router.core.nodes[NodeId("D1")].usable)
            assert router.core.nodes[NodeId("D1")].block_tokens == 16
        await router.settle()
    await e.stop()


@in_loop
async def test_where_a_protocol_needs_addresses_a_node_that_joins_brings_its_own():
    async with emulated("p2p_nccl", "1P_2D", speed=20.0, members=["P0", "D0"]) as fleet:
        router = fleet.router
        d1 = fleet.fleet.urls["D1"]
        told = Told(Member(d1, Role.DECODE, fleet.fleet.addresses["D1"]))
        async with membership(router, [told]) as members:
            await until(lambda: len(serving(router)) == 3)
            members.roster.drained = frozenset({fleet.fleet.urls["D0"]})
            await until(lambda: len(serving(router)) == 2)
            await turn(router, "c1", ["hello"])
            placed = Counter(str(record.placement.decode) for record in router.records)
            assert placed == {"D1": 1} and router.records[0].placement.prefill == "P0"
        await at_rest(fleet)


@in_loop
async def test_a_node_that_joins_without_the_address_that_its_protocol_needs_is_not_used():
    async with emulated("p2p_nccl", "1P_2D", speed=20.0, members=["P0", "D0"]) as fleet:
        router = fleet.router
        told = Told(Member(fleet.fleet.urls["D1"], Role.DECODE, "not an address"))
        async with membership(router, [told]):
            await until(lambda: len(router.core.nodes) == 3)
            await router.watch.probe_all()
            for at in range(4):
                await turn(router, f"c{at}", ["hello"])
            assert {str(record.placement.decode) for record in router.records} == {"D0"}
            assert not router.core.openings
        await at_rest(fleet)
