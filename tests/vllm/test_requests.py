"""What chat clients send, at both routes of a later turn on real engines: each kind of request is answered as an engine
answers it alone, or refused as it refuses it, and no engine is worse for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from tests.router_http.client import COMPLETIONS, Answer, ask

from .router import alone, ask_at, cached_tokens, opening, total, usage

TOKENS = 24
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}},
}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
GUIDED = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA}}

KINDS: Mapping[str, Mapping[str, Any]] = {
    "streamed": {},
    "not streamed": {"stream": False},
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": TOKENS},
    "stop": {"stop": ["e", "a", "t"]},
    "seed": {"temperature": 1.0, "seed": 7},
    "min_tokens": {"min_tokens": 4},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "logprobs, not streamed": {"logprobs": True, "top_logprobs": 3, "stream": False},
    "two answers": {"n": 2, "seed": 3, "temperature": 1.0},
    "two answers, not streamed": {"n": 2, "stream": False, "seed": 3, "temperature": 1.0},
    "tools": {"tools": [TOOL], "stream": False},
    "tools, streamed": {"tools": [TOOL]},
    "guided JSON": {"response_format": GUIDED, "max_tokens": 64, "stream": False},
    "guided JSON, streamed": {"response_format": GUIDED, "max_tokens": 64},
}
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "a negative temperature": {"temperature": -1},
    "an unknown response format": {"response_format": {"type": "poem"}},
    "more logprobs than allowed": {"logprobs": True, "top_logprobs": 1000},
    "a longer answer than the context": {"max_tokens": 1_000_000},
    "a tool choice without tools": {"tool_choice": "required"},
    "two greedy answers": {"n": 2},
    "a schema that is none": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}}},
}


def essence(answer: Answer) -> dict[int, dict[str, Any]]:
    """What an answer says, by choice: less ids, times and how it was cut into events."""
    choices: dict[int, dict[str, Any]] = {}
    objects = answer.events if answer.done else [answer.json]
    for choice in (choice for event in objects for choice in event.get("choices", ())):
        part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        known = choices.setdefault(choice["index"], {"text": "", "finish": None, "tools": "", "logprobs": []})
        known["text"] += part.get("content") or ""
        known["finish"] = choice.get("finish_reason") or known["finish"]
        for call in part.get("tool_calls") or ():
            known["tools"] += call["function"].get("name") or ""
            known["tools"] += call["function"].get("arguments") or ""
        tokens = (choice.get("logprobs") or {}).get("content") or ()
        known["logprobs"] += [(token["token"], len(token["top_logprobs"])) for token in tokens]
    return choices


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_turn_of_each_kind_is_what_the_engine_says_alone(kind, x, engines, router):
    session, text = uuid4().hex, opening()
    more = {"max_tokens": TOKENS, **KINDS[kind]}
    tools = {"tools": more["tools"]} if "tools" in more else {}  # before the text, so offered from the first turn on
    first = router.ask(text, session=session, max_tokens=TOKENS, **tools)
    assert first.status == 200 and first.done
    turns = (text, first.text, "and what of kind " + kind)
    second = router.ask(*turns, session=session, **more)
    right = alone(engines["P0"], *turns, **more)
    assert second.status == 200, second.body[:300]
    assert essence(second) == essence(right)
    assert usage(second)["completion_tokens"] == usage(right)["completion_tokens"]
    expected = "append_local" if x or KINDS[kind].get("n") else "prefill_transfer"
    assert second.route[0] == expected
    if x:
        assert cached_tokens(second) > 0


@pytest.fixture(scope="module")
def begun(x, router) -> tuple[str, str, str]:
    """A conversation after its first turn: session, question, answer."""
    session, text = uuid4().hex, opening()
    return session, text, router.ask(text, session=session, max_tokens=TOKENS).text


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_engine_refuses_the_client_is_told_in_the_engines_words(kind, begun, engines, router):
    session, *texts = begun
    texts += ["and now something that cannot be"]
    more = {"max_tokens": TOKENS, "stream": False, **REFUSED[kind]}
    refused = router.ask(*texts, session=session, **more)
    right = ask_at(engines["D0"].url, *texts, **more)
    assert 400 <= right.status < 500
    assert refused.status == right.status
    assert refused.error["message"] == right.error["message"]


def test_after_all_that_the_conversation_goes_on_and_all_engines_live(begun, engines, router):
    session, *texts = begun
    answer = router.ask(*texts, "go on", session=session, max_tokens=TOKENS)
    assert answer.status == 200 and answer.headers["x-trimtab-turn"] == "2"
    assert answer.text == alone(engines["P0"], *texts, "go on", max_tokens=TOKENS).text
    assert all(engine.healthy() for engine in engines)


@pytest.mark.parametrize("stream", [True, False])
def test_completions_are_answered_as_by_the_engine_alone(stream, x, engines, router):
    session = uuid4().hex

    def complete(url: str, prompt: str, **more: Any) -> Answer:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": stream, **more}
        if stream:
            body["stream_options"] = {"include_usage": True}
        headers = {"Content-Type": "application/json", "X-Session-ID": session}
        return asyncio.run(ask(url, body, path=COMPLETIONS, headers=headers))

    text = opening()
    for number in (1, 2):
        answer = complete(router.url, text)
        right = complete(engines["P0"].url, text, cache_salt=uuid4().hex)
        assert answer.status == 200
        assert essence(answer) == essence(right)
        assert answer.route[0] == ("append_local" if x and number > 1 else "prefill_transfer")
        text += answer.text + " and on"


def test_guided_json_is_json(x, router):
    session, text = uuid4().hex, opening()
    first = router.ask(text, session=session, max_tokens=TOKENS)
    answer = router.ask(
        *(text, first.text, "well?"), session=session, stream=False, response_format=GUIDED, max_tokens=200
    )
    assert answer.status == 200
    if answer.json["choices"][0]["finish_reason"] == "stop":  # random weights may fill it with white space
        assert set(json.loads(answer.text)) == {"ok"}
    else:
        assert answer.text.lstrip()[:1] in ("{", "")


def test_what_the_router_refuses_itself_no_engine_is_asked(engines, router):
    asked = total(engines, "request_success_total")
    refused = router.ask(opening(), session=uuid4().hex, max_tokens=0)
    assert refused.status == 400 and "max_tokens" in refused.error["message"]
    assert total(engines, "request_success_total") == asked
