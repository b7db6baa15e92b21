"""What Alertmanagers are posted, and what becomes of a peer that is away, slow or offended."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from slos.alertmanagers import Alertmanagers
from slos.deliver import Result
from slos.sinks.alertmanager import ENDS_IN_S, Posted, postable

BEGUN_S = 1_795_986_000.0
LABELS = {"alertname": "SLOBreach", "slo": "chat-ttft", "severity": "page"}
FIRING = Posted(LABELS, {"summary": "6 % slow"}, BEGUN_S, None, "http://admin:9400/#slo-chat-ttft")
OTHER = Posted({**LABELS, "slo": "tpot"}, {"summary": "slow"}, BEGUN_S)


# -- bodies -----------------------------------------------------------------------------------------------------------


def test_one_that_fires_ends_four_minutes_ahead_and_one_that_is_over_when_it_was_over():
    body = postable(FIRING, BEGUN_S + 60.0)
    assert body["startsAt"] == "2026-11-29T21:00:00.000Z" and body["endsAt"] == "2026-11-29T21:05:00.000Z"
    assert body["labels"] == LABELS and body["annotations"] == {"summary": "6 % slow"}
    assert body["generatorURL"] == "http://admin:9400/#slo-chat-ttft"
    over = Posted(LABELS, {}, BEGUN_S, BEGUN_S + 30.0)
    assert postable(over, BEGUN_S + 60.0)["endsAt"] == "2026-11-29T21:00:30.000Z"
    assert ENDS_IN_S == 240.0


def test_an_end_never_lies_ahead_of_now_and_a_beginning_never_behind_the_end():
    ahead = Posted(LABELS, {}, BEGUN_S + 90.0, BEGUN_S + 100.0)
    body = postable(ahead, BEGUN_S)
    assert body["endsAt"] == body["startsAt"] == "2026-11-29T21:00:00.000Z"


def test_empty_labels_are_left_out_and_so_is_a_page_that_is_no_url():
    body = postable(Posted({**LABELS, "team": ""}, {}, BEGUN_S, None, "/slos/x"), BEGUN_S)
    assert body["labels"] == LABELS and "generatorURL" not in body


@pytest.mark.parametrize(
    ("labels", "annotations", "says"),
    [
        ({**LABELS, "my-team": "x"}, {}, "no label name"),
        ({**LABELS, "n": 5}, {}, "no text"),
        (LABELS, {"a.b": "x"}, "no label name"),
        (LABELS, {"a": 5}, "no text"),
        ({"slo": "x"}, {}, "alertname"),
    ],
)
def test_what_it_would_not_take_is_found_here(labels: dict, annotations: dict, says: str):
    with pytest.raises(ValueError, match=says):
        postable(Posted(labels, annotations, BEGUN_S), BEGUN_S)


# -- peers ------------------------------------------------------------------------------------------------------------

Respond = Callable[[list[dict]], web.Response]


class Peer:
    """An Alertmanager on this host, as far as it is posted to."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.posts: list[list[dict]] = []
        self.url = ""

    async def __aenter__(self) -> "Peer":
        app = web.Application()
        app.router.add_post("/prefix/api/v2/alerts", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/prefix/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.posts.append(await request.json())
        return self.respond(self.posts[-1])

    def states(self) -> list[list[str]]:
        return [[alert["labels"]["slo"] for alert in post] for post in self.posts]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def ok(_: list[dict]) -> web.Response:
    return web.Response()


def run(
    story: Callable[[Alertmanagers, Clock, Peer, Peer], Awaitable[None]], respond: Respond = ok, other: Respond = ok
) -> None:
    async def main() -> None:
        clock = Clock()
        async with Peer(respond) as one, Peer(other) as two:
            wall = lambda: BEGUN_S + clock.now_s  # noqa: E731
            peers = Alertmanagers([one.url, two.url], clock=clock, wall=wall, coin=lambda: 1.0)
            await story(peers, clock, one, two)
            await peers.close()

    asyncio.run(asyncio.wait_for(main(), 20.0))


def test_every_peer_is_posted_to_at_once_and_then_every_minute_with_annotations():
    async def story(peers: Alertmanagers, clock: Clock, one: Peer, two: Peer) -> None:
        peers.show([FIRING])
        assert peers.waiting == 1
        for _ in range(121):
            await peers.push()
            clock.now_s += 1.0
        assert peers.waiting == 0 and peers.knows(FIRING)
        for peer in (one, two):
            assert len(peer.posts) == 3
            assert {post[0]["annotations"]["summary"] for post in peer.posts} == {"6 % slow"}
            assert len({post[0]["startsAt"] for post in peer.posts}) == 1
            assert len({post[0]["endsAt"] for post in peer.posts}) == 3, "the end moves ahead"

    run(story)


def test_a_recovery_is_posted_at_once_and_on_as_long_as_it_is_shown():
    async def story(peers: Alertmanagers, clock: Clock, one: Peer, two: Peer) -> None:
        peers.show([FIRING])
        await peers.push()
        clock.now_s = 20.0
        over = Posted(LABELS, {"summary": "kept again"}, BEGUN_S, BEGUN_S + 20.0)
        peers.show([over])
        assert not peers.knows(over)
        await peers.push()
        clock.now_s = 81.0
        await peers.push()
        assert peers.knows(over)
        assert [post[0]["endsAt"] for post in one.posts[1:]] == ["2026-11-29T21:00:20.000Z"] * 2

    run(story)


def test_nothing_to_tell_is_no_post():
    async def story(peers: Alertmanagers, clock: Clock, one: Peer, two: Peer) -> None:
        for _ in range(200):
            await peers.push()
            clock.now_s += 1.0
        assert one.posts == []

    run(story)


def test_a_peer_that_is_away_is_tried_again_after_pauses_and_the_other_is_told_at_once():
    broken = [web.Response(status=503) for _ in range(3)]

    def respond(_: list[dict]) -> web.Response:
        return broken.pop() if broken else web.Response()

    async def story(peers: Alertmanagers, clock: Clock, one: Peer, two: Peer) -> None:
        peers.show([FIRING])
        tried = []
        for _ in range(20):
            before = len(one.posts)
            await peers.push()
            tried += [clock.now_s] * (len(one.posts) - before)
            clock.now_s += 1.0
        assert tried == [0.0, 1.0, 3.0, 7.0] and len(two.posts) == 1
        assert peers.results[Result.FAILED] == 3

    run(story, respond)


def test_what_a_peer_refuses_is_found_and_not_posted_again_until_it_changes(caplog):
    def respond(post: list[dict]) -> web.Response:
        return web.Response(status=400 if any(alert["labels"]["slo"] == "tpot" for alert in post) else 200)

    async def story(peers: Alertmanagers, clock: Clock, one: Peer, two: Peer) -> None:
        peers.show([FIRING, OTHER])
        for _ in range(130):
            await peers.push()
            clock.now_s += 1.0
        assert one.states() == [["chat-ttft", "tpot"], ["chat-ttft"], ["tpot"], ["chat-ttft"], ["chat-ttft"]]
        assert peers.results[Result.REFUSED] == 1 and peers.waiting == 0 and peers.knows(OTHER)
        peers.show([FIRING, Posted(OTHER.labels, {"summary": "x", "runbook_url": "http://r"}, BEGUN_S)])
        await peers.push()
        assert one.states()[5] == ["chat-ttft", "tpot"], "it has changed, so it is tried once more"

    run(story, respond)
    assert "refuses alert SLOBreach" in caplog.text


def test_one_that_is_wrong_never_leaves_and_the_others_do():
    wrong = Posted({**LABELS, "my-team": "x"}, {}, BEGUN_S)

    async def story(peers: Alertmanagers, clock: Clock, one: Peer, two: Peer) -> None:
        peers.show([wrong, OTHER])
        await peers.push()
        assert one.states() == [["tpot"]]

    run(story)


def test_a_test_says_what_every_peer_answered():
    async def story(peers: Alertmanagers, clock: Clock, one: Peer, two: Peer) -> None:
        found = await peers.once(FIRING)
        assert sorted(found.values()) == ["delivered", "status 500"] and len(found) == 2

    run(story, other=lambda _: web.Response(status=500))


def test_no_password_is_ever_logged_or_shown(caplog):
    async def main() -> None:
        peers = Alertmanagers(["http://user:T0PSECRET@127.0.0.1:9/T0PSECRET"], coin=lambda: 0.0)
        peers.show([FIRING])
        await peers.push()
        assert peers.shown == ["http://127.0.0.1:9"]
        await peers.close()

    with caplog.at_level(logging.DEBUG, logger="trimtab"):
        asyncio.run(main())
    assert "127.0.0.1:9" in caplog.text and "T0PSECRET" not in caplog.text


def test_a_body_is_json_as_the_interface_wants_it():
    assert json.loads(json.dumps([postable(FIRING, BEGUN_S)]))[0].keys() == {
        "labels",
        "annotations",
        "startsAt",
        "endsAt",
        "generatorURL",
    }
