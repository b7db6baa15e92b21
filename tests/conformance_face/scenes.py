"""What takes several requests: text cut by a stop string, two turns, hand-overs and their faults, clients that leave.

Each scene is a coroutine that yields records: replies as they came, normalised, and facts that only several replies
together show ("the text is that of one node alone").
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from .cases import CHAT, TEXT, chat, ids, text
from .client import Engine, Reply
from .faults import FAULTS, Fault, Params

START: Params = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PROMPT = 640
"""Tokens of a prompt that is handed over: whole blocks of 16, 32 or 128, so that its counts are equal everywhere."""

Record = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A P and a D, and what a scene has to know of them."""

    p: Engine
    d: Engine
    model: str
    lease_s: float
    nonce: int

    def prompt(self, number: int) -> list[int]:
        """A prompt that no other scene of no other run has."""
        return ids(PROMPT, self.nonce + 101 * number)

    async def prefill(self, number: int, **more: object) -> Reply:
        """The P leg of a raw prompt."""
        body = text(self.model, self.prompt(number), max_tokens=1, kv_transfer_params=START)
        return await self.p.send(TEXT, {**body, **more}, exact=True)

    async def decode(self, number: int, params: Params | None, within_s: float = 60.0, **more: object) -> Reply:
        """The D leg of the same prompt."""
        body = text(self.model, self.prompt(number), max_tokens=8, kv_transfer_params=params)
        return await self.d.send(TEXT, {**body, **more}, exact=True, within_s=within_s)

    async def flush(self) -> None:
        """An idle vLLM counts what a transfer came to with its next step: make it take one."""
        await self.d.send(TEXT, text(self.model, [70], max_tokens=2), exact=True)
        await self.d.idle()

    async def alone(self, number: int, **more: object) -> Reply:
        """The same prompt on P alone, as an ordinary request, not from its cache."""
        body = text(self.model, self.prompt(number), max_tokens=8, cache_salt=f"alone {self.nonce}", **more)
        return await self.p.send(TEXT, body, exact=True)


async def stop_strings(pair: Pair) -> AsyncIterator[Record]:
    """The stop string is a piece of what the model says, so it must end there."""
    full = (await pair.d.send(CHAT, chat(pair.model, "Go on", max_tokens=40))).said
    new = [n for n in range(12, len(full) - 6) if full[n : n + 3].isascii() and full.index(full[n : n + 3]) == n]
    at = new[0]
    stop = full[at : at + 3]
    more: dict[str, dict[str, Any]] = {
        "whole": {},
        "included": {"include_stop_str_in_output": True},
        "streamed": {"stream": True, "stream_options": {"include_usage": True}},
        "second of two": {"stop": ["\u0001never", stop]},
    }
    for name, extra in more.items():
        reply = await pair.d.send(CHAT, chat(pair.model, "Go on", **{"max_tokens": 40, "stop": stop, **extra}))
        if "events" in reply.record:
            last = reply.record["events"][-3]["choices"][0]
            said = last["stop_reason"] == stop
            yield f"stop: {name}", {"finish": last["finish_reason"], "reason is the string": said}
            continue
        choice = reply.body["choices"][0]
        told = full[: at + 3] if name == "included" else full[:at]
        facts = {
            "finish": choice["finish_reason"],
            "reason is the string": choice["stop_reason"] == stop,
            "text is cut there": reply.said == told,
        }
        yield f"stop: {name}", facts


async def two_turns(pair: Pair) -> AsyncIterator[Record]:
    """What usage says of the cache on the second turn of a conversation, and on the second sending of a prompt."""
    first_words = f"Conversation {pair.nonce}. " + "Tell me of the sea. " * 30
    first = await pair.d.send(CHAT, chat(pair.model, first_words, max_tokens=64))
    said = first.said
    second = await pair.d.send(CHAT, chat(pair.model, first_words, said, "And of the shore?", max_tokens=8))
    yield "two turns: first", first.record
    yield "two turns: second", second.record
    beyond = second.cached_tokens - first.usage["prompt_tokens"]
    yield "two turns: the answer is found again", {"more cached than the first prompt": beyond > 0}
    edited = await pair.d.send(CHAT, chat(pair.model, first_words, "No.", "And of the shore?", max_tokens=8))
    yield "two turns: an edited answer is not", {"fewer cached": edited.cached_tokens < second.cached_tokens}
    salted = await pair.d.send(CHAT, chat(pair.model, first_words, cache_salt=f"new {pair.nonce}"))
    yield "two turns: another salt", {"cached": salted.cached_tokens}
    for name in ("first", "again"):
        raw = await pair.d.send(TEXT, text(pair.model, pair.prompt(1)), exact=True)
        yield f"a raw prompt {name}", {"cached": raw.cached_tokens}
    plain = text(pair.model, f"Raw {pair.nonce}. " + "Word after word. " * 30, max_tokens=64)
    told = await pair.d.send(TEXT, plain)
    more = await pair.d.send(TEXT, {**plain, "prompt": plain["prompt"] + told.said + " And then?", "max_tokens": 4})
    found = more.cached_tokens > told.usage["prompt_tokens"]
    yield "a raw prompt's answer", {"found again": found}


async def tokens_there_and_back(pair: Pair) -> AsyncIterator[Record]:
    """/tokenize and /detokenize agree with each other and with usage."""
    words = "A trim tab, moved a little, moves the rudder."
    ids_of = (await pair.d.send("/tokenize", {"model": pair.model, "prompt": words})).body
    back = (await pair.d.send("/detokenize", {"model": pair.model, "tokens": ids_of.get("tokens", [])})).body
    yield "tokens: there and back", {"same text": back.get("prompt") == words}
    counted = len(ids_of.get("tokens", ())) == ids_of.get("count")
    raw = await pair.d.send(TEXT, text(pair.model, words, max_tokens=1))
    agrees = raw.usage["prompt_tokens"] == ids_of.get("count")
    yield "tokens: counted alike", {"as many as count": counted, "as usage says": agrees}
    asked = {"model": pair.model, "messages": [{"role": "user", "content": words}]}
    count = (await pair.d.send("/tokenize", asked)).body.get("count")
    talk = await pair.d.send(CHAT, chat(pair.model, words, max_tokens=1))
    yield "tokens: of a chat", {"as usage says": talk.usage["prompt_tokens"] == count}


async def hand_over(pair: Pair) -> AsyncIterator[Record]:
    """The good case on both routes, streamed and not, and what P answers where it gives no handle."""
    await pair.flush()
    before = await pair.d.numbers()
    at_p = await pair.prefill(2)
    yield "hand-over: P", at_p.record
    at_d = await pair.decode(2, at_p.handle)
    yield "hand-over: D", at_d.record
    after = await pair.d.numbers()
    alone = await pair.alone(2)
    moved: dict[str, Any] = {
        f"by {source}": _grown(before, after, f'prompt_tokens_by_source_total{{source="{source}"}}')
        for source in ("external_kv_transfer", "local_compute", "local_cache_hit")
    }
    moved["transfers"] = _grown(before, after, "nixl_xfer_time_seconds_count")
    yield "hand-over: proof", {"same text as P alone": at_d.said == alone.said, **moved}
    again = await pair.prefill(2)
    yield "hand-over: the prompt again at P, read", {"cached": again.cached_tokens}
    twice = await pair.prefill(3), await pair.prefill(3)
    yield "hand-over: the prompt again at P, not read yet", {"cached": twice[1].cached_tokens}
    streamed = await pair.decode(3, twice[1].handle, stream=True, stream_options={"include_usage": True})
    yield "hand-over: D streams", streamed.record
    warm = await pair.decode(3, twice[0].handle)
    yield "hand-over: D has the prompt already", warm.record
    words = f"Chat {pair.nonce}. " + "Tell me of the sea. " * 30
    body = chat(pair.model, words, max_tokens=1, max_completion_tokens=1, kv_transfer_params=START)
    chat_p = await pair.p.send(CHAT, body)
    yield "hand-over: chat P", chat_p.record
    chat_d = await pair.d.send(CHAT, chat(pair.model, words, max_tokens=8, kv_transfer_params=chat_p.handle))
    yield "hand-over: chat D", chat_d.record
    yield "hand-over: P in a stream", (await pair.prefill(4, stream=True)).record
    yield "hand-over: P asked for five tokens", (await pair.prefill(5, max_tokens=5)).record
    yield "hand-over: P at D's door", (await pair.decode(6, START, max_tokens=1)).record
    handle = (await pair.prefill(7)).handle
    yield "hand-over: D refuses the body", (await pair.decode(7, handle, max_tokens=0)).record
    handle = (await pair.prefill(8)).handle
    yield "hand-over: D at P's door", (await _decode_at(pair.p, pair, 8, handle)).record


async def faults(pair: Pair) -> AsyncIterator[Record]:
    """Each spoilt object that D survives, then whether it still answers."""
    for number, fault in enumerate(FAULTS):
        if fault.kills:
            continue
        bad = fault.spoil((await pair.prefill(20 + number)).handle)
        await pair.flush()
        before = await pair.d.numbers()
        reply = await pair.decode(20 + number, bad)
        after = await pair.d.numbers()
        alone = await pair.alone(20 + number)
        facts: dict[str, Any] = {**reply.record, **_effect(before, after)}
        if reply.status == 200:
            facts["same text as P alone"] = reply.said == alone.said
        yield f"fault: {fault}", facts
        streamed = await pair.decode(
            20 + number, fault.spoil((await pair.prefill(20 + number)).handle), stream=True, cache_salt="stream"
        )
        yield f"fault, streamed: {fault}", streamed.record
        later = await pair.decode(20 + number, None)
        yield f"fault, then plain: {fault}", {"status": later.status, "same text as P alone": later.said == alone.said}


async def deadly(pair: Pair, fault: Fault, patience_s: float = 8.0) -> dict[str, Any]:
    """One object that kills D: what its client gets, and whether D lives after that client has left."""
    bad = fault.spoil((await pair.prefill(60)).handle)
    try:
        reply = await pair.decode(60, bad, within_s=patience_s)
        said: dict[str, Any] = {"status": reply.status, "body": reply.record.get("body")}
    except TimeoutError:
        said = {"status": "no answer"}
    except aiohttp.ClientError:
        said = {"status": "connection lost"}
    for _ in range(100):
        try:
            lives = (await pair.d.send("/health")).status == 200
        except aiohttp.ClientError:
            return {**said, "lives": False}
        if not lives:
            return {**said, "lives": False}
        await asyncio.sleep(0.1)
    return {**said, "lives": True}


async def late_and_twice(pair: Pair) -> AsyncIterator[Record]:
    """A good object, sent again, and sent when the lease is over."""
    handle = (await pair.prefill(40)).handle
    once = await pair.decode(40, handle)
    again = await pair.decode(40, handle, cache_salt="twice")
    yield "the same parameters twice", {**again.record, "same text": again.said == once.said}
    handle = (await pair.prefill(41)).handle
    alone = await pair.alone(41)
    before = await pair.p.numbers()
    await asyncio.sleep(pair.lease_s * 1.4 + 0.2)
    after = await pair.p.numbers()
    late = await pair.decode(41, handle)
    facts = {
        **late.record,
        "expired at P": _grown(before, after, "nixl_num_kv_expired_reqs_total") > 0,
        "same text as P alone": late.said == alone.said,
    }
    yield "after the lease", facts


async def leavers(pair: Pair) -> AsyncIterator[Record]:
    """Clients that close their connection: the gauges fall back, and nothing counts them."""
    await pair.flush()
    before = await pair.d.numbers()
    long = text(pair.model, pair.prompt(50), max_tokens=4000)
    ways: dict[str, tuple[dict[str, Any], int]] = {"in a stream": ({**long, "stream": True}, 3)}
    for name, (body, events) in ways.items():
        read = await pair.d.leave(TEXT, body, events=events)
        idle = await pair.d.idle()
        numbers = await pair.d.numbers()
        facts = {
            "events read": read,
            "running": numbers["num_requests_running"] if idle else "still busy",
            "waiting": numbers["num_requests_waiting"],
            "KV in use": numbers["kv_cache_usage_perc"],
            "counted as aborted": _grown(before, numbers, 'request_success_total{finished_reason="abort"}'),
            "counted at all": _grown(before, numbers, "e2e_request_latency_seconds_count"),
        }
        yield f"leaves {name}", facts
    task = asyncio.create_task(pair.d.send(TEXT, long, exact=True))
    for _ in range(400):
        if (await pair.d.numbers())["num_requests_running"] >= 1:
            break
        await asyncio.sleep(0.01)
    busy = await pair.d.numbers()
    load = (await pair.d.send("/load")).record
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    idle = await pair.d.idle()
    after = await pair.d.numbers()
    whole: dict[str, Any] = {
        "running before": busy["num_requests_running"],
        "load before": load,
        "running": after["num_requests_running"] if idle else "still busy",
        "counted as aborted": _grown(before, after, 'request_success_total{finished_reason="abort"}'),
    }
    yield "leaves before a whole answer", whole


SCENES = (stop_strings, two_turns, tokens_there_and_back, hand_over, faults, late_and_twice, leavers)


async def _decode_at(engine: Engine, pair: Pair, number: int, params: Params) -> Reply:
    body = text(pair.model, pair.prompt(number), max_tokens=8, kv_transfer_params=params)
    return await engine.send(TEXT, body, exact=True)


def _grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def _effect(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """What D's counters say became of a hand-over."""
    return {
        "a failed transfer": _grown(before, after, "nixl_num_failed_transfers_total") > 0,
        "fetched": _grown(before, after, 'prompt_tokens_by_source_total{source="external_kv_transfer"}'),
        "computed": _grown(before, after, 'prompt_tokens_by_source_total{source="local_compute"}'),
        "planned loads": _grown(before, after, "external_prefix_cache_hits_total"),
        "ended in error": _grown(before, after, 'request_success_total{finished_reason="error"}'),
    }
