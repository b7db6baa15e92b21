"""The table of bad hand-overs at the router, in front of emulated engines that suffer them as real ones do.

A P of the test passes prompts on to an emulated P and spoils what it hands over. What the object shows must never
reach a D; what it does not show costs one leg, and the turn is done again or ends in a clean error. No D dies, and none
is poisoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from emulator.fleet import LoadFailure
from emulator.profiles import LLAMA_3_1_8B_H100, EngineProfile
from emulator.server import RunningFleet, serve
from router.dispatch import DispatchOptions
from router.turn import Reason, Route
from slos.objective import Outcome
from tests.conformance_face.faults import FAULTS, Fault

from .client import ask, chat, in_loop
from .emulated import At
from .fake_engine import Body, FakeEngine
from .faults import Spoil, passes_on
from .installation import Installation, installation

LOCAL, TRANSFER = Route.APPEND_LOCAL.value, Route.PREFILL_TRANSFER.value
PATIENT = DispatchOptions(prefill_timeout_s=30.0)
MODEL = LLAMA_3_1_8B_H100.model
LONG = "a prompt of more than one block: " + "word " * 200
SHOWN = [fault for fault in FAULTS if fault.shown]
HIDDEN = [fault for fault in FAULTS if not fault.shown]


@asynccontextmanager
async def spoilt(
    spoil: Spoil,
    topology: str = "1P_1D",
    policy: LoadFailure = LoadFailure.FAIL,
    *,
    profile: EngineProfile = LLAMA_3_1_8B_H100,
    speed: float = 20.0,
    lease_s: float = 30.0,
    then: Callable[[], Awaitable[None]] | None = None,
    **p: Any,
) -> AsyncIterator[tuple[RunningFleet, FakeEngine, Installation]]:
    """An emulated fleet whose P0 spoils what it hands over, and a router that sends all turns through a P."""
    fleet = await serve(topology, profile, base_port=0, speed=speed, load_failure=policy)
    try:
        urls = fleet.urls
        first = FakeEngine("P0", fault=passes_on(urls["P0"], spoil, then), **p)
        nodes = {name: At(url) for name, url in urls.items() if name != "P0"}
        prefill: list[Any] = [first, *(node for name, node in nodes.items() if name.startswith("P"))]
        decode = [node for name, node in nodes.items() if name.startswith("D")]
        async with installation(prefill, decode, pin_x=0.0, lease_s=lease_s, options=PATIENT) as router:
            yield fleet, first, router
    finally:
        await fleet.close()


def turn(text: str = LONG, **more: Any) -> dict[str, Any]:
    return {**chat(text, max_tokens=8, **more), "model": MODEL}


def unharmed(fleet: RunningFleet) -> None:
    assert fleet.fleet.poisoned_reads == 0
    assert all(node.listening for node in fleet.nodes.values())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", SHOWN, ids=str)
@in_loop
async def test_what_the_object_shows_never_reaches_a_d(fault: Fault, stream: bool):
    async with spoilt(fault.spoil) as (fleet, p, router):
        answer = await ask(router.url, turn(stream=stream))
        await router.settle()
        failures = router.metric("trimtab_leg_failures_total", node="P0", kind="handover")
        assert fleet.fleet.transferred_tokens == 0
        unharmed(fleet)
    assert answer.status == 200 and answer.route == (LOCAL, Reason.PREFILL_FAILED.value)
    assert (p.calls, failures) == (1, 1)
    assert [record.outcome for record in router.records] == [Outcome.COMPLETED]


@pytest.mark.parametrize("fault", SHOWN, ids=str)
@in_loop
async def test_another_p_does_what_the_first_one_spoilt(fault: Fault):
    async with spoilt(fault.spoil, "2P_1D") as (fleet, _, router):
        answer = await ask(router.url, turn())
        await router.settle()
        assert fleet.fleet.transferred_tokens > 0
        unharmed(fleet)
    assert answer.route == (TRANSFER, Reason.PREFILL_FAILED.value)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", HIDDEN, ids=str)
@in_loop
async def test_what_only_d_can_find_out_ends_in_a_clean_error_where_no_other_d_is_left(fault: Fault, stream: bool):
    async with spoilt(fault.spoil) as (fleet, _, router):
        answer = await ask(router.url, turn(stream=stream))
        await router.settle()
        unharmed(fleet)
    assert answer.status >= 500 and answer.error["message"]
    assert [record.outcome for record in router.records] == [Outcome.FAILED]


@in_loop
async def test_blocks_of_a_p_that_has_not_told_how_many_it_has_are_for_d_to_find_out():
    fault = next(each for each in FAULTS if each.name == "blocks that P does not have")
    async with spoilt(fault.spoil, metrics="") as (fleet, _, router):
        answer = await ask(router.url, turn())
        await router.settle()
        unharmed(fleet)
    assert answer.status >= 500 and answer.error["message"]


@pytest.mark.parametrize("fault", HIDDEN, ids=str)
@in_loop
async def test_a_d_of_the_recompute_policy_answers_all_the_same(fault: Fault):
    async with spoilt(fault.spoil, policy=LoadFailure.RECOMPUTE) as (fleet, _, router):
        answer = await ask(router.url, turn())
        await router.settle()
        unharmed(fleet)
    assert (answer.status, answer.done) == (200, True)
    assert answer.route[0] in (TRANSFER, LOCAL)


@in_loop
async def test_what_one_d_could_not_read_is_prefilled_again_for_another_and_no_object_is_sent_twice():
    """Only the first object is bad: its D fails, and the next D gets a new one."""
    given: list[Body] = []

    def spoil(handle: Body) -> Body:
        given.append(handle)
        return {**handle, "remote_engine_id": "nobody"} if len(given) == 1 else handle

    async with spoilt(spoil, "1P_2D") as (fleet, _, router):
        answer = await ask(router.url, turn())
        await router.settle()
        unharmed(fleet)
        assert fleet.fleet.open_leases <= 1  # the object that nobody could read
    assert answer.status == 200 and len(given) == 2
    assert given[0]["remote_request_id"] != given[1]["remote_request_id"]


@in_loop
async def test_an_object_that_p_gives_again_is_not_passed_on():
    """A P, or a cache in front of it, that answers with what it answered before: D would read freed blocks."""
    first: list[Body] = []

    def again(handle: Body) -> Body:
        first.append(handle)
        return first[0]

    async with spoilt(again) as (fleet, _, router):
        right = await ask(router.url, turn())
        second = await ask(router.url, turn())
        await router.settle()
        unharmed(fleet)
        assert router.metric("trimtab_leg_failures_total", node="P0", kind="handover") == 1
    assert right.route[0] == TRANSFER and second.route == (LOCAL, Reason.PREFILL_FAILED.value)
    assert second.text == right.text


@in_loop
async def test_a_reply_held_back_beyond_the_lease_is_prefilled_again():
    """By whatever lies between P and the router; P's Date header tells."""
    lease_s, held = 5.0, list[bool]()

    async def hold() -> None:
        if len(held) == 1:
            await asyncio.sleep(lease_s + 0.5)
        held.append(True)

    leased = replace(LLAMA_3_1_8B_H100, lease_s=lease_s)
    async with spoilt(lambda handle: handle, profile=leased, speed=1.0, lease_s=lease_s, then=hold) as (
        fleet,
        p,
        router,
    ):
        quick = await ask(router.url, turn("another " * 100))
        answer = await ask(router.url, turn())
        await router.settle()
        unharmed(fleet)
    assert quick.route == (TRANSFER, Reason.FIRST_TURN.value)
    assert answer.status == 200 and answer.route == (TRANSFER, Reason.PREFILL_FAILED.value) and p.calls == 3


@in_loop
async def test_a_p_that_dies_between_the_legs_costs_no_answer():
    async def die() -> None:
        """P has answered; before the router hears of it, P is gone."""
        if fleet.nodes["P0"].listening:
            fleet.kill("P0")

    async with spoilt(lambda handle: handle, "1P_2D_1R", then=die) as (fleet, _, router):
        right = await ask(fleet.urls["R0"], turn(), headers={"Content-Type": "application/json"})
        answer = await ask(router.url, turn())
        await router.settle()
        assert fleet.fleet.poisoned_reads == fleet.fleet.transferred_tokens == 0
    assert answer.status == 200 and answer.done and answer.text == right.text
    assert answer.route == (LOCAL, Reason.PREFILL_FAILED.value)
