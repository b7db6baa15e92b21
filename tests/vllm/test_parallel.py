"""Fifty conversations at once through the router on real engines: nothing is lost and nothing mixed up."""

from __future__ import annotations

import asyncio
from itertools import product
from uuid import uuid4

from tests.router_http.client import ask, chat
from tests.router_http.installation import Installation, installation
from trimtab.vllm_cpu.engine import MODEL
from trimtab.vllm_cpu.fleet import EngineFleet

from .router import PATIENT, alone, total

CONVERSATIONS = 50
TURNS = 3
TOKENS = 12
CHECKED = 8
"""Conversations whose last answer is compared with the engine's own."""


async def converse(found: Installation, number: int) -> list[str]:
    """All texts of one conversation, the user's and the engine's in turn."""
    await asyncio.sleep(number * 0.05)
    session_id = uuid4().hex
    texts = [f"{uuid4().hex} my number is {number}. " + "jackdaws love my big sphinx of quartz. " * 8]
    for turn in range(TURNS):
        body = chat(*texts, model=MODEL, temperature=0, max_tokens=TOKENS, stream=bool((number + turn) % 3))
        headers = {"Content-Type": "application/json", "X-Session-ID": session_id}
        answer = await ask(found.url, body, headers=headers)
        assert answer.status == 200, answer.body[:300]
        assert answer.headers["x-trimtab-turn"] == str(turn + 1)
        texts += [answer.text, f"turn {turn + 2} of {number}"]
    return texts[:-1]


def test_fifty_conversations_at_once_are_all_answered_and_leave_nothing_behind(engines: EngineFleet):
    async def run() -> list[list[str]]:
        decode = [engines["D0"], engines["D1"]]
        async with installation([engines["P0"]], decode, pin_x=0.5, **PATIENT) as found:
            talks = await asyncio.gather(*(converse(found, number) for number in range(CONVERSATIONS)))
            await found.settle()
            assert len(found.records) == CONVERSATIONS * TURNS
            # Not "handover": on a busy machine a P may be so slow that a lease is not sure to last.
            for node, kind in product(("P0", "D0", "D1"), ("error", "timeout", "refused")):
                assert found.metric("trimtab_leg_failures_total", node=node, kind=kind) == 0
            later = [record.went_local for record in found.records if record.turn > 1]
            assert 0 < sum(later) < len(later), "both routes"
            return talks

    failed = total(engines, "nixl_num_failed_transfers_total")
    talks = asyncio.run(run())
    assert total(engines, "nixl_num_failed_transfers_total") == failed
    assert total(engines, "num_requests_running") == total(engines, "num_requests_waiting") == 0
    for texts in talks[:CHECKED]:
        assert texts[-1] == alone(engines["P0"], *texts[:-1], max_tokens=TOKENS).text
