"""A router process that stands still while P's reply waits in its socket, in front of emulated engines.

Longer than the lease: P has let the blocks go, and a D that read them would be poisoned.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.server import serve
from router.turn import Reason, Route

from .client import ask, chat, in_loop
from .fake_engine import FakeEngine
from .faults import passes_on
from .router_process import router_process

pytestmark = pytest.mark.slow

MODEL = LLAMA_3_1_8B_H100.model
JSON = {"Content-Type": "application/json"}
LEASE_S = 5.0
"""Of the engines, and as the router is told; it sends nothing in the last two seconds."""


@pytest.mark.parametrize(("pause_s", "redone"), [(LEASE_S + 1.0, True), (0.3, False)], ids=["longer", "shorter"])
@in_loop
async def test_a_pause_counts_against_the_lease(pause_s: float, redone: bool, tmp_path: Path):
    fleet = await serve("1P_1D_1R", replace(LLAMA_3_1_8B_H100, lease_s=LEASE_S), base_port=0)
    resumed: list[asyncio.Task[None]] = []

    async def stand_still() -> None:
        """Before the reply goes out, so that it finds a router that does not read."""
        if not resumed:
            router.pause()
            resumed.append(asyncio.ensure_future(resume()))

    async def resume() -> None:
        await asyncio.sleep(pause_s)
        router.go_on()

    p = FakeEngine("P0", fault=passes_on(fleet.urls["P0"], lambda handle: handle, stand_still))
    await p.start()
    try:
        decode, alone = fleet.urls["D0"], fleet.urls["R0"]
        async with router_process(tmp_path, MODEL, [p.url], [decode], lease_s=LEASE_S) as router:
            body = {**chat("a long question " * 40, max_tokens=8), "model": MODEL}
            right = await ask(alone, body, headers=JSON)
            answer = await ask(router.url, body, headers=JSON)
        assert answer.status == 200 and answer.text == right.text
        assert fleet.fleet.poisoned_reads == 0
        assert p.calls == (2 if redone else 1)
        reason = Reason.PREFILL_FAILED if redone else Reason.FIRST_TURN
        assert answer.route == (Route.PREFILL_TRANSFER.value, reason.value)
        assert fleet.fleet.transferred_tokens > 0
    finally:
        await p.stop()
        await fleet.close()
