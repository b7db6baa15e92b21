"""API keys, header allow-list, and which routes of engines clients may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.doors import NEVER_FORWARDED, BadKeys, Caller, Doors, check_forwarded, forwarded, read_keys
from router.engine_routes import may_be_passed, may_pass, steers
from router.errors import Code, RequestError


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + key.encode()}


def test_keys_are_read_with_and_without_names():
    text = "# for the apps\nweb:k1, web:k2\n\n  k3\nbatch:sk-a:b\n"
    with pytest.raises(BadKeys):
        read_keys(text, "f")  # "batch:sk-a" is no name
    assert read_keys(text.replace("sk-a:b", "sk-ab=="), "f") == [
        ("web", "k1"),
        ("web", "k2"),
        ("", "k3"),
        ("batch", "sk-ab=="),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no key"),
        ("# only a comment\n , ,\n", "holds no key"),
        ("a:k\n-b:hunter2", "line 2: a name"),
        ("a:hunter2 x", "line 1: a key"),
        ("a:", "line 1: a key"),
        ("a:hunter\u00e9", "line 1: a key"),
    ],
)
def test_keys_that_cannot_be_read_are_told_by_line_and_never_shown(text, words):
    with pytest.raises(BadKeys, match=words) as told:
        read_keys(text, "keys.txt")
    assert "keys.txt" in str(told.value) and "hunter" not in str(told.value)


@given(st.text(max_size=60))
def test_no_text_of_keys_brings_it_down(text):
    try:
        keys = read_keys(text, "f")
        doors = Doors(keys)
    except BadKeys:
        return
    assert all(doors.caller(bearer(key)).owner for _, key in keys)


def test_a_named_key_is_known_by_its_name_and_others_by_themselves():
    doors = Doors([("web", "old"), ("web", "new"), ("", "lone")])
    assert doors.caller(bearer("old")) == doors.caller(bearer("new")) != doors.caller(bearer("lone"))
    with pytest.raises(RequestError) as refused:
        doors.caller(bearer("name\0web"))
    assert refused.value.code is Code.UNAUTHORIZED
    doors.replace([("web", "new")])
    with pytest.raises(RequestError):
        doors.caller(bearer("old"))


def test_without_keys_all_may_come_in_and_are_still_told_apart():
    doors = Doors()
    assert doors.caller({}) == Caller()
    assert doors.caller(bearer("a")) == Caller("a") != doors.caller(bearer("b"))


def test_the_name_of_a_tenant_is_told_and_no_other_is():
    doors = Doors([("assistants", "a"), ("web", "w"), ("", "lone")], tenants=["assistants", "batch"])
    assert [doors.caller(bearer(key)).tenant for key in ("a", "w", "lone")] == ["assistants", "", ""]
    doors.replace([("batch", "a")])
    assert doors.caller(bearer("a")).tenant == "batch"
    assert Doors(tenants=["a"]).caller(bearer("a")).tenant == ""


def test_a_key_has_one_name():
    doors = Doors([("web", "hunter2"), ("", "hunter2")], tenants=["web"])
    assert doors.caller(bearer("hunter2")).tenant == "web"
    with pytest.raises(BadKeys, match="web and batch have a key in common") as told:
        doors.replace([("web", "hunter2"), ("batch", "hunter2")])
    assert "hunter" not in str(told.value)
    assert doors.caller(bearer("hunter2")).tenant == "web", "what was in force stays"


def test_no_key_is_kept_as_it_is_or_printed():
    doors = Doors([("", "hunter2")])
    assert "hunter2" not in repr(vars(doors)) + repr(doors.caller(bearer("hunter2")))


def test_only_allowed_headers_go_on_and_only_if_they_are_plain():
    headers = {
        b"traceparent": b"00-ab-cd-01",
        b"tracestate": b"a=\x01",
        b"cookie": b"secret",
        b"authorization": b"Bearer k",
        b"x-team": "é".encode(),
        b"x-long": b"a" * 2000,
        b"x-empty": b"",
    }
    assert forwarded(headers, ("traceparent", "tracestate", "x-team", "x-long", "x-empty", "x-absent")) == {
        "traceparent": "00-ab-cd-01"
    }
    assert forwarded(headers, ()) == {}
    assert forwarded(headers, ("authorization",)) == {"authorization": "Bearer k"}


@pytest.mark.parametrize("name", sorted(NEVER_FORWARDED))
def test_what_belongs_to_one_connection_cannot_be_allowed(name):
    with pytest.raises(ValueError, match="leave it out"):
        check_forwarded([name.title()])


@pytest.mark.parametrize(
    ("path", "passes"),
    [
        ("/v1/embeddings", True),
        ("/v1/responses/resp_1/cancel", True),
        ("/v1/models/meta-llama/Llama-3.1-8B", True),
        ("/tokenize", True),
        ("/v1/load_lora_adapter", None),
        ("/v1/unload_lora_adapter", None),
        ("/v1/Load-LoRA-Adapter", None),
        ("/v1/sleep", None),
        ("/v1/x/collective_rpc", None),
        ("/v1/update_weights", None),
        ("/sleep", False),
        ("/reset_prefix_cache", False),
        ("/collective_rpc", False),
        ("/metrics", False),
        ("/version", False),
        ("/inference/v1/generate", False),
        ("/v1/../sleep", False),
        ("/v1/./embeddings", False),
        ("/v1//embeddings", False),
        ("/v1/embeddings/", False),
        ("/v1/%2e%2e/sleep", False),
        ("/v1/x?y", False),
        ("/v1/a b", False),
        ("/v1/\u00e9", False),
        ("/V1/embeddings", False),
        ("//other.example/v1/x", False),
        ("/v1/" + "x" * 300, False),
    ],
)
def test_which_routes_of_engines_are_for_clients(path, passes):
    if passes is None:
        with pytest.raises(RequestError) as refused:
            may_pass(path)
        assert refused.value.code is Code.FORBIDDEN
        assert may_pass(path, [path])
    else:
        assert may_pass(path) is passes


def test_an_operator_opens_exact_paths_only():
    assert may_pass("/metrics", ["/metrics"])
    assert not may_pass("/metrics/x", ["/metrics"])
    assert may_be_passed("/v1/load_lora_adapter") and not may_be_passed("http://h/v1")


@given(st.text(max_size=40))
def test_what_may_pass_cannot_leave_the_engine(path):
    try:
        passes = may_pass(path)
    except RequestError:
        return
    if passes:
        assert path.isascii() and not {"", ".", ".."} & set(path.split("/")[1:]) and not steers(path)
