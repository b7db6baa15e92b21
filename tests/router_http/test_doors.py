"""Who may come in: sizes, keys, bad bodies, and an installation that is going down."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from router.dispatch import DispatchOptions

from .client import CHAT, COMPLETIONS, ask, chat, get, in_loop, until
from .fake_engine import FakeEngine
from .faults import ROLE, content, streams
from .installation import installation


@in_loop
async def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_not():
    d = FakeEngine("D0")
    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 1000 + b'"}]}'
    async with installation([], [d], options=DispatchOptions(max_body_bytes=len(body))) as router:
        fits = await ask(router.url, body)
        over = await ask(router.url, body + b" ")

        async def endless():
            for _ in range(64):
                yield b"x" * 65536

        async with aiohttp.ClientSession() as session, session.post(router.url + CHAT, data=endless()) as response:
            chunked = response.status
        await router.settle()
        assert router.metric("trimtab_refused_total", code="request_too_large") == 2
    assert (fits.status, over.status, chunked) == (200, 413, 413)
    assert over.error["code"] == "request_too_large"
    assert (d.calls, len(router.records)) == (1, 1)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Basic right", 401),
        ("right", 401),
        ("Bearer ", 401),
        ("Bearer right", 200),
        ("bearer  right ", 200),
    ],
)
@in_loop
async def test_keys(header: str | None, status: int):
    d = FakeEngine("D0")
    async with installation([], [d], keys=[("", "right")]) as router:
        answer = await ask(router.url, chat("hi"), headers={"Authorization": header} if header is not None else {})
        open_to_all = [(await get(router.url + path)).status for path in ("/health", "/ready")]
    assert answer.status == status
    assert open_to_all == [200, 200]
    if status == 401:
        assert (answer.error["code"], d.calls) == ("unauthorized", 0)
        assert "wrong" not in answer.body.decode()
    else:
        assert "Authorization" not in d.headers[0]


@in_loop
async def test_holders_of_different_keys_never_share_a_conversation():
    d = FakeEngine("D0")
    keys = [("", "one"), ("", "two")]
    async with installation([], [d], keys=keys) as router:
        for key in ("one", "two"):
            await ask(router.url, chat("hi"), headers={"Authorization": f"Bearer {key}", "X-Session-ID": "s"})
        later = await ask(
            router.url, chat("hi", "x", "more"), headers={"Authorization": "Bearer two", "X-Session-ID": "s"}
        )
        names = sorted(each.key.id for each in router.core.conversations)
        tenants = {each.key.tenant for each in router.core.conversations}
    assert (names, len(tenants), later.headers["x-trimtab-turn"]) == (["id:s", "id:s"], 2, "2")
    assert not tenants & {"one", "two"}


SECRET = "a secret of the client's"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (CHAT, b"", "JSON"),
        (CHAT, b"{" + SECRET.encode(), "JSON"),
        (CHAT, b'["' + SECRET.encode() + b'"]', "object"),
        (CHAT, b'{"model":"m"}', "messages"),
        (CHAT, b'{"messages":[{"role":"user","content":"a secret of the client\'s"}]}', "model"),
        (CHAT, b'{"model":"m","messages":[{"role":"user"}],"max_tokens":"a secret of the client\'s"}', "max_tokens"),
        (COMPLETIONS, b'{"model":"m"}', "prompt"),
        (CHAT, b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
    ],
)
@in_loop
async def test_a_bad_body_is_the_clients_fault_and_is_not_quoted(path: str, body: bytes, named: str):
    d = FakeEngine("D0")
    async with installation([], [d]) as router:
        answer = await ask(router.url, body, path=path, headers={"X-Request-Id": "abc"})
        await router.settle()
    assert (answer.status, answer.error["type"], d.calls) == (400, "invalid_request_error", 0)
    assert named in answer.error["message"]
    assert SECRET not in answer.body.decode()
    assert answer.headers["x-request-id"] == "abc"


@in_loop
async def test_draining_ends_what_runs_and_takes_nothing_new():
    d = FakeEngine("D0", fault=streams(ROLE, content("one "), 0.2, content("two"), b"data: [DONE]\n\n"))
    async with installation([], [d]) as router:
        running = asyncio.ensure_future(ask(router.url, chat("hello")))
        await until(lambda: d.running)
        router.dispatcher.draining = True
        refused = await ask(router.url, chat("more"))
        ready = await get(router.url + "/ready")
        health = await get(router.url + "/health")
        answer = await running
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert (ready.status, ready.json["reason"], health.status) == (503, "draining", 200)
    assert (answer.text, answer.done, d.calls) == ("one two", True, 1)


@in_loop
async def test_without_a_node_to_decode_it_is_not_ready():
    p, d = FakeEngine("P0"), FakeEngine("D0", healthy=False)
    async with installation([p], [d]) as router:
        answer = await ask(router.url, chat("hello"))
        ready = await get(router.url + "/ready")
        models = await get(router.url + "/v1/models")
    assert (answer.status, answer.error["code"]) == (503, "no_node")
    assert (ready.status, ready.json["topology"]) == (503, "1P")
    assert models.json["data"] == [{"id": "P0"}]


@in_loop
async def test_a_hundred_requests_that_clients_got_wrong_take_no_node_out():
    """Row 20, the first half."""
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d]) as router:

        async def wrong(engine, request, body):
            from .faults import answers

            return await answers((400, 404, 422)[engine.calls % 3])(engine, request, body)

        p.fault = wrong
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(router.url, chat(f"bad {at}", stream=False))) for at in range(100)]
        p.fault = None
        good = await ask(router.url, chat("good"))
        await router.settle()
        assert router.core.topology == "1P_1D"
    assert {task.result().status for task in asked} == {400, 404, 422}
    assert (good.status, d.calls) == (200, 1)
