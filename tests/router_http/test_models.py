"""Several models behind one router: each with pools, conversations and connectors of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from router.models import Directory
from router.turn import NodeId, Reason

from .client import ask, chat, get, in_loop
from .fake_engine import FakeEngine
from .installation import Installation, installation

JSON = {"Content-Type": "application/json"}


class Serving(FakeEngine):
    """An engine that lists these names; adapters as (name, parent)."""

    names: tuple[str | tuple[str, str], ...] = ()

    async def _models(self, request: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = []
        for name in self.names:
            id, parent = (name, None) if isinstance(name, str) else name
            cards.append({"id": id, "object": "model", "root": id, "parent": parent, "max_model_len": 1000})
        return web.json_response({"object": "list", "data": cards})


def serving(name: str, *names: str | tuple[str, str], **more: Any) -> Serving:
    engine = Serving(name, **more)
    engine.names = names
    return engine


@asynccontextmanager
async def two(
    big: tuple[list[FakeEngine], list[FakeEngine]],
    small: list[FakeEngine],
    aliases: frozenset[str] = frozenset(),
    **more: Any,
) -> AsyncIterator[tuple[Installation, Installation, Directory]]:
    """`big` has P and D, `small` replicas; the first installation's socket takes the requests in."""
    async with installation(*big, model="big", **more) as one, installation(replica=small, model="small") as other:
        pools = [*one.directory.pools, *other.directory.pools]
        pools[0].aliases = aliases
        directory = Directory(pools)
        one.set_directory(directory)
        await directory.refresh()
        yield one, other, directory


def asks(model: str, *texts: str, **more: Any) -> dict[str, Any]:
    return {**chat(*texts, **more), "model": model}


@in_loop
async def test_each_model_is_served_by_its_own_engines():
    p, d, r = serving("P0", "big"), serving("D0", "big", ("lora-a", "big")), serving("R0", "small")
    async with two(([p], [d]), [r], frozenset({"gpt-4o"}), pin_x=1.0) as (one, other, _):
        routes = {}
        for model in ("big", "gpt-4o", "lora-a", "small"):
            first = await ask(one.url, asks(model, "hello"))
            later = await ask(one.url, asks(model, "hello", first.text, "more"))
            routes[model] = (first.route[1], later.route[1], later.headers["x-trimtab-turn"])
        models = {record.model for record in one.records}, {record.model for record in other.records}
        conversations = len(one.core.conversations), len(other.core.conversations)
        await one.settle()
        await other.settle()
    local = (Reason.FIRST_TURN.value, Reason.PINNED.value, "2")
    assert routes == {
        **dict.fromkeys(("big", "gpt-4o", "lora-a"), local),
        "small": (Reason.REPLICA.value, Reason.REPLICA.value, "2"),
    }
    assert (p.calls, d.calls, r.calls) == (3, 6, 2)
    assert [body["model"] for body in d.bodies] == ["big"] * 2 + ["gpt-4o"] * 2 + ["lora-a"] * 2  # as the client wrote
    assert models == ({"big"}, {"small"})  # table, price and SLOs are the model's beneath
    assert conversations == (3, 1)  # KV of an adapter is its own


@in_loop
async def test_a_name_that_nobody_serves_is_404_as_openai_says_it():
    d, r = serving("D0", "big"), serving("R0", "small")
    async with two(([], [d]), [r]) as (one, _, _directory):
        answers = [
            await ask(one.url, asks("other", "hello")),
            await ask(one.url, {"model": "other", "input": "x"}, path="/v1/embeddings", headers=JSON),
        ]
    for answer in answers:
        assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
        assert "other" not in answer.error["message"]
    assert (d.calls, r.calls) == (0, 0)


@in_loop
async def test_the_models_of_all_pools_are_listed_once_as_their_engines_wrote_them():
    d, r = serving("D0", "big", ("lora-a", "big")), serving("R0", "small", "big")
    async with two(([], [d]), [r]) as (one, _, _directory):
        listed = await get(one.url + "/v1/models")
        await d.stop()
        one.core.node_down(NodeId("D0"))
        without = await get(one.url + "/v1/models")
        ready = await get(one.url + "/ready")
    cards = listed.json["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("big", None), ("lora-a", "big"), ("small", None)]
    assert cards[1] == {"id": "lora-a", "object": "model", "root": "lora-a", "parent": "big", "max_model_len": 1000}
    assert [card["id"] for card in without.json["data"]] == ["small", "big"]
    assert (ready.status, ready.json["models"]) == (
        200,
        {"big": {"ready": False, "topology": ""}, "small": {"ready": True, "topology": "1R"}},
    )


@in_loop
async def test_an_adapter_that_was_loaded_later_is_known_with_the_next_look():
    d, r = serving("D0", "big"), serving("R0", "small")
    async with two(([], [d]), [r]) as (one, _, directory):
        before = await ask(one.url, asks("lora-b", "hello"))
        d.names = ("big", ("lora-b", "big"))
        await directory.refresh()
        after = await ask(one.url, asks("lora-b", "hello"))
    assert (before.status, after.status, d.calls) == (404, 200, 1)


@in_loop
async def test_a_model_whose_engines_are_gone_is_503_and_the_other_serves_on():
    d, r = serving("D0", "big"), serving("R0", "small")
    async with two(([], [d]), [r]) as (one, _, _directory):
        await d.stop()
        gone = [await ask(one.url, asks("big", "hello", stream=False)) for _ in range(2)]
        still = await ask(one.url, asks("small", "hello"))
        passed = await ask(one.url, {"model": "big"}, path="/v1/embeddings", headers=JSON)
    assert [answer.status for answer in gone] in ([502, 503], [503, 503])
    assert (still.status, passed.status) == (200, 503)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data":1}', b'{"data":[{"id":1}]}', b"\xff", b'{"data":[]}'])
@in_loop
async def test_whatever_engines_say_of_their_models_the_configured_name_works(body: bytes):
    class Odd(FakeEngine):
        async def _models(self, request: web.Request) -> web.Response:
            return web.Response(body=body, content_type="application/json")

    d, r = Odd("D0"), serving("R0", "small")
    async with two(([], [d]), [r]) as (one, _, _directory):
        answer = await ask(one.url, asks("big", "hello"))
        listed = await get(one.url + "/v1/models")
    assert answer.status == 200
    assert [card["id"] for card in listed.json["data"]] == ["small"]


@in_loop
async def test_with_one_model_every_name_goes_to_its_engines():
    d = serving("D0", "big")
    async with installation([], [d]) as router:
        answer = await ask(router.url, asks("whatever", "hello"))
    assert answer.status == 200 and d.bodies[0]["model"] == "whatever"
