"""Reading a stream on the side: whatever the reads, the same bytes and the same measurements."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.sse import MAX_FRAME_BYTES, MAX_TEXT_BYTES, Meter

USAGE = {"prompt_tokens": 40, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 32}}


def event(value: object, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(value).encode() + end


def choice(end: bytes = b"\n\n", reason: str | None = None, **delta: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}, end)


DONE = b"data: [DONE]\n\n"
USAGE_ONLY = event({"choices": [], "usage": USAGE})


@dataclass(frozen=True)
class Seen:
    """All that a meter measures."""

    out: bytes
    chunks: int
    usage: object
    finish_reason: str | None
    done: bool
    errored: bool
    silent: bool
    text: tuple[str, ...] | None


def read(stream: bytes, cuts: list[int] | None = None, drop_usage: bool = True) -> Seen:
    """Feed a stream cut at those places."""
    meter = Meter(drop_usage)
    places = [0, *sorted({cut % (len(stream) + 1) for cut in cuts or []}), len(stream)]
    out = b"".join(meter.feed(stream[a:b]) for a, b in pairwise(places) if a < b)
    out += meter.finish()
    usage = (
        None
        if meter.usage is None
        else (meter.usage.prompt_tokens, meter.usage.completion_tokens, meter.usage.cached_tokens)
    )
    text = None if meter.text is None else tuple(meter.text)
    return Seen(out, meter.chunks, usage, meter.finish_reason, meter.done, meter.errored, meter.silent, text)


# -- any reads ---------------------------------------------------------------------------------------------------------

ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\n\n\n"])
FRAMES = st.one_of(
    st.builds(lambda end, text: choice(end, content=text), ENDS, st.text(max_size=8)),
    st.builds(lambda end, text: choice(end, reasoning_content=text), ENDS, st.text(max_size=3)),
    st.builds(lambda end: choice(end, role="assistant", content=""), ENDS),
    st.builds(lambda end: choice(end, reason="stop"), ENDS),
    st.builds(lambda end: event({"choices": [], "usage": USAGE}, end), ENDS),
    st.builds(lambda end: event({"choices": [{"text": "t"}], "usage": USAGE}, end), ENDS),
    st.builds(lambda end: event({"error": {"message": "x", "code": 500}}, end), ENDS),
    st.builds(lambda end: b"data: [DONE]" + end, ENDS),
    st.builds(lambda end, text: b": " + text + end, ENDS, st.binary(max_size=5)),
    st.builds(lambda end: b"event: x\ndata: {\ndata: }" + end, ENDS),
    st.builds(lambda text: text, st.binary(max_size=6)),
    st.just(b'data: {"choices"'),
)


@given(frames=st.lists(FRAMES, max_size=8), cuts=st.lists(st.integers(0, 10**6), max_size=12), drop=st.booleans())
def test_any_split_of_a_stream_into_reads_gives_the_same_bytes_and_measurements(
    frames: list[bytes], cuts: list[int], drop: bool
):
    stream = b"".join(frames)
    whole = read(stream, drop_usage=drop)
    assert read(stream, cuts, drop) == whole
    assert read(stream, list(range(len(stream))), drop) == whole
    if not drop:
        assert whole.out == stream


@given(
    frames=st.lists(
        st.one_of(
            st.builds(lambda end, text: choice(end, content=text), ENDS.filter(lambda end: len(end) != 3), st.text()),
            st.builds(lambda text: b": " + text.replace(b"\n", b"") + b"\n\n", st.binary(max_size=9)),
            st.just(USAGE_ONLY),
        )
    )
)
def test_nothing_but_the_usage_chunk_is_dropped(frames: list[bytes]):
    assert read(b"".join(frames)).out == b"".join(frame for frame in frames if frame != USAGE_ONLY)


# -- what counts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "chunks"),
    [
        ({"role": "assistant"}, 0),
        ({"role": "assistant", "content": ""}, 0),
        ({"role": "assistant", "content": None, "tool_calls": None, "reasoning": None}, 0),
        ({"content": "", "tool_calls": []}, 0),
        ({"refusal": None, "function_call": None}, 0),
        ({"content": " "}, 1),
        ({"reasoning": "hm"}, 1),
        ({"reasoning_content": "hm"}, 1),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, 1),
        ({"content": "a", "reasoning": "b"}, 1),
    ],
)
def test_content_reasoning_and_tool_calls_are_content_and_a_role_is_not(delta: dict, chunks: int):
    assert read(choice(**delta)).chunks == chunks
    assert read(choice(**delta)).silent is (chunks == 0)


def test_text_of_completions_is_content():
    seen = read(event({"choices": [{"text": ""}]}) + event({"choices": [{"text": "a"}, {"text": "b"}]}))
    assert (seen.chunks, seen.text) == (2, ("a", "b"))


def test_a_whole_stream_is_measured():
    stream = choice(role="assistant", content="") + choice(content="a") + choice(content="b")
    seen = read(stream + choice(reason="length") + USAGE_ONLY + DONE)
    assert seen == Seen(
        out=stream + choice(reason="length") + DONE,
        chunks=2,
        usage=(40, 7, 32),
        finish_reason="length",
        done=True,
        errored=False,
        silent=False,
        text=("a", "b"),
    )


def test_usage_that_the_client_asked_for_stays():
    stream = choice(content="a") + USAGE_ONLY + DONE
    assert read(stream, drop_usage=False).out == stream
    assert read(stream, drop_usage=False).usage == (40, 7, 32)


@pytest.mark.parametrize("drop", [True, False])
def test_continuous_usage_is_read_and_stays(drop: bool):
    first = event({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    second = event({"choices": [{"delta": {"content": "b"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
    seen = read(first + second + DONE, drop_usage=drop)
    assert (seen.out, seen.usage) == (first + second + DONE, (9, 2, None))


@pytest.mark.parametrize(
    "details", [None, {}, {"cached_tokens": None}, {"audio_tokens": 1, "more": {"of": ["it"]}}, {"x": "y"}]
)
def test_usage_with_other_details_is_usage(details: object):
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": details, "queue_s": 0.5}
    seen = read(event({"choices": [], "usage": usage}) + DONE)
    assert (seen.out, seen.usage) == (DONE, (5, 2, None))


@pytest.mark.parametrize(
    "value",
    [
        {"error": {"message": "dead", "type": "InternalServerError", "code": 500}},
        {"error": "dead"},
        {"object": "error", "message": "dead", "code": 500},
        {"choices": [], "error": {"deep": [[[1]]]}},
    ],
)
def test_an_error_event_is_an_error_and_stays(value: object):
    seen = read(choice(content="a") + event(value) + DONE)
    assert seen.errored and seen.done
    assert seen.out == choice(content="a") + event(value) + DONE


@pytest.mark.parametrize("value", [{"error": None, "choices": []}, {"object": "chat.completion.chunk", "choices": []}])
def test_no_error_is_no_error(value: object):
    assert not read(event(value)).errored


def test_lines_that_are_no_data_are_passed_on_and_not_read():
    stream = b": ping\n\nevent: message\nid: 7\n" + choice(content="a") + b"retry: 3\n\n"
    seen = read(stream + DONE)
    assert (seen.out, seen.chunks, seen.done) == (stream + DONE, 1, True)


def test_fields_after_the_data_are_not_part_of_it():
    assert read(choice(b"\nid: 7\n\n", content="a")).chunks == 1
    assert read(b"data: [DONE]\nid: 8\n\n").done


def test_data_without_a_space_and_in_several_lines_is_read():
    assert read(b'data:{"choices":[{"delta":{"content":"a"}}]}\n\n').chunks == 1
    assert read(b'data: {"choices":\ndata: [{"delta":{"content":"a"}}]}\n\n').chunks == 1


def test_bytes_that_are_nothing_to_read_are_passed_on():
    stream = b"data: {broken\n\ndata: \xff\xfe\x00\n\ndata: [1]\n\ndata: " + b"[" * 5000 + b"\n\n"
    seen = read(stream + DONE)
    assert (seen.out, seen.chunks, seen.done) == (stream + DONE, 0, True)


def test_the_last_frame_may_lack_its_blank_line():
    for tail in (b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n"):
        seen = read(choice(content="a") + tail)
        assert (seen.out, seen.done) == (choice(content="a") + tail, True)


def test_half_a_frame_does_not_go_out_before_its_end():
    meter = Meter(drop_usage=False)
    assert meter.feed(b"data: {") == b""
    assert meter.feed(b"}\n") == b""
    assert meter.feed(b"\nda") == b"data: {}\n\n"


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", [True, False])
def test_a_frame_without_an_end_is_given_up(drop: bool):
    meter = Meter(drop)
    piece = b"x" * (MAX_FRAME_BYTES // 8)
    for _ in range(8):
        assert meter.feed(piece) == b""
    with pytest.raises(ValueError, match="no end"):
        meter.feed(piece)


def test_a_very_long_answer_is_measured_and_not_kept():
    meter = Meter(drop_usage=True)
    word = "y" * 1000
    frame = choice(content=word)
    for _ in range(MAX_TEXT_BYTES // 1000 + 2):
        meter.feed(frame)
    assert meter.text is None
    assert meter.chunks == MAX_TEXT_BYTES // 1000 + 2
