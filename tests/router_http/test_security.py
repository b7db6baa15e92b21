"""What goes on to engines, what comes back, what is logged, and requests that two parsers could read differently."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.dispatch import DispatchOptions
from router.door import MAX_HEAD_BYTES

from .client import CHAT, COMPLETIONS, ask, chat, in_loop
from .fake_engine import FakeEngine
from .faults import ROLE, answers, breaks, content, hands_over_object, streams
from .installation import installation

OWN = {"accept", "accept-encoding", "content-length", "content-type", "host", "user-agent", "x-request-id"}
HOSTILE = {
    "Authorization": "Bearer client-key",
    "Cookie": "session=secret",
    "X-Forwarded-For": "10.0.0.1",
    "X-Forwarded-Host": "evil.example",
    "X-Data-Parallel-Rank": "7",
    "X-Session-ID": "s",
    "Forwarded": "for=10.0.0.1",
    "Via": "1.1 x",
    "Proxy-Authorization": "Basic x",
    "TE": "trailers",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "baggage": "secret=1",
    "kv-transfer-params": "{}",
}


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ((), set()),
        (("traceparent", "tracestate"), {"traceparent"}),
        (("authorization", "x-absent"), {"authorization"}),
    ],
)
@in_loop
async def test_only_allowed_headers_reach_engines(allowed: tuple[str, ...], expected: set[str]):
    p, d = FakeEngine("P0"), FakeEngine("D0")
    options = DispatchOptions(prefill_timeout_s=5.0, forward_headers=allowed)
    async with installation([p], [d], options=options) as router:
        answer = await ask(router.url, chat("hello"), headers=HOSTILE)
    assert answer.status == 200
    for engine in (p, d):
        assert {name.lower() for name in engine.headers[0]} == OWN | expected


@in_loop
async def test_engines_that_ask_for_a_key_get_theirs_and_never_the_clients():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    seen: list[tuple[str, str | None]] = []

    @web.middleware
    async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
        seen.append((request.path, request.headers.get("Authorization")))
        if request.headers.get("Authorization") != "Bearer of-engines":
            return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    for engine in (p, d):
        engine.middlewares = [guarded]
    async with installation([p], [d], engine_key="of-engines", keys=[("web", "of-clients")]) as router:
        headers = {"Authorization": "Bearer of-clients"}
        answer = await ask(router.url, chat("hello"), headers=headers)
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(router.url + "/v1/models") as response:
                models = response.status
            async with session.post(router.url + "/v1/embeddings", json={}) as response:
                passed = response.status
    assert (answer.status, models, passed) == (200, 200, 404)  # this engine has no embeddings, and says so
    assert {path for path, _ in seen} >= {"/health", "/metrics", "/v1/models", CHAT, "/v1/embeddings"}
    assert {key for _, key in seen} == {"Bearer of-engines"}


@in_loop
async def test_of_an_engines_headers_only_the_content_type_comes_back():
    async def chatty(engine: FakeEngine, request: web.Request, body: object) -> web.Response:
        headers = {"Set-Cookie": "a=b", "X-Inside": "10.0.0.1", "Server": "engine", "X-Trimtab-Turn": "99"}
        return web.json_response({"choices": [{"message": {"content": "x"}}]}, headers=headers)

    d = FakeEngine("D0", fault=chatty)
    async with installation([], [d]) as router:
        answer = await ask(router.url, chat("hello", stream=False))
    assert answer.status == 200 and answer.headers["x-trimtab-turn"] == "1"
    assert {name.lower() for name in answer.headers} == {
        *("content-type", "content-length", "x-request-id"),
        *("x-trimtab-route", "x-trimtab-reason", "x-trimtab-policy", "x-trimtab-turn"),
    }


CANARY = "kanarie-4711"


@in_loop
async def test_prompts_answers_and_keys_are_never_logged(caplog: pytest.LogCaptureFixture):
    """At DEBUG, through whatever can go wrong."""
    say = f"{CANARY} said so"
    p, d = FakeEngine("P0", words=(CANARY,)), FakeEngine("D0", words=(CANARY,))
    with caplog.at_level(logging.DEBUG):
        async with installation([p], [d], pin_x=0.0, keys=[("web", CANARY + "-key")]) as router:
            headers = {"Authorization": f"Bearer {CANARY}-key", "X-Session-ID": CANARY}

            async def send(more: object = None, **fields: Any) -> None:
                body = more if isinstance(more, bytes) else chat(say, **fields)
                await ask(router.url, body, headers=headers)

            await send()
            await send(stream=False, tools=[{"type": "function", "function": {"name": CANARY}}])
            await send(b'{"' + CANARY.encode())
            await send(b'{"model":"m","messages":"' + CANARY.encode() + b'"}')
            await send(max_tokens=CANARY)
            await send(kv_transfer_params={"remote_host": CANARY})
            await ask(router.url, chat(say), headers={"Authorization": f"Bearer {CANARY}-wrong"})
            await ask(router.url, {"model": "m", "prompt": say}, path=COMPLETIONS, headers=headers)
            await ask(router.url, {"input": say}, path="/v1/embeddings", headers=headers)
            p.fault = hands_over_object(CANARY)
            await send()
            p.fault = answers(500, {"error": CANARY})
            await send()
            p.fault, d.fault = None, answers(400, {"error": CANARY})
            await send()
            d.fault = breaks()
            await send()
            for node in router.core.nodes.values():
                node.healthy = True
            d.fault = streams(ROLE, content(CANARY), then="breaks")
            await send()
            d.fault = streams(b"data: {" + CANARY.encode() + b"\n\n", b"data: [DONE]\n\n")
            await send()
            await router.settle()
            metrics = router.metrics_page()
    assert len(caplog.records) > 5  # it was looked at
    assert CANARY not in caplog.text
    assert CANARY not in "".join(str(record.__dict__) for record in caplog.records)
    assert CANARY not in metrics


async def talk(url: str, data: bytes) -> bytes:
    """Send bytes, read to the end; the server has to close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 5.0)
    finally:
        writer.close()


BODY = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 56\r\n\r\n" + BODY


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Length: 56\r\nContent-Length: 56\r\n", BODY),
        (b"Content-Length: 56\r\nContent-Length: 3\r\n", BODY),
        (b"Content-Length: 56, 3\r\n", BODY),
        (b"Content-Length: +56\r\n", BODY),
        (b"Content-Length: 5 6\r\n", BODY),
        (b"Content-Length: -1\r\n", BODY),
        (b"Content-Length: 99999999999999999999999\r\n", BODY),
        (b"Content-Length: 56\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + SMUGGLED),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 56\r\n", b"0\r\n\r\n" + SMUGGLED),
        (b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + SMUGGLED),
        (b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\n" + BODY + b"\r\n0\r\n\r\n"),
        (b"X: a\r\n b: c\r\nContent-Length: 0\r\n", b""),
        (b"X: a\x00b\r\nContent-Length: 0\r\n", b""),
        (b"X: a\rb\r\nContent-Length: 0\r\n", b""),
        (b"Bad Name: a\r\nContent-Length: 0\r\n", b""),
    ],
)
@in_loop
async def test_what_two_parsers_could_read_differently_is_refused_and_the_connection_closed(head: bytes, body: bytes):
    d = FakeEngine("D0")
    async with installation([], [d]) as router:
        told = await talk(router.url, HEAD + head + b"\r\n" + body)
        await router.settle()
    assert told.startswith(b"HTTP/1.1 400 ") and told.count(b"HTTP/1.1") == 1
    assert b'"invalid_request_error"' in told and b"connection: close" in told.lower()
    assert d.calls == 0


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"X-Long: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        HEAD + b"X-Endless: " + b"a" * 1_000_000,
        HEAD + b"a" * 1_000_000,
        HEAD + b"".join(b"X-%d: a\r\n" % at for at in range(20_000)) + b"\r\n",
        b"POST /" + b"a" * 1_000_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 1_000_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: " + b"a" * 1_000_000,
    ],
)
@in_loop
async def test_a_head_without_end_is_refused(data: bytes):
    d = FakeEngine("D0")
    async with installation([], [d]) as router:
        try:
            told = await talk(router.url, data)
        except ConnectionError:  # it went on writing after the answer
            told = b"HTTP/1.1 431 "
        await router.settle()
    assert told.startswith(b"HTTP/1.1 431 ") and d.calls == 0


@in_loop
async def test_a_head_at_the_limit_and_requests_in_a_row_are_served():
    d = FakeEngine("D0")
    async with installation([], [d]) as router:
        async with aiohttp.ClientSession() as session:
            for size in (10, 8000, 8000, 10):  # one connection: counts begin anew with each
                headers = {f"X-{at}": "a" * size for at in range(5)}
                async with session.post(router.url + CHAT, data=BODY, headers=headers) as response:
                    assert response.status == 200
                    await response.read()
        pipelined = HEAD + b"Content-Length: 56\r\n\r\n" + BODY
        last = HEAD + b"Content-Length: 56\r\nConnection: close\r\n\r\n" + BODY
        told = await talk(router.url, pipelined * 3 + last)
    assert told.count(b"HTTP/1.1 200") == 4 and d.calls == 8


@in_loop
async def test_garbage_is_no_request():
    d = FakeEngine("D0")
    async with installation([], [d]) as router:
        for data in (
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x00" * 100,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            assert (await talk(router.url, data)).startswith(b"HTTP/1.1 400 ")
