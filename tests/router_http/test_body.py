"""The two bodies that are made of the client's: D's has every value as it came, P's asks for one token."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.body import (
    MAX_COUNT,
    OURS,
    Api,
    ClientRequest,
    assistant_identity,
    decode_body,
    parse,
    parse_answer,
    prefill_body,
)
from router.errors import Code, RequestError

HANDLE = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_engine_id": "P0"}
USER = '{"role":"user","content":"hi"}'


def raw(body: bytes) -> dict[str, bytes]:
    """Top-level values as they are written."""
    return {name: bytes(value) for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}


def chat(more: str = "", messages: str = f"[{USER}]") -> ClientRequest:
    return parse(Api.CHAT, f'{{"model":"m","messages":{messages}{more}}}'.encode())


def refusal(body: bytes, api: Api = Api.CHAT) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(api, body)
    assert caught.value.code is Code.BAD_REQUEST
    return caught.value


# -- D's body ----------------------------------------------------------------------------------------------------------

ODD = b"""{ "model" : "m",
  "messages":\t[ {"role": "user", "content": "\\u00e9\\ud83d\\ude42 \\/ \xc3\xa9 \\u0000"} ,
 {"role":"assistant" , "content":null}],
  "temperature": 1.0, "top_p":1e-3 , "seed": 123456789012345678901234567890, "min_p": -0.0, "penalty": 1E+2,
  "stop" : [ "\\n" , "\\u0061" ], "n": 1,
  "extra": { "a" : 1, "a" : 2.50, "b":[ ] }, "user" : "\\"quoted\\"", "flag":null }"""


def test_every_value_keeps_its_bytes():
    theirs, ours = raw(ODD), raw(decode_body(parse(Api.CHAT, ODD), HANDLE))
    assert json.loads(ours.pop("kv_transfer_params")) == HANDLE
    assert ours == theirs
    assert ours["extra"] == b'{ "a" : 1, "a" : 2.50, "b":[ ] }'
    assert ours["seed"] == b"123456789012345678901234567890"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KNOWN = {
    *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "best_of", "echo"),
    *("prompt_logprobs", "use_beam_search", "conversation_id", "prompt", "prompt_embeds"),
    *("vllm_xargs", "extra_args", "sampling_params"),
    *OURS,
}


@given(
    extra=st.dictionaries(st.text(max_size=8).filter(lambda name: name not in KNOWN), VALUES, max_size=5),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
    stream=st.booleans(),
    handed=st.booleans(),
)
def test_whatever_the_fields_and_however_they_are_written_they_keep_their_bytes(
    extra: dict[str, Any], indent: int | None, ascii_only: bool, stream: bool, handed: bool
):
    value = {"model": "m", "messages": [{"role": "user", "content": "é"}], "stream": stream, **extra}
    theirs = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    ours = raw(decode_body(parse(Api.CHAT, theirs), HANDLE if handed else None))
    assert (ours.pop("kv_transfer_params", None) is not None) is handed
    assert (ours.pop("stream_options", None) is not None) is stream
    assert ours == raw(theirs)


def test_a_key_that_comes_twice_counts_as_its_last():
    request = parse(Api.CHAT, b'{"model":"a","messages":[],"max_tokens":1,"model":"b","messages":[%b]}' % USER.encode())
    assert request.model == "b"
    assert raw(decode_body(request, None)) == {"model": b'"b"', "messages": b"[%b]" % USER.encode(), "max_tokens": b"1"}


@pytest.mark.parametrize(
    ("more", "expected", "wants"),
    [
        (',"stream":true', b'{"include_usage":true}', False),
        (',"stream":true,"stream_options":null', b'{"include_usage":true}', False),
        (',"stream":true,"stream_options":{}', b'{"include_usage":true}', False),
        (',"stream":true,"stream_options":{ "include_usage" : true }', b'{ "include_usage" : true }', True),
        (',"stream":true,"stream_options":{"include_usage":false,"x": 1.0}', b'{"include_usage":true,"x":1.0}', False),
        (',"stream":true,"stream_options":{"include_usage":null}', b'{"include_usage":true}', False),
        (',"stream":true,"stream_options":{"continuous_usage_stats":true}', b'{"include_usage":true}', False),
        (
            ',"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}',
            b'{"include_usage":true,"continuous_usage_stats":true}',
            True,
        ),
        (',"stream":false', None, False),
        ("", None, False),
        (',"stream_options":{"include_usage":true}', b'{"include_usage":true}', True),
    ],
)
def test_usage_is_asked_for_beside_what_the_client_asked(more: str, expected: bytes | None, wants: bool):
    request = chat(more)
    assert request.wants_usage is wants
    assert raw(decode_body(request, None)).get("stream_options") == expected


def test_the_conversation_id_is_ours_and_goes_to_no_engine():
    request = chat(',"conversation_id":"c1"')
    assert request.conversation_id == "c1"
    assert "conversation_id" not in raw(decode_body(request, None))
    assert "conversation_id" not in raw(prefill_body(request, HANDLE))


# -- P's body ----------------------------------------------------------------------------------------------------------


def test_p_is_asked_for_one_token_and_for_nothing_that_needs_more():
    more = (
        ',"stream":true,"stream_options":{"include_usage":true},"max_tokens":500,"max_completion_tokens":400,'
        '"min_tokens":20,"n":1,"best_of":1,"logprobs":true,"top_logprobs":5,"response_format":{"type":"json_object"},'
        '"structured_outputs":{"regex":"a+"},"guided_json":{},"guided_regex":"a","guided_choice":["a"],'
        '"guided_grammar":"g","guided_decoding_backend":"x","guided_whitespace_pattern":"x","structural_tag":{},'
        '"logprob_token_ids":[1],"thinking_token_budget":9,"stream_interval":2,"repetition_detection":{},'
        '"temperature": 0.70,"tools":[ {"type":"function"} ],"chat_template_kwargs":{ "x":1 },'
        '"cache_salt":"s","stop":["a"],"stop_token_ids":[7],"ignore_eos":false,"seed":7'
    )
    body = raw(prefill_body(chat(more), HANDLE))
    assert json.loads(body.pop("kv_transfer_params")) == HANDLE
    assert body == {
        "model": b'"m"',
        "messages": f"[{USER}]".encode(),
        "stream": b"false",
        "max_tokens": b"1",
        "max_completion_tokens": b"1",
        "ignore_eos": b"true",
        "temperature": b"0.70",
        "tools": b'[ {"type":"function"} ]',
        "chat_template_kwargs": b'{ "x":1 }',
        "cache_salt": b'"s"',
        "seed": b"7",
    }


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ('"auto"', True),
        ('"none"', True),
        ("null", True),
        ('"required"', False),
        ('{"type":"function","function":{"name":"f"}}', False),
    ],
)
def test_a_forced_tool_call_is_not_asked_of_p(choice: str, kept: bool):
    assert ("tool_choice" in raw(prefill_body(chat(f',"tool_choice":{choice}'), HANDLE))) is kept
    assert raw(decode_body(chat(f',"tool_choice":{choice}'), None))["tool_choice"] == choice.encode()


@pytest.mark.parametrize("more", ["", ',"max_tokens":9', ',"max_completion_tokens":9', ',"max_tokens":null'])
def test_whichever_max_field_the_client_uses_p_gets_one(more: str):
    body = raw(prefill_body(chat(more), HANDLE))
    assert (body["max_tokens"], body["max_completion_tokens"]) == (b"1", b"1")


def test_ps_copy_of_a_completion_has_the_one_max_field_that_there_is():
    body = raw(prefill_body(parse(Api.COMPLETIONS, b'{"model":"m","prompt":[1,2, 3],"echo":false}'), HANDLE))
    assert body["prompt"] == b"[1,2, 3]"
    assert body["max_tokens"] == b"1" and "max_completion_tokens" not in body


# -- what the router reads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", None),
        (',"max_tokens":5', 5),
        (',"max_completion_tokens":7', 7),
        (',"max_tokens":5,"max_completion_tokens":7', 7),
        (',"max_tokens":null,"max_completion_tokens":null', None),
        (',"max_tokens":5.0', 5),
        (',"max_tokens":5e2', 500),
        (',"max_tokens":99999999999999999999', MAX_COUNT),
        (',"max_tokens":1' + "0" * 400, MAX_COUNT),
        (',"max_tokens":1e308', MAX_COUNT),
    ],
)
def test_the_newer_max_field_counts(more: str, expected: int | None):
    assert chat(more).max_tokens == expected


@pytest.mark.parametrize(
    ("api", "more", "local"),
    [
        (Api.CHAT, "", False),
        (Api.CHAT, ',"n":1', False),
        (Api.CHAT, ',"n":null,"prompt_logprobs":null,"echo":false,"use_beam_search":false', False),
        (Api.CHAT, ',"n":2', True),
        (Api.COMPLETIONS, ',"prompt":"x","best_of":2', True),
        (Api.CHAT, ',"echo":true', True),
        (Api.CHAT, ',"prompt_logprobs":0', True),
        (Api.CHAT, ',"use_beam_search":true', True),
        (Api.COMPLETIONS, ',"prompt":"x"', False),
        (Api.COMPLETIONS, ',"prompt":["x"]', False),
        (Api.COMPLETIONS, ',"prompt":[1,2,3]', False),
        (Api.COMPLETIONS, ',"prompt":[[1,2]]', False),
        (Api.COMPLETIONS, ',"prompt": ["x" , "y"]', True),
        (Api.COMPLETIONS, ',"prompt":[[1],[2]]', True),
        (Api.COMPLETIONS, ',"prompt":[]', False),
        (Api.COMPLETIONS, ',"prompt":"x","prompt_embeds":"AA=="', True),
        (Api.COMPLETIONS, ',"prompt":"x","echo":true', True),
    ],
)
def test_what_one_handle_cannot_serve_stays_local(api: Api, more: str, local: bool):
    messages = f',"messages":[{USER}]' if api is Api.CHAT else ""
    assert parse(api, f'{{"model":"m"{messages}{more}}}'.encode()).local_only is local


def test_messages_are_known_by_what_they_say_not_by_how_they_are_written():
    one = chat(
        messages='[{"role":"user","content":"h\\u00e9"},{"role":"assistant","content":"a","id":"7","refusal":null}]'
    )
    two = chat(messages='[ {"content": "hé","role":"user" }, {"audio":null,"content":"a","role":"assistant"} ]')
    other = chat(messages='[{"role":"user","content":"he"},{"role":"assistant","content":"a"}]')
    assert [m.canonical for m in one.messages] == [m.canonical for m in two.messages]
    assert one.messages[0].canonical != other.messages[0].canonical
    assert assistant_identity("a") == one.messages[1].canonical


def test_tool_calls_are_part_of_what_a_message_says():
    def calls(name: str) -> bytes:
        call = f'{{"id":"1","type":"function","function":{{"name":"{name}","arguments":"{{}}"}}}}'
        return chat(messages=f'[{{"role":"assistant","content":null,"tool_calls":[{call}]}}]').messages[0].canonical

    assert calls("f") != calls("g")
    assert calls("f") == calls("f")


# -- refusals ----------------------------------------------------------------------------------------------------------

SECRET = "a-secret"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "no JSON object"),
        (b"\xff\xfe", "no JSON object"),
        (b"a-secret", "no JSON object"),
        (b'{"a-secret":1', "no JSON object"),
        (b'{"model":"m"} a-secret', "no JSON object"),
        (b'["a-secret"]', "object"),
        (b'"a-secret"', "object"),
        (b"null", "object"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        (b'{"x":' + b'{"y":' * 100_000 + b"1" + b"}" * 100_001, "deep"),
        (b'{"messages":["a-secret"]}', "model"),
        (b'{"model":"","messages":["a-secret"]}', "model"),
        (b'{"model":["a-secret"]}', "model"),
        (b'{"model":"a-secret"}', "messages"),
        (b'{"model":"m","messages":"a-secret"}', "messages"),
        (b'{"model":"m","messages":["a-secret"]}', "messages"),
        (b'{"model":"m","messages":[]}', "messages"),
        (b'{"model":"m","messages":{"a-secret":1}}', "messages"),
        (b'{"model":"m","messages":[{"content":"a-secret"}]}', "messages[0] has no role"),
        (b'{"model":"m","messages":[{"role":7,"content":"a-secret"}]}', "messages[0] has no role"),
        (b'{"model":"m","messages":[{"role":"user","content":"a-secret\xff"}]}', "no UTF-8"),
        (b'{"model":"m","messages":[{"role":"user"}],"x":"a-secret\xff"}', "no UTF-8"),
        (b'{"model":"m","messages":[{"role":"user"}],"stream_options":{"a-secret\\ud800":1}}', "no JSON object"),
        (b'{"model":"m","messages":[{"role":"user"}],"vllm_xargs":{"a-secret\\ud800":1}}', "no JSON object"),
        (b'{"model":"m","max_tokens":"a-secret"}', "max_tokens"),
        (b'{"model":"m","max_tokens":1.5}', "max_tokens"),
        (b'{"model":"m","n":1e400}', "out of range"),
        (b'{"model":"m","max_tokens":true}', "max_tokens"),
        (b'{"model":"m","max_completion_tokens":["a-secret"]}', "max_completion_tokens"),
        (b'{"model":"m","stream":"a-secret"}', "stream"),
        (b'{"model":"m","stream_options":"a-secret"}', "stream_options"),
        (b'{"model":"m","stream_options":{"include_usage":"a-secret"}}', "include_usage"),
        (b'{"model":"m","n":"a-secret"}', "$.n"),
        (b'{"model":"m","conversation_id":{"a-secret":1}}', "conversation_id"),
    ],
)
def test_a_bad_body_is_refused_by_field_and_never_quoted(body: bytes, named: str):
    error = refusal(body)
    assert named in error.message
    assert SECRET not in error.message
    assert error.status == 400


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1])
def test_no_tokens_are_no_request(field: str, value: int):
    error = refusal(f'{{"model":"m","messages":[{USER}],"{field}":{value}}}'.encode())
    assert error.param == field


@pytest.mark.parametrize("name", sorted(OURS))
@pytest.mark.parametrize("value", ["{}", "null", '{"do_remote_prefill":true,"remote_block_ids":[[1]]}', '"10.0.0.1"'])
def test_a_client_may_not_hand_over_kv(name: str, value: str):
    error = refusal(f'{{"model":"m","messages":[{USER}],"{name}":{value}}}'.encode())
    assert error.param == name


@pytest.mark.parametrize(
    "more",
    [
        '"vllm_xargs":{"kv_transfer_params":"x"}',
        '"vllm_xargs": {"a":1,"\\u006bv_transfer_params":"x"}',
        '"extra_args":{"remote_host":"10.0.0.1"}',
        '"sampling_params":{"extra_args":{"kv_transfer_params":{}}}',
        '"\\u006bv_transfer_params":{}',
        '"kv_transfer_params":{},"kv_transfer_params":null',
    ],
)
def test_nor_by_another_way(more: str):
    refusal(f'{{"model":"m","messages":[{USER}],{more}}}'.encode())


def test_other_arguments_of_engines_are_let_through():
    assert raw(decode_body(chat(',"vllm_xargs":{"a":1},"sampling_params":7'), None))["vllm_xargs"] == b'{"a":1}'


def test_a_completion_needs_a_prompt():
    assert refusal(b'{"model":"m"}', Api.COMPLETIONS).param == "prompt"


@given(st.binary(max_size=60))
def test_no_bytes_bring_the_router_down(body: bytes):
    with pytest.raises(RequestError):
        parse(Api.CHAT, b"{" + body)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_an_answer_is_read_as_far_as_needed():
    answer = parse_answer(
        b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"kv_transfer_params":{"x":[[1]]},'
        b'"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8,"y":{}}}}'
    )
    assert answer is not None and answer.usage is not None
    assert (answer.text, answer.kv_transfer_params) == ("a", {"x": [[1]]})
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (9, 2, 8)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"<html>", b"\xff", b'{"usage":[]}', b'{"kv_transfer_params":[1]}', b"[" * 9999]
)
def test_what_is_no_answer_is_none(body: bytes):
    assert parse_answer(body) is None


@pytest.mark.parametrize("content", [b"null", b'[{"type":"text"}]', b"7"])
def test_an_answer_without_text_has_none(content: bytes):
    answer = parse_answer(b'{"choices":[{"message":{"content":%b}}]}' % content)
    assert answer is not None and answer.text == ""
