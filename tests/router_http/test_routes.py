"""What goes through when nothing is wrong: routes, headers, bodies and bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.turn import Reason, Route
from slos.objective import Outcome

from .client import COMPLETIONS, ask, chat, get, in_loop
from .fake_engine import FakeEngine
from .installation import installation

LOCAL, TRANSFER = Route.APPEND_LOCAL.value, Route.PREFILL_TRANSFER.value


def relayed(engine: FakeEngine, usage_asked: bool) -> bytes:
    """What a client must get of everything that the engine sent."""
    kept = [frame for frame in engine.sent if usage_asked or b'"choices": []' not in frame]
    return b"".join(kept)


@in_loop
async def test_a_first_turn_goes_through_p_and_a_later_one_where_the_pin_says():
    for x, route in ((0.0, TRANSFER), (1.0, LOCAL)):
        p, d = FakeEngine("P0"), FakeEngine("D0")
        async with installation([p], [d], pin_x=x) as router:
            first = await ask(router.url, chat("hello"))
            later = await ask(router.url, chat("hello", first.text, "and now?"))
            await router.settle()
        assert first.route == (TRANSFER, Reason.FIRST_TURN.value)
        assert later.route == (route, Reason.PINNED.value)
        assert (p.calls, d.calls) == ((2, 2) if x == 0 else (1, 2))
        assert [record.outcome for record in router.records] == [Outcome.COMPLETED] * 2


@in_loop
async def test_d_gets_the_handle_as_p_gave_it():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d]) as router:
        await ask(router.url, chat("hello"), headers={"X-Request-Id": "mine"})
    internal = p.headers[0]["X-Request-Id"]
    assert internal == d.headers[0]["X-Request-Id"] != "mine"  # two clients may choose the same
    assert d.bodies[0]["kv_transfer_params"] == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1]],
        "remote_engine_id": "P0",
        "remote_request_id": f"chatcmpl-{internal}-1",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": p.usage(p.bodies[0])["prompt_tokens"],
        "remote_blocks_expiry_time": 1782864000.1234567,
    }
    assert p.bodies[0]["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
@in_loop
async def test_a_stream_is_relayed_byte_for_byte_less_the_usage_that_only_we_asked_for(options: dict | None):
    d = FakeEngine("D0", words=("Grüße ", "\\n\n", "data: ", "🙂"))
    more: dict[str, Any] = {} if options is None else {"stream_options": options}
    asked = bool(options and options.get("include_usage"))
    async with installation([], [d]) as router:
        answer = await ask(router.url, chat("hello", **more))
    assert answer.body == relayed(d, asked)
    assert b'"usage"' in b"".join(d.sent)  # it was there
    assert (b'"usage"' in answer.body) is asked
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert d.bodies[0]["stream_options"]["include_usage"] is True


@in_loop
async def test_an_unstreamed_answer_is_the_engines_own():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d]) as router:
        answer = await ask(router.url, chat("hello", stream=False))
        await router.settle()
    assert answer.json == {
        "id": "x",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "one two three four"}, "finish_reason": "stop"}
        ],
        "usage": d.usage(d.bodies[0]),
    }
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert "stream_options" not in d.bodies[0]
    record = router.records[0]
    assert (record.streaming, record.ttft_s, record.tpot_s, record.output_tokens) == (False, None, None, 4)


@in_loop
async def test_headers_say_what_was_decided_and_the_counter_agrees():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d], pin_x=1.0) as router:
        first = await ask(router.url, chat("hello"), headers={"X-Request-Id": "from the client"})
        later = await ask(router.url, chat("hello", first.text, "more"))
        counted = {
            (answer.route, turn): router.metric(
                "trimtab_turns_total", route=answer.route[0], reason=answer.route[1], outcome="completed"
            )
            for turn, answer in enumerate((first, later), 1)
        }
    assert first.headers["x-request-id"] == "from the client"
    assert later.headers["x-request-id"].startswith("id")
    assert [answer.headers["x-trimtab-turn"] for answer in (first, later)] == ["1", "2"]
    assert [answer.headers["x-trimtab-policy"] for answer in (first, later)] == ["1", "1"]
    assert counted == {((TRANSFER, "first_turn"), 1): 1.0, ((LOCAL, "pinned"), 2): 1.0}


@in_loop
async def test_a_record_holds_what_the_engine_counted_and_the_client_saw():
    p, d = FakeEngine("P0", gap_s=0.02), FakeEngine("D0", gap_s=0.02)
    async with installation([p], [d]) as router:
        await ask(router.url, chat("hello"))
        await router.settle()
    record = router.records[0]
    usage = d.usage(d.bodies[0])
    assert (record.prompt_tokens, record.output_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert record.cached_tokens == 0
    assert record.ttft_s is not None and record.tpot_s is not None
    assert 0.015 <= record.ttft_s <= record.e2e_s  # the role chunk came before the gap
    assert record.tpot_s == pytest.approx((record.e2e_s - record.ttft_s) / 3, abs=0.2)  # three gaps between four words


@in_loop
async def test_completions_are_served_alike():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d]) as router:
        streamed = await ask(router.url, {"model": "m", "prompt": "Once", "stream": True}, path=COMPLETIONS)
        whole = await ask(router.url, {"model": "m", "prompt": "Once"}, path=COMPLETIONS)
        await router.settle()
    assert (streamed.text, whole.text) == ("one two three four",) * 2
    assert streamed.body == relayed(d, False)
    assert streamed.route == whole.route == (TRANSFER, "first_turn")
    assert [record.outcome for record in router.records] == [Outcome.COMPLETED] * 2
    assert [body["max_tokens"] for body in p.bodies] == [1, 1]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("chat", {"n": 2}),
        ("chat", {"prompt_logprobs": 0}),
        ("chat", {"use_beam_search": True}),
        ("completions", {"echo": True}),
        ("completions", {"prompt": ["one", "two"]}),
        ("completions", {"prompt": [[1, 2], [3]]}),
    ],
)
@in_loop
async def test_what_a_transferred_prompt_cannot_give_is_served_by_d_alone(path: str, more: dict):
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d], pin_x=0.0) as router:
        if path == "chat":
            answer = await ask(router.url, chat("hello", **more))
        else:
            answer = await ask(router.url, {"model": "m", "prompt": "Once", **more}, path=COMPLETIONS)
    assert (answer.status, answer.route) == (200, (LOCAL, Reason.LOCAL_ONLY.value))
    assert (p.calls, d.calls) == (0, 1)
    assert "kv_transfer_params" not in d.bodies[0]


@in_loop
async def test_replicas_serve_their_conversations_themselves():
    engines = [FakeEngine("R0"), FakeEngine("R1")]
    async with installation(replica=engines) as router:
        answer = await ask(router.url, chat("hello"))
        for at in range(3):
            answer = await ask(router.url, chat("hello", answer.text, f"more {at}"))
    assert answer.route == (LOCAL, Reason.REPLICA.value)
    assert sorted(engine.calls for engine in engines) == [0, 4]


@in_loop
async def test_the_rest_of_the_face():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d]) as router:
        models, health, ready = [await get(router.url + path) for path in ("/v1/models", "/health", "/ready")]
        nowhere = await get(router.url + "/v1/embeddings")
        wrong = await ask(router.url, {}, path="/health")
        got = await get(router.url + "/v1/chat/completions")
    assert models.json == {"object": "list", "data": [{"id": "D0"}]}
    assert (health.status, ready.status, ready.json) == (200, 200, {"ready": True, "reason": "", "topology": "1P_1D"})
    assert [answer.status for answer in (nowhere, wrong, got)] == [404, 405, 405]
    assert (wrong.headers["allow"], got.headers["allow"]) == ("GET", "POST")
    for answer in (wrong, got):
        assert answer.error["type"] == "invalid_request_error"
        assert sorted(answer.error) == ["code", "message", "param", "type"]


@in_loop
async def test_a_body_with_tools_and_unicode_reaches_both_engines_unchanged():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    text = (
        '{ "model":"m", "messages" : [ {"role":"user",\n"content":"\\u00e9 \\ud83d\\ude42 é" } ],'
        ' "temperature": 0.70, "seed":12345678901234567890123, "top_p":1.0,\t"stream":true}'
    )
    async with installation([p], [d]) as router:
        assert (await ask(router.url, text.encode())).status == 200
    for raw in (p.raw_bodies[0], d.raw_bodies[0]):
        for kept in (b'[ {"role":"user",\n"content":"\\u00e9 \\ud83d\\ude42 \xc3\xa9" } ]', b":0.70", b":1.0,"):
            assert kept in raw
        assert b":12345678901234567890123" in raw
    assert json.loads(d.raw_bodies[0])["stream"] is True
    assert json.loads(p.raw_bodies[0])["stream"] is False
