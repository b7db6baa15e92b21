"""KV events over ZMQ: an emulated engine publishes as vLLM does, a router follows and believes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec
import pytest

zmq = pytest.importorskip("zmq", reason="KV events need pyzmq")

from emulator.profiles import LLAMA_3_1_8B_H100  # noqa: E402
from emulator.server import RunningFleet, serve  # noqa: E402
from router import kv_events  # noqa: E402
from router.blocks import Blocks, session_of  # noqa: E402
from router.kv_events import EventsAddress, KvEvents  # noqa: E402
from router.residency import Residency, Source  # noqa: E402
from router.reuse import Verdict  # noqa: E402
from router.turn import NodeId  # noqa: E402

from .client import ask, chat, in_loop, until  # noqa: E402
from .fake_engine import FakeEngine  # noqa: E402
from .installation import Installation, installation  # noqa: E402

P0, D0 = NodeId("P0"), NodeId("D0")
SMALL = replace(LLAMA_3_1_8B_H100, kv_capacity_tokens=4000)
BLOCK = SMALL.block_tokens
SAY = "something of a length that fills some blocks of sixteen tokens each, " * 8


@dataclass
class Emulated(FakeEngine):
    """An emulated node where an installation expects one of its engines."""

    at: str = ""

    @property
    def url(self) -> str:
        return self.at

    async def stop(self) -> None:
        """The fleet does it."""


@dataclass
class Rig:
    """A router in front of an emulated fleet whose events it follows."""

    router: Installation
    fleet: RunningFleet
    lags: list[float]

    @property
    def residency(self) -> Residency:
        return self.router.core.residency

    @property
    def blocks(self) -> Blocks:
        return self.residency.blocks[D0]

    async def caught_up(self) -> None:
        """The router has taken what D has published."""
        publisher = self.fleet.nodes["D0"].publisher
        assert publisher is not None
        await until(lambda: self.blocks.expected == publisher._number or not publisher._number)

    def held(self, node: NodeId = D0) -> list[int]:
        return [self.residency.held(node, each.key) for each in self.router.core.conversations]

    def told(self) -> list[int | None]:
        return [self.blocks.held(session_of(each.key)) for each in self.router.core.conversations]

    def truth(self, node: str = "D0") -> int:
        """Blocks that the engine's cache holds."""
        return self.fleet.fleet.engines[node].cache.resident_tokens

    async def direct(self, name: str, times: int = 1) -> None:
        """Somebody else's prompt, straight to D."""
        for at in range(times):
            body = chat(f"{name} {at} " + SAY, stream=False, max_tokens=8, model=self.fleet.model)
            answer = await ask(self.fleet.urls["D0"], body, headers={"Content-Type": "application/json"})
            assert answer.status == 200


@asynccontextmanager
async def rig(nodes: Iterable[NodeId] = (D0,), replay: bool = True, pin_x: float = 1.0) -> AsyncIterator[Rig]:
    fleet = await serve("1P_1D", SMALL, base_port=0, speed=50.0, kv_events_port=0)
    lags: list[float] = []
    engines = {name: Emulated(name, at=url) for name, url in fleet.urls.items()}
    try:
        async with installation([engines["P0"]], [engines["D0"]], pin_x=pin_x, start_engines=False) as router:
            addresses = {}
            for node in nodes:
                publisher = fleet.nodes[node].publisher
                assert publisher is not None
                addresses[node] = EventsAddress(publisher.endpoint, publisher.replay if replay else "")
            following = asyncio.ensure_future(
                KvEvents(addresses, router.core.residency, lambda node, age_s: lags.append(age_s)).run()
            )
            try:
                await asyncio.sleep(0.1)  # ZMQ subscribes in the background and nobody says when it has
                yield Rig(router, fleet, lags)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
    finally:
        await fleet.close()


async def talk(made: Rig, *texts: str) -> list[str]:
    """One more turn; returns the history with its answer."""
    answer = await ask(made.router.url, chat(*texts, max_tokens=40, model=made.fleet.model))
    assert answer.status == 200
    await made.caught_up()
    return [*texts, answer.text]


@pytest.mark.parametrize("pin_x", [0.0, 0.5, 1.0])
@in_loop
async def test_what_the_events_say_is_what_the_engine_finds_on_the_next_turn(pin_x: float):
    async with rig(pin_x=pin_x) as made:
        history = await talk(made, "first " + SAY)
        for at in range(6):
            (told,) = made.told()
            assert told is not None and told == made.truth() // BLOCK * BLOCK
            history = await talk(made, *history, f"turn {at} " + "more " * 20 * at)
            record = made.router.records[-1]
            if record.went_local:
                assert record.cached_tokens == told
        assert made.residency.checks[D0, Source.EVENTS, Verdict.EVICTED] == 0
        assert len(made.lags) >= 7 and max(made.lags) < 5.0


@in_loop
async def test_what_others_pushed_out_is_not_believed():
    async with rig() as made:
        await talk(made, "mine " + SAY)
        (before,) = made.held()
        assert before > 100
        ledger = made.residency.ledger(D0).own_tokens
        await made.direct("theirs", times=26)
        await made.caught_up()
        assert made.held() == [0] and made.truth() > 0
        assert made.residency.ledger(D0).own_tokens == ledger, "the books do not know"


@in_loop
async def test_events_that_got_lost_are_asked_for():
    async with rig() as made:
        history = await talk(made, "mine " + SAY)
        publisher = made.fleet.nodes["D0"].publisher
        assert publisher is not None
        publisher.mute = True
        await made.direct("theirs", times=26)
        publisher.mute = False
        await made.direct("another")
        await made.caught_up()
        assert (made.told(), made.blocks.gaps) == ([0], 0)
        await talk(made, *history, "again")
        assert made.told()[0] == list(made.router.core.conversations)[-1].context_tokens // BLOCK * BLOCK


@in_loop
async def test_without_a_replay_the_ledger_answers_until_the_next_turn():
    async with rig(replay=False) as made:
        history = await talk(made, "mine " + SAY)
        publisher = made.fleet.nodes["D0"].publisher
        assert publisher is not None
        publisher.mute = True
        await made.direct("theirs")
        publisher.mute = False
        await made.direct("another")
        await made.caught_up()
        assert (made.told(), made.blocks.gaps) == ([None], 1)
        assert made.held()[0] > 100
        await talk(made, *history, "again " + SAY)
        (told,) = made.told()
        assert told is not None and told > 200


@in_loop
async def test_a_router_that_comes_late_hears_what_was_before():
    async with rig(nodes=()) as made:
        await made.direct("before", times=3)
        publisher = made.fleet.nodes["D0"].publisher
        assert publisher is not None
        late = KvEvents({D0: EventsAddress(publisher.endpoint, publisher.replay)}, made.residency, lambda *_: None)
        following = asyncio.ensure_future(late.run())
        await asyncio.sleep(0.1)
        await made.direct("after")
        await made.caught_up()
        assert len(made.blocks) * BLOCK > 0.9 * made.truth()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@in_loop
async def test_an_engine_that_restarts_between_two_probes_holds_nothing():
    async with rig() as made:
        history = await talk(made, "mine " + SAY)
        made.fleet.kill("D0")
        await made.fleet.revive("D0")
        await until(lambda: not made.blocks.live)
        await made.router.watch.probe_all()
        assert made.router.core.nodes[D0].healthy
        assert made.held() == [0]
        await asyncio.sleep(0.5)  # ZMQ connects again in the background
        history = await talk(made, *history, "again")
        (told,) = made.told()
        assert told is not None and told == made.truth() // BLOCK * BLOCK


@in_loop
async def test_p_is_followed_too_if_it_publishes():
    async with rig(nodes=(P0, D0), pin_x=0.0) as made:
        history = await talk(made, "first " + SAY)
        await until(lambda: made.residency.blocks[P0].events > 0)
        await talk(made, *history, "second " + SAY)
        assert made.residency.checks[P0, Source.EVENTS, Verdict.HIT] == 1


@in_loop
async def test_only_nodes_that_are_followed_get_a_session_and_it_is_not_the_clients_word():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d], pin_x=0.0) as router:
        router.core.residency.follow(D0)
        await ask(router.url, chat("hello"), headers={"X-Session-ID": "secret-of-mine"})
        assert "X-Session-ID" not in p.headers[0]
        (key,) = (each.key for each in router.core.conversations)
        assert d.headers[0]["X-Session-ID"] == session_of(key)
        assert "secret-of-mine" not in d.headers[0].values()


@in_loop
async def test_what_is_no_event_is_a_gap_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch):
    context = zmq.Context()
    pub = context.socket(zmq.PUB)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    residency = Residency()
    residency.reset(D0, 10_000)
    following = asyncio.ensure_future(
        KvEvents({D0: EventsAddress(f"tcp://127.0.0.1:{port}")}, residency, lambda *_: None).run()
    )
    try:
        await asyncio.sleep(0.2)
        good = msgspec.msgpack.encode([1.0, [{"type": "BlockStored", "block_hashes": [1], "block_size": 16}]])
        for frames in ([b"", b"\0" * 8, good], [b"x"], [b"", b"short", good], [b"", b"\0" * 7 + b"\2", b"\xc1"]):
            pub.send_multipart(frames)
        pub.send_multipart([b"any topic", b"\0" * 7 + b"\x09", good])
        blocks = residency.blocks[D0]
        await until(lambda: blocks.expected == 10)
        assert (blocks.gaps, len(blocks)) == (4, 1)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        context.destroy(linger=0)


@in_loop
async def test_a_mistake_inside_is_a_gap_and_the_subscription_is_made_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_events, "AGAIN_S", 0.01)
    mistakes = [ZeroDivisionError]
    take = KvEvents._take

    async def spoilt(self, *rest):
        if mistakes:
            raise mistakes.pop()
        await take(self, *rest)

    monkeypatch.setattr(KvEvents, "_take", spoilt)
    async with rig() as made:
        await made.direct("one")
        await until(lambda: not mistakes and made.blocks.gaps == 1)
        await asyncio.sleep(0.2)
        await made.direct("two")
        await until(lambda: made.blocks.live and len(made.blocks) * BLOCK > 0.9 * made.truth())
