"""Rows 13, 14 and 16a: a client that leaves, in every phase, streamed and not; its engines are free at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from emulator.rules import rule
from router.turn import NodeId
from slos.objective import Outcome
from tests.router_http.client import ask, chat, in_loop, until
from tests.router_http.emulated import MODEL, Emulated
from tests.router_http.test_client_leaves import calling

from .conftest import Fleet

FREE_S = 0.5
"""What is promised; measured: 3 to 30 ms on a quiet machine."""
LONG = "word " * 4000
SLOW = {"P": {"fault": "stall", "for": "30s", "leg": "prefill"}, "D": {"fault": "stall", "for": "30s", "leg": "decode"}}


def asked(text: str, stream: bool, tokens: int = 4000) -> dict:
    return {**chat(text, stream=stream), "model": MODEL, "max_tokens": tokens, "ignore_eos": True}


def befalls(installed: Emulated, *values: dict[str, str]) -> None:
    installed.fleet.rules.replace(tuple(rule(each) for each in values))


def work(installed: Emulated, role: str) -> int:
    """Requests that the nodes of that role have in hand: connections included that no engine has seen yet."""
    nodes = [node for name, node in installed.fleet.nodes.items() if name.startswith(role)]
    held = sum(c._current_request is not None for n in nodes if n._server for c in n._server.connections)
    return held + sum(count for name, count in installed.sequences().items() if name.startswith(role))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["before P", "during P", "between the legs", "D before the first byte", "mid-stream"])
@in_loop
async def test_row_13_whatever_the_phase_the_engine_is_free_within_half_a_second(
    quiescent: Fleet, phase: str, stream: bool
):
    async with quiescent("1P_1D", speed=1.0) as installed:
        role = "P" if "P" in phase else "D"
        if phase == "before P":
            befalls(installed, SLOW["P"])
        elif phase in ("between the legs", "D before the first byte"):
            befalls(installed, SLOW["D"])
        text = LONG if phase == "during P" else "hello"
        async with calling(installed.router, asked(text, stream)) as caller:
            if phase == "between the legs":  # the moment at which D's leg has gone out and no engine has it
                await until(lambda: any(f.decoding for f in installed.router.core.flights()))
            elif phase == "mid-stream":
                await until(lambda: installed.sequences()["D0"] and not installed.sequences()["P0"])
                await asyncio.sleep(0.2)
            else:
                await until(lambda: work(installed, role))
            caller.leave()
            took_s = await until(lambda: not work(installed, "P") and not work(installed, "D"), 5.0)
        print(f"{phase}, {'streamed' if stream else 'whole'}: free after {1e3 * took_s:.0f} ms")
        assert took_s < FREE_S
        await installed.router.settle()
        assert [record.outcome for record in installed.router.records] == [Outcome.CLIENT_GONE]


@in_loop
async def test_row_16a_a_lease_that_nobody_will_read_is_counted_and_expires(quiescent: Fleet):
    async with quiescent("1P_1D") as installed:
        befalls(installed, SLOW["D"])
        async with calling(installed.router, asked("hello", True)) as caller:
            await until(lambda: any(f.decoding for f in installed.router.core.flights()))
            core = installed.router.core
            assert core.leases.open() == Counter({"P0": 1})
            caller.leave()
            await installed.router.settle()
        assert core.leases.stranded == Counter({"P0": 1})
        assert installed.fleet.fleet.open_leases == 1 == core.leases.held(core.leases._waiting[0][0] - 1)[NodeId("P0")]
        assert not core.leases.held(core.leases._waiting[0][0] + 1)  # over with P's own lease


@in_loop
async def test_row_14_requests_killed_at_any_stage_leave_every_gauge_at_zero(quiescent: Fleet):
    """A tenth of the row's 5,000 here; the soak does the rest."""
    dice = random.Random(14)
    killed = 0

    async def one(installed: Emulated, number: int) -> None:
        nonlocal killed
        body = asked(f"hello {number} " + "word " * dice.randrange(200), dice.random() < 0.7, dice.randrange(1, 60))
        request = asyncio.ensure_future(ask(installed.router.url, body))
        if dice.random() < 0.3:
            killed += 1
            await asyncio.sleep(dice.random() * 0.05)
            request.cancel()
        await asyncio.gather(request, return_exceptions=True)

    async with quiescent("1P_2D", speed=10.0) as installed:
        for at in range(0, 500, 50):
            await asyncio.gather(*(one(installed, number) for number in range(at, at + 50)))
        await installed.router.settle()
        outcomes = Counter(record.outcome for record in installed.router.records)
        assert set(outcomes) <= {Outcome.COMPLETED, Outcome.CLIENT_GONE}
        assert killed > 100 and outcomes[Outcome.COMPLETED] >= 500 - killed
