"""What is fuzzed: functions of bytes that raise if something does not hold. Hypothesis runs them in the suite
(`test_targets.py`), atheris by `make fuzz`.

Each takes its choices from the first bytes and its text from the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from router.body import OURS, Api, ClientRequest, check_passed_on, decode_body, parse, parse_answer, prefill_body
from router.doors import BadKeys, Doors, forwarded, read_keys
from router.engine_routes import may_pass, steers
from router.errors import RequestError
from router.metrics import exemplar_of
from router.recognition import Recogniser, Recognition, tenant_of
from router.sse import Meter
from router.stamps import date_s
from slos.problem import SpecError
from slos.spec import load_slos
from trimtab.settings_file import parse_settings

PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_host": "10.0.0.1"}


def _split(data: bytes, count: int) -> tuple[bytes, bytes]:
    return data[:count].ljust(count, b"\0"), data[count:]


def _hold(true: bool) -> None:
    assert true


# -- the stream meter --------------------------------------------------------------------------------------------------


def _run(stream: bytes, places: list[int], drop: bool) -> tuple[bytes, tuple[Any, ...]]:
    meter = Meter(drop)
    out = b"".join(meter.feed(stream[a:b]) for a, b in pairwise(places) if a < b) + meter.finish()
    usage = None if meter.usage is None else (meter.usage.prompt_tokens, meter.usage.completion_tokens)
    text = None if meter.text is None else tuple(meter.text)
    return out, (meter.chunks, usage, meter.finish_reason, meter.done, meter.errored, meter.silent, text)


def sse(data: bytes) -> None:
    """However the stream is cut, the same bytes go on and the same is measured; none is changed or lost but whole
    frames with the usage that only the router asked for."""
    choices, stream = _split(data, 9)
    cuts = sorted({int.from_bytes(choices[at : at + 2], "big") % (len(stream) + 1) for at in range(1, 9, 2)})
    whole, kept = [0, len(stream)], _run(stream, [0, len(stream)], False)
    assert kept[0] == stream
    assert _run(stream, [0, *cuts, len(stream)], False) == kept
    dropped = _run(stream, whole, True)
    assert _run(stream, [0, *cuts, len(stream)], True) == dropped
    assert _run(stream, list(range(len(stream) + 1)), True) == dropped
    assert dropped[1] == kept[1]
    frames, at = [], 0
    for boundary in re.finditer(rb"\n\r?\n", stream):
        frames.append(stream[at : boundary.end()])
        at = boundary.end()
    frames.append(stream[at:])
    assert dropped[0] == b"".join(frame for frame in frames if frame and _run(frame, [0, len(frame)], True)[0])


# -- the bodies --------------------------------------------------------------------------------------------------------

_AROUND = (
    (b"", b""),
    (b'{"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"x",', b"}"),
    (b'{"model":"m","prompt":"x","messages":[', b"]}"),
    (b'{"model":"m","messages":[{"role":"user"}],"prompt":"x","stream":true,"stream_options":', b"}"),
    (b'{"model":"m","messages":[{"role":"user"}],"prompt":', b"}"),
)


_NAMES = (
    *("model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "best_of"),
    *("echo", "prompt_logprobs", "use_beam_search", "conversation_id", "tool_choice", "tools", "prompt_embeds"),
    *("vllm_xargs", "extra_args", "sampling_params", "min_tokens", "logprobs", "response_format", "ignore_eos", "x"),
    *("kv_transfer_params", "k\\u0076_transfer_params", "remote_host", "\\ud83d\\ude42", "\\ud83d", "", "a\\u0000b"),
)
_VALUES = (
    *("null", "true", "false", "0", "1", "2", "-1", "1.0", "1.5", "1e2", "1e400", "-0.0", "9" * 25, "1" + "0" * 400),
    *('""', '"m"', '"\\ud83d\\ude42"', '"\\ud83d"', '"\\u0000"', '"auto"', '"none"', '"required"', "[]", "{}", "[1,2]"),
    *('["a","b"]', "[[1],[2]]", '[{"role":"user","content":"x"}]', '[{"role":"assistant","content":null}]'),
    *('{"include_usage":true}', '{"include_usage":false,"continuous_usage_stats":true}', '{"kv_transfer_params":{}}'),
    *('{"extra_args":{"remote_host":"h"}}', '[{"role":1}]', '[{"role":"user","content":[{"type":"text","text":"x"}]}]'),
    *("nul", "[1,]", "{1:2}", '"\\x"', "01", "+1", ".5", "NaN", "Infinity", "\ttrue ", "[[[[[[[[1]]]]]]]]"),
)


def _composed(data: bytes) -> bytes:
    """An object of fields that mean something, by pairs of bytes; a byte of 255 puts the next one in as it is."""
    parts = [b'"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"x"']
    for name, value in zip(data[::2], data[1::2], strict=False):
        if name == 255:
            parts[-1] += bytes([value])
        else:
            parts.append(f'"{_NAMES[name % len(_NAMES)]}":{_VALUES[value % len(_VALUES)]}'.encode())
    return b"{" + b",".join(parts) + b"}"


def _raw(body: bytes) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}


def body(data: bytes) -> None:
    """A body is refused, or both bodies made of it are the client's, value by value, less and plus what is declared."""
    choices, text = _split(data, 2)
    if choices[0] & 0x80:
        before, text, after = b"", _composed(text), b""
    else:
        before, after = _AROUND[choices[0] % len(_AROUND)]
    api = Api.CHAT if choices[1] & 1 else Api.COMPLETIONS
    text = before + text + after
    params = PARAMS if choices[1] & 2 else None
    with suppress(RequestError):
        check_passed_on(text)
    parse_answer(text)
    try:
        request = parse(api, text)
    except RequestError as error:
        _hold(error.status == 400)
        return
    _check_decode(request, text, decode_body(request, params), params)
    _check_prefill(request, text, prefill_body(request, params), params)


def _check_decode(request: ClientRequest, theirs: bytes, ours: bytes, params: dict[str, Any] | None) -> None:
    given, made = _raw(theirs), _raw(ours)
    handed = made.pop("kv_transfer_params", None)
    assert (handed is None) is (params is None) and (handed is None or json.loads(handed) == params)
    given.pop("conversation_id", None)
    if request.stream and not request.wants_usage:
        options = _raw(made.pop("stream_options"))
        assert options.pop("include_usage") == b"true"
        before = given.pop("stream_options", b"null")
        asked = {} if before == b"null" else _raw(before)
        for name in ("include_usage", "continuous_usage_stats"):
            asked.pop(name, None)
        assert options == asked
    assert made == given
    _check_as_engines_read(ours, params)


def _check_prefill(request: ClientRequest, theirs: bytes, ours: bytes, params: dict[str, Any] | None) -> None:
    given, made = _raw(theirs), _raw(ours)
    assert (made.pop("stream"), made.pop("max_tokens"), made.pop("ignore_eos")) == (b"false", b"1", b"true")
    if request.api is Api.CHAT:
        assert made.pop("max_completion_tokens") == b"1"
    handed = made.pop("kv_transfer_params", None)
    assert (handed is None) is (params is None)
    assert all(given[name] == value for name, value in made.items())
    assert not {"stream_options", "min_tokens", "n", "logprobs", "response_format", "conversation_id"} & set(made)
    _check_as_engines_read(ours, params)


def _check_as_engines_read(ours: bytes, params: dict[str, Any] | None) -> None:
    """Engines read JSON with another parser: nothing of a client's may look to them like a hand-over."""
    try:
        seen = json.loads(ours)
    except (ValueError, RecursionError):
        return  # an engine refuses it too
    assert seen.get("kv_transfer_params") == params
    assert not (OURS - {"kv_transfer_params"}) & set(seen)
    for inner in ("vllm_xargs", "extra_args", "sampling_params"):
        if isinstance(seen.get(inner), dict):
            assert not OURS & set(seen[inner])


# -- files -------------------------------------------------------------------------------------------------------------


def slo_file(data: bytes) -> None:
    """Text is a declaration or has problems with places; nothing else comes of it."""
    with suppress(SpecError):
        load_slos(data.decode("utf-8", "replace"), "f")


def settings(data: bytes) -> None:
    """The same of trimtab.yaml, and of what its values come to."""
    try:
        found = parse_settings(data.decode("utf-8", "replace"), "f", Path("/nowhere"))
    except SpecError as error:
        _hold(all(problem.line >= 1 and problem.column >= 1 for problem in error.problems))
        return
    assert all(isinstance(told, str) for told in found.conflicts())
    with suppress(ValueError):
        found.checked()


def key_file(data: bytes) -> None:
    """Keys that are read let in who holds them, and nobody else."""
    try:
        keys = read_keys(data.decode("utf-8", "replace"), "f")
    except BadKeys as error:
        _hold("f: " in str(error))
        return
    try:
        doors = Doors(keys, b"s" * 32)
    except BadKeys as error:
        _hold("have a key in common" in str(error))
        return
    for _, key in keys:
        assert doors.caller({b"authorization": b"Bearer " + key.encode()}).owner is not None
    with suppress(RequestError):
        doors.caller({b"authorization": b"Bearer " + b"x".join(key.encode() for _, key in keys) + b"x"})
        raise AssertionError("let in")


# -- headers -----------------------------------------------------------------------------------------------------------


def headers(data: bytes) -> None:
    """Whatever a client sends as headers: who it is, which conversation, what goes on, which route."""
    values = data.split(b"\n")
    names = (b"authorization", b"x-session-id", b"x-request-id", b"traceparent", b"tracestate", b"content-type")
    sent = dict(zip(names, values, strict=False))
    caller = Doors().caller(sent).owner
    tenant = tenant_of(b"k" * 32, caller)
    assert caller is None or len(caller) < 4 or caller not in tenant
    passed = forwarded(sent, ("traceparent", "tracestate", "authorization"))
    assert all(value.isascii() and value.isprintable() and value for value in passed.values())
    text = data.decode("latin-1")
    date_s(text)
    found = exemplar_of(text)
    assert found is None or len(found["request_id"]) <= 128
    with suppress(RequestError):
        if may_pass(text):
            assert not {"", ".", ".."} & set(text.split("/")[1:]) and not steers(text)
    for rule in Recognition:
        recogniser = Recogniser(b"k" * 32, rule)
        for _ in range(2):
            seen = recogniser.recognise(tenant, "m", text or None, (), "r")
            recogniser.answered(seen, seen.number or 1, data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "sse": sse,
    "body": body,
    "slo_file": slo_file,
    "settings": settings,
    "key_file": key_file,
    "headers": headers,
}

_CHUNK = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"prompt_tokens_details":null}}\r\n\r\n'
SEEDS: dict[str, list[bytes]] = {
    "sse": [
        b"\0" * 9 + _CHUNK + _USAGE + b"data: [DONE]\n\n",
        b"\0\0\x20\0\x55\0\x60\0\x81" + b": ping\n\n" + _CHUNK + b"event: x\ndata: {\ndata: }\n\r\n" + _USAGE,
        b"\0" * 9 + b'data: {"error":{"message":"x"}}\n\ndata: {"object":"error"}\n\ndata:[DONE]',
        b"\0" * 9 + b'data: {"choices":[{"text":"t","finish_reason":"stop"}],"usage":{}}\n\n',
        b"\0" * 9 + b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}],"reasoning":"r"}}]}\n\n',
    ],
    "body": [
        b'\0\3{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stream":true}',
        b'\1\3"tools":[{"type":"function"}],"tool_choice":"required","min_tokens":3,"max_tokens":1e2,"n":1',
        b'\1\1"vllm_xargs":{"a":1},"conversation_id":"c","stream":true,"stream_options":{"include_usage":false}',
        b'\1\2"kv_transfer_params":null,"\\u006bv_transfer_params":{}',
        b'\2\3{"role":"assistant","tool_calls":[{"id":"1"}],"content":null},{"role":"tool","name":"f"}',
        b'\3\3{"include_usage":null,"continuous_usage_stats":true}',
        b'\4\2["a","b"]',
        b"\4\0[[1],[2]]",
        b"\x80\3\3\1\4\x1e\5\x0a\7\5",
        b"\x80\2\x10\x1f\x11\x20\x12\x21\x0d\x15",
    ],
    "slo_file": [
        b"version: 1\nslos:\n  - {name: a, objective: p99(ttft) <= 2s, match: {turn: '>=2'}}\n",
        b"version: 1\nslos:\n  - name: b\n    signal: tpot\n    percent: 99\n    max: 50ms\nalerts: {}\n",
    ],
    "settings": [
        b"version: 1\nlisten: {host: ::1, port: 8000}\nadmin: {port: 9400, token_env: T}\nmodels:\n"
        b"  m: {prefill: ['http://h:1'], decode: ['http://h:2'], aliases: [n], lease: 30s, connector: nixl}\n"
        b"  k: {replica: ['http://h:3'], kv_events: {'http://h:3': {endpoint: 'tcp://h:4', replay: 'tcp://h:5'}}}\n"
        b"router: {forward_headers: [a], passthrough: [/v1/x], api_keys_file: f, idle: 5m}\n",
        b"version: 1\nmodels: {m: {decode: ['http://h:2'], connector: p2p_nccl, connector_addresses: {a: b}}}\n"
        b"control: {law: aimd, price: .4, pin_x: 1, webhook: 'http://u:p@h/x'}\nslos: []\n",
    ],
    "key_file": [b"# c\nweb:k1, web:k2\nk3\n"],
    "headers": [
        b"Bearer k\nsession\nid\n00-ab-cd-01\na=b\napplication/json",
        b"/v1/embeddings",
        b"Wed, 21 Oct 2015 07:28:00 GMT",
    ],
}
