"""What is refused, with vLLM's status and body."""

from __future__ import annotations

import pytest

from tests.emulator_http.harness import MODEL, fleet, in_loop
from tests.emulator_http.test_streams import records, without_nulls

HELLO = [{"role": "user", "content": "Hello"}]


def error(answer) -> dict:
    found = answer.body["error"]
    assert list(found) == ["message", "type", "param", "code"] and found["code"] == answer.status
    return found


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        (b"{not json", "Bad Request", "body.1"),
        (b"", "Bad Request", "body"),
        (b"[]", "Bad Request", "body"),
        ({"model": MODEL}, "Bad Request", "body.messages"),
        ({"messages": "Hello"}, "Bad Request", "body.messages"),
        ({"messages": []}, "BadRequestError", None),
        ({"messages": [{"content": "Hello"}]}, "Bad Request", "body.messages.0.role"),
        ({"messages": HELLO, "max_tokens": "many"}, "Bad Request", "body.max_tokens"),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, "BadRequestError", "stream_options"),
        ({"messages": HELLO, "tools": []}, "BadRequestError", "tools"),
        ({"messages": HELLO, "tool_choice": "required"}, "BadRequestError", "tool_choice"),
        ({"messages": HELLO, "max_tokens": 0}, "BadRequestError", "max_tokens"),
        ({"messages": HELLO, "max_tokens": 1, "min_tokens": 5}, "BadRequestError", None),
        ({"messages": HELLO, "n": 0}, "BadRequestError", None),
        ({"messages": HELLO, "temperature": -1}, "BadRequestError", "temperature"),
        ({"messages": HELLO, "stop": [""]}, "BadRequestError", None),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "BadRequestError", "logprobs"),
        ({"messages": HELLO, "max_tokens": 2000}, "BadRequestError", "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 4000}]}, "BadRequestError", "input_tokens"),
    ],
)
@in_loop
async def test_a_bad_chat_body_is_a_400_that_names_the_field(body, kind, param):
    async with fleet("1D", max_model_len=1000) as client:
        answer = await client.post("D0", "/v1/chat/completions", body)
        assert client.running.fleet.events.pending == 0
    assert answer.status == 400 and answer.headers["Content-Type"] == "application/json"
    assert (error(answer)["type"], error(answer)["param"]) == (kind, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["", "b"]}, None),
        ({"prompt": [-1]}, "body.prompt.0"),
        ({"prompt": {"a": 1}}, "body.prompt"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
@in_loop
async def test_a_bad_completions_body_is_a_400_that_names_the_field(body, param):
    async with fleet("1D") as client:
        answer = await client.post("D0", "/v1/completions", body)
    assert answer.status == 400 and error(answer)["param"] == param


@in_loop
async def test_two_choices_of_a_greedy_sampling_are_refused_in_vllms_words():
    real = records()["n2:P"]
    async with fleet("1D") as client:
        answer = await client.chat("D0", "Hello", n=2, temperature=0)
    assert (answer.status, without_nulls(answer.body)) == (real["status"], real["resp"])


@in_loop
async def test_another_model_an_unknown_path_and_a_wrong_method():
    async with fleet("1D") as client:
        model = await client.post("D0", "/v1/chat/completions", {"model": "gpt-9", "messages": HELLO})
        path = await client.get("D0", "/v2/chat")
        method = await client.get("D0", "/v1/chat/completions")
        form = await client.post("D0", "/v1/completions", b"a=b", {"Content-Type": "text/plain"})
    said = f"The model `gpt-9` does not exist. Valid aliases: {MODEL}."
    assert model.status == 404 and error(model)["message"] == said
    assert (path.status, path.body) == (404, {"detail": "Not Found"})
    assert (method.status, method.body) == (405, {"detail": "Method Not Allowed"})
    assert method.headers["Allow"] == "POST"
    assert form.status == 400 and "application/json" in error(form)["message"]


@in_loop
async def test_a_key_is_asked_for_under_v1_only():
    async with fleet("1D", api_key="secret") as client:
        none = await client.chat("D0", "Hello", max_tokens=1)
        wrong = await client.chat("D0", "Hello", max_tokens=1, headers={"Authorization": "Bearer guess"})
        right = await client.chat("D0", "Hello", max_tokens=1, headers={"Authorization": "Bearer secret"})
        assert (await client.get("D0", "/health")).status == 200
        assert (await client.get("D0", "/metrics")).status == 200
    assert (none.status, none.body) == (401, {"error": "Unauthorized"})
    assert (wrong.status, right.status) == (401, 200)


@in_loop
async def test_a_body_of_megabytes_is_read_and_one_beyond_all_bounds_is_refused(monkeypatch):
    async with fleet("1D") as client:
        large = await client.chat("D0", "Hello", max_tokens=2, metadata={"note": "x" * 3_000_000})
        monkeypatch.setattr("emulator.server.node.MAX_BODY_BYTES", 1000)
        too_large = await client.chat("D0", "x" * 2000, max_tokens=2)
    assert (large.status, too_large.status) == (200, 413)


@in_loop
async def test_models_health_ping_and_version():
    async with fleet("1P_1D", model="my-model", max_model_len=4096) as client:
        models = await client.get("P0", "/v1/models")
        health = await client.get("D0", "/health")
        version = await client.get("D0", "/version")
        ping = await client.post("D0", "/ping", b"")
    card = models.body["data"][0]
    assert (models.body["object"], card["id"], card["max_model_len"]) == ("list", "my-model", 4096)
    assert (card["object"], card["owned_by"], card["parent"]) == ("model", "vllm", None)
    assert (health.status, health.text, ping.status) == (200, "", 200)
    assert version.body == {"version": "0.32.0"}
