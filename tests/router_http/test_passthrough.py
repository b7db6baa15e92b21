"""Routes of engines that are no turns: passed on as they are, and none that is for operators."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from .client import Answer, ask, get, in_loop, until
from .fake_engine import FakeEngine
from .installation import installation


class Open(FakeEngine):
    """An engine with every route there is; it remembers what it was asked."""

    def __init__(self, name: str, **more: Any) -> None:
        super().__init__(name, **more)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/{path:.*}", self._any)

    async def _any(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append((request.method, request.path_qs, dict(request.headers), body))
        if b'"hang"' in body:
            self.running += 1
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.aborted += 1
                raise
            finally:
                self.running -= 1
        if b'"stream"' in body:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for part in (b"event: a\ndata: 1\n\n", b"event: b\nda", b"ta: 2\n\n"):
                await response.write(part)
            if b'"breaks"' in body:
                assert request.transport is not None
                request.transport.close()
            return response
        return web.json_response({"by": self.name}, headers={"Set-Cookie": "a=b", "Server": "engine", "X-Inside": "1"})


async def post(url: str, path: str, body: object, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await ask(url, data, path=path, headers={"Content-Type": "application/json", **headers})


@in_loop
async def test_another_route_goes_to_an_engine_as_it_is_and_is_no_turn():
    p, d = Open("P0"), Open("D0")
    body = b'{ "model":"m", "input" : ["\\u00e9"], "x":1.0 }'
    async with installation([p], [d]) as router:
        answer = await post(router.url, "/v1/embeddings?a=b%20c", body, Cookie="c=1", Authorization="Bearer k", TE="x")
        got = await get(router.url + "/v1/responses/resp_1")
        tokens = await post(router.url, "/tokenize", {"prompt": "x"})
        counted = router.metric("trimtab_passed_through_total", node="D0", outcome="answered")
        await router.settle()
    assert [a.json["by"] for a in (answer, got, tokens)] == ["D0"] * 3
    method, path, headers, sent = d.asked[0]
    assert (method, path, sent) == ("POST", "/v1/embeddings?a=b%20c", body)
    assert sorted(name.lower() for name in headers) == [
        *("accept", "accept-encoding", "content-length", "content-type", "host", "user-agent", "x-request-id"),
    ]
    assert d.asked[1][:2] == ("GET", "/v1/responses/resp_1")
    assert answer.headers["x-trimtab-reason"] == "passthrough"
    assert not {"set-cookie", "server", "x-inside"} & {name.lower() for name in answer.headers}
    assert (p.asked, router.records, counted) == ([], [], 3)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/load_lora_adapter", 403, "forbidden"),
        ("/v1/unload_lora_adapter", 403, "forbidden"),
        ("/sleep", 404, "not_found"),
        ("/reset_prefix_cache", 404, "not_found"),
        ("/collective_rpc", 404, "not_found"),
        ("/metrics", 404, "not_found"),
        ("/v1/%2e%2e/sleep", 404, "not_found"),
        ("/v1/..%2fsleep", 404, "not_found"),
        ("/nothing", 404, "not_found"),
    ],
)
@in_loop
async def test_what_steers_an_engine_is_not_for_clients(path: str, status: int, code: str):
    d = Open("D0")
    async with installation([], [d]) as router:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(router.url.rpartition(":")[2]))
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % path.encode())
        text = (await reader.read()).decode()
        writer.close()
    assert text.startswith(f"HTTP/1.1 {status} ") and f'"code":"{code}"' in text
    assert d.asked == []


@in_loop
async def test_an_operator_may_open_a_route():
    d = Open("D0")
    async with installation([], [d], passed=["/v1/load_lora_adapter"]) as router:
        answer = await post(router.url, "/v1/load_lora_adapter", {"lora_name": "a"})
        other = await post(router.url, "/v1/unload_lora_adapter", {"lora_name": "a"})
    assert (answer.status, other.status, len(d.asked)) == (200, 403, 1)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"kv_transfer_params":{"remote_host":"10.0.0.1"}}', "application/json", 400),
        (b'{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}', "application/json", 400),
        (b'{"input":"x","k":NaN}', "application/json", 400),
        (b"[1]", "application/json", 400),
        (b'{"kv_transfer_params":{}}', "text/plain", 415),
        (b"a=b", "application/x-www-form-urlencoded", 415),
        (b"--x--", "multipart/form-data; boundary=x", 415),
        (b'{"input":"x"}', "application/json; charset=utf-8", 200),
    ],
)
@in_loop
async def test_a_body_that_asks_for_what_is_not_the_clients_goes_nowhere(body: bytes, kind: str, status: int):
    d = Open("D0")
    async with installation([], [d]) as router:
        answer = await post(router.url, "/v1/responses", body, **{"Content-Type": kind})
    assert (answer.status, len(d.asked)) == (status, 1 if status == 200 else 0)


@in_loop
async def test_audio_is_passed_on_as_the_form_that_it_is():
    d = Open("D0")
    form = aiohttp.FormData()
    form.add_field("file", b"RIFF", filename="a.wav")
    form.add_field("model", "m")
    async with (
        installation([], [d]) as router,
        aiohttp.ClientSession() as session,
        session.post(router.url + "/v1/audio/transcriptions", data=form) as response,
    ):
        assert response.status == 200
    assert d.asked[0][2]["Content-Type"].startswith("multipart/form-data; boundary=") and b"RIFF" in d.asked[0][3]


@in_loop
async def test_a_stream_comes_as_it_is_and_one_that_breaks_says_so():
    d = Open("D0")
    async with installation([], [d]) as router:
        whole = await post(router.url, "/v1/messages", {"do": "stream"})
        broken = await post(router.url, "/v1/messages", {"do": ["stream", "breaks"]})
        await router.settle()
    assert whole.body == b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n"
    assert broken.body.startswith(b"event: a") and broken.error["code"] == "upstream_broke_off"


@in_loop
async def test_keys_are_asked_for_here_too():
    d = Open("D0")
    async with installation([], [d], keys=[("web", "right")]) as router:
        answers = [
            await post(router.url, "/v1/embeddings", {}),
            await get(router.url + "/v1/models"),
            await get(router.url + "/v1/anything"),
            await get(router.url + "/nowhere"),
        ]
        right = await post(router.url, "/v1/embeddings", {}, Authorization="Bearer right")
    assert [answer.status for answer in answers] == [401] * 4
    assert all(answer.headers["www-authenticate"] == "Bearer" for answer in answers)
    assert (right.status, "Authorization" in d.asked[0][2]) == (200, False)


@in_loop
async def test_a_client_that_leaves_frees_the_engine():
    d = Open("D0")
    async with installation([], [d]) as router:
        asking = asyncio.ensure_future(post(router.url, "/v1/embeddings", {"do": "hang"}))
        await until(lambda: d.running)
        asking.cancel()
        took_s = await until(lambda: not d.running)
        await router.settle()
    assert d.aborted == 1 and took_s < 0.5


@in_loop
async def test_no_engine_is_503_and_one_that_is_gone_costs_nothing_while_there_is_another():
    gone, d = Open("D0"), Open("D1")
    async with installation([], [gone, d]) as router:
        await gone.stop()
        answers = [await post(router.url, "/v1/embeddings", {}) for _ in range(2)]
        await d.stop()
        last = await post(router.url, "/v1/embeddings", {})
        none = await post(router.url, "/v1/embeddings", {})
    assert [answer.json["by"] for answer in answers] == ["D1"] * 2
    assert (last.status, last.error["code"]) == (502, "upstream_error")
    assert (none.status, none.error["code"]) == (503, "no_node")
