"""Posts to a receiver that is slow, broken, away or offended."""

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from slos.deliver import Backoff, Delivery, Result

SECRET = "swordfish"
Respond = Callable[[int], Awaitable[web.StreamResponse]]


class Receiver:
    """A webhook on this host; `respond(number)` says what the nth post (1-based) gets."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def __aenter__(self) -> "Receiver":
        app = web.Application()
        app.router.add_post("/hook/{token}", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/hook/T0PSECRET"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        return await self._respond(len(self.bodies))


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def statuses(*codes: int) -> Respond:
    async def respond(number: int) -> web.StreamResponse:
        return web.Response(status=codes[min(number, len(codes)) - 1])

    return respond


def run(respond: Respond, story: Callable[[Receiver, Delivery, Clock], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        clock = Clock()
        async with Receiver(respond) as receiver:
            delivery = Delivery(receiver.url, clock=clock, coin=lambda: 1.0, **options)  # type: ignore[arg-type]
            await story(receiver, delivery, clock)
            await delivery.close()

    asyncio.run(asyncio.wait_for(main(), 20.0))


def test_a_notice_arrives_signed_and_numbered():
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        sent = delivery.offer({"status": "firing", "summary": "6 % über 2 s"})
        await delivery.flush()
        (body,), (headers,) = receiver.bodies, receiver.headers
        assert json.loads(body) == {"status": "firing", "summary": "6 % über 2 s"}
        assert headers["Content-Type"] == "application/json"
        assert headers["X-Trimtab-Delivery"] == sent
        expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert headers["X-Trimtab-Signature"] == f"sha256={expected}"
        assert delivery.waiting == 0 and delivery.results[Result.DELIVERED] == 1

    run(statuses(200), story, secret=SECRET)


def test_without_a_secret_there_is_no_signature():
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        delivery.offer({})
        await delivery.flush()
        assert "X-Trimtab-Signature" not in receiver.headers[0]

    run(statuses(204), story)


@pytest.mark.parametrize("code", [500, 502, 503, 429, 408, 404, 401, 302])
def test_a_flaky_receiver_gets_the_same_notice_again_after_growing_pauses(code: int):
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        delivery.offer({"status": "firing"})
        tried_s = []
        for _ in range(200):
            before = len(receiver.bodies)
            await delivery.flush()
            if len(receiver.bodies) > before:
                tried_s.append(clock.now_s)
            clock.now_s += 0.5
        assert tried_s == [0.0, 1.0, 3.0, 7.0]
        assert len(set(receiver.bodies)) == 1
        assert len({headers["X-Trimtab-Delivery"] for headers in receiver.headers}) == 1
        assert delivery.results == {**dict.fromkeys(Result, 0), Result.FAILED: 3, Result.DELIVERED: 1}

    run(statuses(code, code, code, 200), story)


def test_a_recovery_never_overtakes_its_alert():
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        delivery.offer({"status": "firing"})
        await delivery.flush()
        delivery.offer({"status": "resolved"})
        for _ in range(30):
            await delivery.flush()
            clock.now_s += 1.0
        assert [json.loads(body)["status"] for body in receiver.bodies] == ["firing"] * 3 + ["resolved"]

    run(statuses(500, 500, 200), story)


@pytest.mark.parametrize("code", [400, 413, 422])
def test_a_body_that_will_never_be_taken_is_not_posted_again(code: int):
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        delivery.offer({"status": "firing"})
        delivery.offer({"status": "resolved"})
        await delivery.flush()
        assert len(receiver.bodies) == 2 and delivery.waiting == 0
        assert delivery.results[Result.REFUSED] == 1 and delivery.results[Result.DELIVERED] == 1

    run(statuses(code, 200), story)


def test_a_receiver_that_is_away_for_an_hour_loses_the_notice_and_not_the_next_ones():
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        delivery.offer({"n": 1})
        while delivery.results[Result.EXPIRED] == 0:
            await delivery.flush()
            clock.now_s += 30.0
        assert 3600.0 <= clock.now_s <= 3800.0
        posts = len(receiver.bodies)
        assert posts < 100, "pauses grow to a minute"
        delivery.offer({"n": 2})
        clock.now_s += 120.0
        await delivery.flush()
        assert delivery.waiting == 1, "still away"

    run(statuses(503), story)


def test_a_receiver_that_hangs_costs_its_timeout_and_blocks_nothing():
    async def hang(number: int) -> web.StreamResponse:
        await asyncio.sleep(0.0 if number > 1 else 2.0)
        return web.Response()

    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        delivery.offer({})
        flushing, beats = asyncio.create_task(delivery.flush()), 0
        while not flushing.done():
            beats += 1
            await asyncio.sleep(0.01)
        assert beats >= 5, "the loop went on meanwhile"
        assert delivery.results[Result.FAILED] == 1
        clock.now_s += 5.0
        await delivery.flush()
        assert delivery.results[Result.DELIVERED] == 1

    run(hang, story, timeout_s=0.5)


def test_a_full_queue_drops_the_oldest_and_says_so():
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        for number in range(5):
            delivery.offer({"n": number})
        assert delivery.waiting == 3 and delivery.results[Result.DROPPED] == 2
        await delivery.flush()
        assert [json.loads(body)["n"] for body in receiver.bodies] == [2, 3, 4]

    run(statuses(200), story, max_waiting=3)


def test_two_flushes_at_once_post_each_notice_once():
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        for number in range(4):
            delivery.offer({"n": number})
        await asyncio.gather(delivery.flush(), delivery.flush(), delivery.flush())
        assert [json.loads(body)["n"] for body in receiver.bodies] == [0, 1, 2, 3]

    run(statuses(200), story)


def test_neither_secret_nor_path_is_ever_logged_or_shown(caplog):
    async def story(receiver: Receiver, delivery: Delivery, clock: Clock) -> None:
        delivery.offer({})
        await delivery.flush()
        shown = repr(delivery) + delivery.shown + caplog.text
        assert "127.0.0.1" in caplog.text
        assert SECRET not in shown and "T0PSECRET" not in shown and "hook" not in shown

    with caplog.at_level(logging.DEBUG, logger="trimtab"):
        run(statuses(500), story, secret=SECRET)


def test_nobody_at_the_address_is_a_failure_like_any_other(caplog):
    async def main() -> None:
        delivery = Delivery("http://user:T0PSECRET@127.0.0.1:9/T0PSECRET", coin=lambda: 0.0)
        delivery.offer({})
        await delivery.flush()
        assert delivery.results[Result.FAILED] == 1 and delivery.waiting == 1
        await delivery.close()

    with caplog.at_level(logging.DEBUG, logger="trimtab"):
        asyncio.run(main())
    assert "T0PSECRET" not in caplog.text and "were not delivered" in caplog.text


@pytest.mark.parametrize(
    "url", ["", "hooks.example/T0PSECRET", "ftp://T0PSECRET/x", "http:///T0PSECRET", "http://[T0PSECRET"]
)
def test_what_is_no_url_is_refused_without_repeating_it(url: str):
    with pytest.raises(ValueError, match="http") as refused:
        Delivery(url)
    assert "T0PSECRET" not in str(refused.value)


def test_pauses_double_to_their_limit_and_jitter_takes_up_to_half():
    backoff = Backoff(first_s=1.0, max_s=60.0)
    assert [backoff.pause_s(n, 1.0) for n in (1, 2, 3, 7, 5000)] == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert backoff.pause_s(3, 0.0) == 2.0
