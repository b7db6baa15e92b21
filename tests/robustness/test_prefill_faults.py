"""Rows 3, 17, 19, 27, 28, 30: a prefill node that is gone, slow, choosy, or done too early."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.p_down import PrefillDown, PrefillDownPolicy
from router.turn import Reason
from slos.objective import Outcome
from tests.router_http.client import CHAT, COMPLETIONS, ask, in_loop, until
from tests.router_http.test_client_leaves import calling

from .ask import asked, befalls, say, struck
from .conftest import Fleet

FAIL, LOCAL = PrefillDownPolicy(PrefillDown.FAIL), PrefillDownPolicy(PrefillDown.LOCAL, 3)


def kill_all_p(installed: Any) -> None:
    for name in installed.fleet.nodes:
        if name.startswith("P"):
            installed.fleet.kill(name)


@in_loop
async def test_row_3_local_answers_up_to_the_cap_and_then_refuses(quiescent: Fleet):
    async with quiescent("2P_1D", p_down=LOCAL) as installed:
        kill_all_p(installed)
        await installed.router.watch.probe_all()
        await installed.router.watch.probe_all()
        befalls(installed, {"node": "D", "nth": "1-3", "fault": "stall", "for": "500ms"})
        held = [asyncio.ensure_future(say(installed, f"hello {at}")) for at in range(3)]
        await until(lambda: sum(struck(installed)) == 3)
        refused = await say(installed, "one too many")
        assert (refused.status, refused.error["code"]) == (503, "p_unavailable")
        assert int(refused.headers["retry-after"]) > 0
        answers = await asyncio.gather(*held)
        assert {(answer.status, answer.route) for answer in answers} == {(200, ("append_local", "p_unavailable"))}
        assert (await say(installed, "and now?")).status == 200
        metric = installed.router.metric
        assert metric("trimtab_refused_total", code="p_unavailable") == 1


@pytest.mark.parametrize("known", [True, False])
@in_loop
async def test_row_3_fail_refuses_at_once_also_the_turns_that_find_out(quiescent: Fleet, known: bool):
    async with quiescent("2P_1D", p_down=FAIL) as installed:
        assert (await say(installed, "hello")).status == 200
        kill_all_p(installed)
        if known:
            await installed.router.watch.probe_all()
            await installed.router.watch.probe_all()
        begun = asyncio.get_running_loop().time()
        answers = [await say(installed, f"hello {at}", stream=at % 2 == 0) for at in range(4)]
        assert asyncio.get_running_loop().time() - begun < 2.0
        assert {(answer.status, answer.error["code"]) for answer in answers} == {(503, "p_unavailable")}
        await installed.fleet.revive("P0")
        await installed.router.watch.probe_all()
        assert (await say(installed, "hello again")).route[0] == "prefill_transfer"


@in_loop
async def test_row_3_a_fleet_that_has_no_p_at_all_is_not_down(quiescent: Fleet):
    async with quiescent("2D", p_down=FAIL) as installed:
        assert (await say(installed, "hello")).route == ("append_local", "p_unavailable")


@in_loop
async def test_row_17_a_long_prompt_whose_client_left_does_not_hold_up_the_short_one(quiescent: Fleet):
    async with quiescent("1P_1D", speed=1.0) as installed:
        alone_s = (await timed(installed, "short"))[1]
        async with calling(installed.router, asked("word " * 30_000, tokens=2)) as caller:
            await until(lambda: installed.sequences()["P0"])
            caller.leave()
            after_s = (await timed(installed, "short"))[1]
        print(f"alone {alone_s:.3f} s, behind a long one that was cancelled {after_s:.3f} s")
        assert after_s < alone_s + 1.0  # the long one takes several seconds


async def timed(installed: Any, text: str) -> tuple[Any, float]:
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    return await say(installed, text, tokens=2), loop.time() - begun_s


@in_loop
async def test_row_19_what_p_says_of_the_request_reaches_the_client_and_d_is_never_asked(quiescent: Fleet):
    async with quiescent("1P_1D") as installed:
        befalls(
            installed,
            {"node": "P", "fault": "status", "status": "400"},
            {"node": "D", "fault": "stall"},
        )
        answer, took_s = await timed(installed, "hello")
        assert answer.status == 400 and "told to answer 400" in answer.error["message"]
        assert took_s < 2.0 and struck(installed) == [1, 0]


CHOOSY = (
    {"node": "P", "has": "tool_choice", "fault": "status", "status": "500"},
    {"node": "P", "has": "min_tokens", "fault": "status", "status": "400"},
    {"node": "P", "has": "n>1", "fault": "status", "status": "400"},
    {"node": "P", "has": "stream_options", "fault": "status", "status": "400"},
    {"node": "P", "has": "response_format", "fault": "status", "status": "500"},
    {"node": "P", "has": "max_tokens>1", "fault": "status", "status": "400"},
    {"node": "P", "has": "max_completion_tokens>1", "fault": "status", "status": "400"},
)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    "more",
    [
        {"min_tokens": 5},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"response_format": {"type": "json_object"}},
        {"stream_options": {"include_usage": True}},
        {"stop": ["zzzz"], "min_tokens": 2},
    ],
)
@in_loop
async def test_row_27_nothing_that_a_choosy_p_refuses_reaches_it(quiescent: Fleet, more: dict[str, Any], limit: str):
    async with quiescent("1P_1D") as installed:
        befalls(installed, *CHOOSY)
        body = {**asked("hello", tokens=8), **more}
        body[limit] = body.pop("max_tokens")
        del body["ignore_eos"]
        answer = await ask(installed.router.url, body)
        assert answer.status == 200 and answer.done, answer.body
        # "auto" is no forced call, so it may stand in P's copy: then P's refusal is told to D, which decides.
        if more.get("tool_choice") != "auto":
            assert answer.route[0] == "prefill_transfer" and not any(struck(installed))


@pytest.mark.parametrize("more", [{"n": 2}, {"prompt_logprobs": 1}, {"echo": True, "path": "completions"}])
@in_loop
async def test_row_28_what_one_hand_over_cannot_serve_is_local_and_says_so(quiescent: Fleet, more: dict[str, Any]):
    async with quiescent("1P_1D") as installed:
        text = more.pop("path", "") if "path" in more else ""
        body = {**asked("hello", stream="prompt_logprobs" not in more), **more}
        if text:
            body["prompt"] = body.pop("messages")[0]["content"]
        answer = await ask(installed.router.url, body, path=COMPLETIONS if text else CHAT)
        assert answer.status == 200 and answer.route == ("append_local", Reason.LOCAL_ONLY.value)
        assert installed.fleet.fleet.open_leases == 0


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_row_30_a_p_that_ends_at_once_costs_no_answer(quiescent: Fleet, stream: bool):
    async with quiescent("1P_1D") as installed:
        befalls(installed, {"node": "P", "fault": "eos"})
        answer, took_s = await timed(installed, "hello")
        assert answer.status == 200 and answer.text and took_s < 2.0
        assert struck(installed)[0] >= 1
        assert [record.outcome for record in installed.router.records] == [Outcome.COMPLETED]
