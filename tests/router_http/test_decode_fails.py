"""D fails: another D while the client has got nothing, else an honest end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.dispatch import MAX_OPENING_BYTES
from router.turn import Reason
from router.upstream import Timeouts
from slos.objective import Outcome

from .client import Answer, ask, chat, in_loop, until
from .fake_engine import FakeEngine
from .faults import (
    DONE,
    ERROR,
    ROLE,
    STOP,
    USAGE,
    Fault,
    answers,
    breaks,
    content,
    hangs,
    only,
    streams,
)
from .installation import installation


def limits(case: str) -> Timeouts:
    """Short ones where silence is the fault; else long ones, so that a busy machine is no fault."""
    return Timeouts(2.0, 0.15, 0.15, 0.15) if "silence" in case else Timeouts(5.0, 10.0, 10.0, 10.0)


KV_LOAD_FAILED = {"index": 0, "delta": {}, "finish_reason": "error"}

BEFORE_ANYTHING: dict[str, Fault] = {
    "500": answers(500),
    "503": answers(503),
    "429": answers(429),
    "reset": breaks(),
    "silence": hangs(),
    "nothing": answers(200, b"", "text/event-stream"),
    "silence after the headers": streams(then="hangs"),
    "reset after the headers": streams(then="breaks"),
    "role, then reset": streams(ROLE, then="breaks"),
    "role, then silence": streams(ROLE, then="hangs"),
    "role, then the end": streams(ROLE),
    "role, then an error": streams(ROLE, ERROR, DONE),
    "an error": streams(ERROR, DONE),
    "an error of an older engine": streams({"object": "error", "message": "dead", "code": 500}, DONE),
    "finish_reason error": streams(ROLE, {"choices": [KV_LOAD_FAILED]}, DONE),
    "content and an error at once": streams(
        b'data: {"choices": [{"delta": {"content": "one "}}]}\n\ndata: {"error": {"message": "dead"}}\n\n', DONE
    ),
    "nothing but the end": streams(DONE),
    "no event stream": answers(200, b'{"choices": []}'),
}
WHOLE: dict[str, Fault] = {
    "500": answers(500),
    "reset": breaks(),
    "silence": hangs(),
    "nothing": answers(200, b""),
    "no JSON": answers(200, b"<html>"),
    "no choices": answers(200, {"usage": {"prompt_tokens": 1}}),
    "an error with 200": answers(200, {"error": {"message": "dead"}}),
    "finish_reason error": answers(200, {"choices": [{"message": {"content": None}, "finish_reason": "error"}]}),
}
CASES = [(name, True) for name in BEFORE_ANYTHING] + [(name, False) for name in WHOLE]


def fault_of(case: tuple[str, bool]) -> Fault:
    return (BEFORE_ANYTHING if case[1] else WHOLE)[case[0]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {'streamed' if case[1] else 'whole'}")
@in_loop
async def test_another_d_does_it_while_the_client_has_got_nothing(case: tuple[str, bool]):
    p, bad, good = FakeEngine("P0"), FakeEngine("D0", fault=fault_of(case)), FakeEngine("D1")
    async with installation([p], [bad, good], timeouts=limits(case[0])) as router:
        answer = await ask(router.url, chat("hello", stream=case[1]))
        await router.settle()
    assert (answer.status, answer.text) == (200, "one two three four")
    assert answer.headers["x-trimtab-reason"] == Reason.DECODE_FAILED
    assert (p.calls, bad.calls, good.calls) == (2, 1, 1)  # the prompt is prefilled again: a handle is read once
    if case[1]:
        assert answer.body == b"".join(frame for frame in good.sent if b'"choices": []' not in frame)
    (record,) = router.records
    assert (record.outcome, record.attempts, record.placement.decode) == (Outcome.COMPLETED, 2, "D1")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {'streamed' if case[1] else 'whole'}")
@in_loop
async def test_without_another_d_the_client_gets_its_status_or_ours(case: tuple[str, bool]):
    d = FakeEngine("D0", fault=fault_of(case))
    async with installation([], [d], timeouts=limits(case[0])) as router:
        answer = await ask(router.url, chat("hello", stream=case[1]))
        await router.settle()
    assert d.calls == 1
    silent = "silence" in case[0]
    if case[0].isdigit():
        assert (answer.status, answer.error["message"]) == (int(case[0]), f"D0 says {case[0]}")
    else:
        assert answer.status == (504 if silent else 502)
        assert answer.error["code"] == ("upstream_timeout" if silent else "upstream_error")
        assert answer.error["type"] == "server_error"
    assert router.records[0].outcome is (Outcome.TIMED_OUT if silent else Outcome.FAILED)


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_what_d_says_of_the_clients_request_goes_to_the_client(stream: bool):
    text = b'{"error": {"message": "no such tool",  "code": 400.0}}'
    p, d0, d1 = FakeEngine("P0"), FakeEngine("D0", fault=answers(400, text)), FakeEngine("D1")
    async with installation([p], [d0, d1]) as router:
        answer = await ask(router.url, chat("hello", stream=stream))
        await router.settle()
    assert (answer.status, answer.body) == (400, text)
    assert (d0.calls, d1.calls) == (1, 0)
    assert router.records[0].outcome is Outcome.CLIENT_ERROR


@in_loop
async def test_an_engine_that_refuses_is_no_timeout():
    d0, d1 = FakeEngine("D0"), FakeEngine("D1")
    async with installation([], [d0, d1]) as router:
        await d0.stop()
        await d1.stop()
        answer = await ask(router.url, chat("hello"))
        again = await ask(router.url, chat("hello"))
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert (again.status, again.error["code"]) == (503, "no_node")
    assert [record.outcome for record in router.records] == [Outcome.FAILED]


@in_loop
async def test_the_last_failure_is_told_not_an_earlier_one():
    """P answers 500 and D nothing: P's words would blame the wrong engine."""
    p, d = FakeEngine("P0", fault=answers(500)), FakeEngine("D0", fault=breaks())
    async with installation([p], [d]) as router:
        answer = await ask(router.url, chat("hello"))
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")


@in_loop
async def test_attempts_are_bounded():
    ds = [FakeEngine(f"D{at}", fault=answers(503)) for at in range(6)]
    async with installation([], ds) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
    assert answer.status == 503
    assert sum(d.calls for d in ds) == 4 == router.records[0].attempts


# -- after the first content -------------------------------------------------------------------------------------------

MID_STREAM = {
    "reset": (streams(ROLE, content("one "), content("two"), then="breaks"), Outcome.FAILED, "upstream_broke_off"),
    "silence": (streams(ROLE, content("one "), then="hangs"), Outcome.TIMED_OUT, "upstream_timeout"),
    "the end": (streams(ROLE, content("one ")), Outcome.FAILED, "upstream_broke_off"),
    "half a frame": (
        streams(ROLE, content("one "), b'data: {"choices": [{"del', then="breaks"),
        Outcome.FAILED,
        "upstream_broke_off",
    ),
}


@pytest.mark.parametrize("usage_asked", [False, True])
@pytest.mark.parametrize("how", MID_STREAM)
@in_loop
async def test_a_stream_that_breaks_ends_with_an_error_event_and_without_done(how: str, usage_asked: bool):
    fault, outcome, code = MID_STREAM[how]
    d, other = FakeEngine("D0", fault=only({1}, fault)), FakeEngine("D1")
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage_asked else {}
    async with installation([], [d, other], timeouts=limits(how)) as router:
        asked = asyncio.ensure_future(ask(router.url, chat("hello", **more)))
        await until(lambda: d.calls)
        beside = await ask(router.url, chat("another"))
        broken = await asked
        await router.settle()
        good = await ask(router.url, chat("hello, once more"))
    assert (broken.status, broken.done) == (200, False)
    assert broken.error["code"] == code
    assert broken.text.startswith("one ")
    for answer in (beside, good):
        assert (answer.text, answer.done) == ("one two three four", True)
    assert sorted(record.outcome for record in router.records) == sorted([outcome] + [Outcome.COMPLETED] * 2)


@in_loop
async def test_an_error_event_of_the_engine_is_relayed_and_counts_as_a_failure():
    d = FakeEngine("D0", fault=streams(ROLE, content("one "), 0.05, ERROR, DONE))
    async with installation([], [d]) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
    assert answer.body == b"".join(d.sent)
    assert answer.error["message"] == "engine core died"
    assert [record.outcome for record in router.records] == [Outcome.FAILED]


@in_loop
async def test_a_finish_reason_error_after_content_is_relayed_and_counts_as_a_failure():
    d = FakeEngine("D0", fault=streams(ROLE, content("one "), 0.05, {"choices": [KV_LOAD_FAILED]}, DONE))
    async with installation([], [d]) as router:
        answer = await ask(router.url, chat("hello"), headers={"X-Session-ID": "s"})
        await router.settle()
        (conversation,) = router.core.conversations
        held = router.core.residency.held(router.records[0].placement.decode, conversation.key)
    assert answer.body == b"".join(d.sent)
    assert [record.outcome for record in router.records] == [Outcome.FAILED]
    assert (held, conversation.turns) == (0, 0)


@in_loop
async def test_an_answer_without_content_but_with_a_reason_is_an_answer():
    """EOS first."""
    d = FakeEngine("D0", fault=streams(ROLE, STOP, USAGE, DONE))
    async with installation([], [d]) as router:
        answer = await ask(router.url, chat("hello", stream_options={"include_usage": True}))
        await router.settle()
    assert answer.body == b"".join(d.sent)
    (record,) = router.records
    assert (record.outcome, record.output_tokens, record.ttft_s) == (Outcome.COMPLETED, 2, None)


@in_loop
async def test_the_role_chunk_waits_for_the_content_and_is_no_first_token():
    gate = asyncio.Event()

    async def slow(engine: FakeEngine, request: Any, body: dict) -> Any:
        response = await engine.begin(request)
        await engine.frame(response, ROLE)
        await gate.wait()
        for frame in (content("text"), STOP, USAGE):
            await engine.frame(response, frame)
        await engine.write(response, DONE)
        return response

    d = FakeEngine("D0", fault=slow)
    async with installation([], [d]) as router:
        asked = asyncio.ensure_future(ask(router.url, chat("hello")))
        await until(lambda: d.sent)
        await asyncio.sleep(0.1)
        assert len(router.core.waiting(0.0)) == 1
        gate.set()
        answer = await asked
    assert answer.body == b"".join(frame for frame in d.sent if b'"choices": []' not in frame)
    ttft_s = router.records[0].ttft_s
    assert ttft_s is not None and ttft_s >= 0.1


@in_loop
async def test_a_long_opening_goes_out_without_waiting():
    """Chunks that the router does not know must not be held back for ever."""
    unknown = {"choices": [{"index": 0, "delta": {"audio": "x" * MAX_OPENING_BYTES}}]}
    d = FakeEngine("D0", fault=streams(ROLE, unknown, then="hangs"))
    async with installation([], [d], timeouts=limits("silence")) as router:
        answer = await ask(router.url, chat("hello"))
    assert answer.events[1] == unknown
    assert answer.error["code"] == "upstream_timeout"


@in_loop
async def test_a_stream_in_other_line_ends_and_odd_pieces_is_relayed_as_it_is():
    pieces = [
        b": hello\r\n\r\n",
        b'data: {"choices":[{"delta":{"content":"o',
        b'ne "}}]}\r\n\r',
        b'\ndata: {"choices":[{"delta":{"content":"two"},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":2}}\r\n\r\nda',
        b"ta: [DONE]\r\n\r\n",
    ]
    d = FakeEngine("D0", fault=streams(*pieces))
    async with installation([], [d]) as router:
        answer = await ask(router.url, chat("hello"))
        await router.settle()
    whole = b"".join(pieces)
    start, end = whole.index(b'data: {"choices":[],'), whole.index(b"data: [DONE]")
    assert answer.body == whole[:start] + whole[end:]
    assert (router.records[0].prompt_tokens, router.records[0].output_tokens) == (40, 2)


@in_loop
async def test_a_node_that_stalls_does_not_hold_up_the_others():
    p, bad, good = FakeEngine("P0"), FakeEngine("D0"), FakeEngine("D1")
    async with installation([p], [bad, good], pin_x=1.0) as router:
        first = [await ask(router.url, chat(f"hello {at}")) for at in range(4)]
        by_node = {str(record.placement.decode): at for at, record in enumerate(router.records)}
        bad.fault = hangs()
        stuck = asyncio.ensure_future(
            ask(router.url, chat(f"hello {by_node['D0']}", first[by_node["D0"]].text, "more"))
        )
        await until(lambda: bad.running)
        at = by_node["D1"]
        beside: list[Answer] = []
        for turn in range(5):
            beside.append(await ask(router.url, chat(f"hello {at}", first[at].text, f"more {turn}")))
        assert not stuck.done()
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
        await router.settle()
    assert {answer.status for answer in beside} == {200}
