"""Rows 9, 10, 16b, 22, 23, 24: a decode node that fails, stalls, lies or forgets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.dispatch import DispatchOptions
from router.turn import NodeId, Reason
from router.upstream import Timeouts
from slos.objective import Outcome
from tests.router_http.client import ask, in_loop

from .ask import asked, befalls, say, struck
from .conftest import Fleet

SHORT: dict[str, Any] = {"timeouts": Timeouts(2.0, 0.6, 0.6, 0.6), "options": DispatchOptions(prefill_timeout_s=0.6)}


@in_loop
async def test_row_9_fifty_first_turns_of_one_session_bind_one_d_and_the_failed_attempt_none(quiescent: Fleet):
    async with quiescent("1P_2D") as installed:
        befalls(installed, {"node": "P", "nth": "1", "fault": "status", "status": "500"})
        headers = {"X-Session-ID": "one"}
        bodies = [asked("hello", tokens=2) for _ in range(50)]
        answers = await asyncio.gather(*(ask(installed.router.url, body, headers=headers) for body in bodies))
        assert {answer.status for answer in answers} == {200}
        await installed.router.settle()
        (conversation,) = installed.router.core.conversations
        assert conversation.decode_node is not None
        ended = {record.placement.decode for record in installed.router.records}
        assert conversation.decode_node in ended
        assert sum(record.attempts > 1 for record in installed.router.records) == 1


@in_loop
async def test_row_10_what_d_has_evicted_is_a_miss_and_then_no_longer_believed(quiescent: Fleet):
    async with quiescent("1P_1D", pin_x=1.0) as installed:
        core, texts = installed.router.core, ["word " * 600]
        for number in range(2):
            texts += [(await say(installed, *texts)).text, f"and {number}?"]
        believed = core.residency.held(NodeId("D0"), next(iter(core.conversations)).key)
        assert believed > 500 and core.residency_misses == 0
        installed.fleet.nodes["D0"].evict()
        texts += [(await say(installed, *texts)).text, "again?"]
        assert core.residency_misses == 1
        assert installed.router.records[-1].cached_tokens == 0
        # Others' conversations there are not believed in either: the engine evicts the oldest first.
        await say(installed, *texts)
        assert installed.router.records[-1].cached_tokens and core.residency_misses == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 503])
@in_loop
async def test_row_16b_the_client_gets_ds_code_and_the_lease_is_let_go_or_counted(
    quiescent: Fleet, status: int, stream: bool
):
    async with quiescent("1P_1D") as installed:
        befalls(installed, {"leg": "decode", "fault": "status", "status": str(status)})
        answer = await say(installed, "hello", stream=stream)
        leases = installed.router.core.leases
        await installed.router.settle()
        assert answer.status == status
        assert sum(leases.stranded.values()) == (0 if status == 400 else struck(installed)[0])


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_row_22_a_500_before_the_headers_is_the_clients_if_no_other_d_is_there(quiescent: Fleet, stream: bool):
    async with quiescent("1P_1D") as installed:
        befalls(installed, {"node": "D", "fault": "error"})
        answer = await say(installed, "hello", stream=stream)
        assert (answer.status, answer.error["code"]) == (500, 500)


@in_loop
async def test_row_22_an_error_after_three_chunks_is_an_event_and_no_done(quiescent: Fleet):
    async with quiescent("1P_1D") as installed:
        befalls(installed, {"leg": "decode", "fault": "reset", "after": "4"})
        answer = await say(installed, "hello", tokens=40)
        assert answer.status == 200 and not answer.done
        assert answer.error["code"] == "upstream_broke_off"
        assert [record.outcome for record in installed.router.records] == [Outcome.FAILED]


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_row_22_an_empty_200_is_a_502(quiescent: Fleet, stream: bool):
    async with quiescent("1P_1D") as installed:
        befalls(installed, {"node": "D", "fault": "empty"})
        answer = await say(installed, "hello", stream=stream)
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_row_23_a_stall_before_the_headers_ends_at_the_deadline(quiescent: Fleet, stream: bool):
    async with quiescent("1P_1D", **SHORT) as installed:
        befalls(installed, {"node": "D", "fault": "stall"})
        answer = await say(installed, "hello", stream=stream)
        assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")


@in_loop
async def test_row_23_a_stall_in_the_middle_ends_at_the_gap_and_others_go_on(quiescent: Fleet):
    async with quiescent("1P_2D", **SHORT) as installed:
        befalls(installed, {"leg": "decode", "nth": "1", "fault": "stall", "after": "3"})
        stalled, *others = await asyncio.gather(*(say(installed, f"hello {at}", tokens=20) for at in range(20)))
        broken = [answer for answer in (stalled, *others) if not answer.done]
        assert len(broken) == 1 and broken[0].error["code"] == "upstream_timeout"
        slow = [r for r in installed.router.records if r.outcome is Outcome.COMPLETED and r.e2e_s > 0.6]
        assert len(slow) <= 2, "a stalled stream must not hold up the others"


@in_loop
async def test_row_24_a_request_that_d_lost_is_prefilled_again_once_and_nothing_was_sent(quiescent: Fleet):
    async with quiescent("1P_2D") as installed:
        befalls(installed, {"leg": "decode", "nth": "1", "fault": "finish_error"})
        answer = await say(installed, "hello")
        assert answer.status == 200 and answer.done and answer.text
        assert answer.route[1] == Reason.DECODE_FAILED.value
        (record,) = installed.router.records
        assert (record.attempts, record.outcome) == (2, Outcome.COMPLETED)
        core = installed.router.core
        failed = {"D0", "D1"} - {str(record.placement.decode)}
        assert not core.residency.held(NodeId(failed.pop()), next(iter(core.conversations)).key)
