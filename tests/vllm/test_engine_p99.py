"""P99 of real engines' histograms beside the router's own clock, on the very same turns.

What a reading may claim: a turn's TTFT by the router is longer than by the engine, for the router's begins earlier and
ends later; so the router's P99 lies above the lower edge. Above the upper edge it may lie by the router's and HTTP's
share only. TPOT differs by jitter / (n - 1). A transferred turn's TTFT is at most P's and D's added up, and HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from controller.engines import EngineNode, EngineReading
from controller.observed import signals
from controller.scrape import Scraper
from estimators.quantile import nearest_rank
from router.record import TurnRecord
from router.turn import Role
from slos.objective import Signal, Slo
from tests.router_http.client import ask, chat
from tests.router_http.installation import installation

from .router import PATIENT

pytestmark = pytest.mark.vllm

WARM_UP, TURNS, TOKENS = 4, 24, 24
SHARE_S = 1.0
"""The router's and HTTP's share of a TTFT, two legs: some 10 ms, and what a machine with thirty processes to two cores
adds, as when it was written."""
JITTER_S = SHARE_S / (TOKENS - 1)
"""What the same share of the last token, and not of the first, does to a TPOT."""
COUNTED_S = 2.0
SLOS = (Slo("ttft", Signal.TTFT, 0.99, 1.0), Slo("tpot", Signal.TPOT, 0.99, 0.05))


async def turns(router_url: str, count: int) -> None:
    for _ in range(count):
        body = chat(f"{uuid4().hex} " + "seven wide rivers " * 20, model="tiny", temperature=0, max_tokens=TOKENS)
        answer = await ask(router_url, body, headers={"Content-Type": "application/json"})
        assert answer.status == 200 and answer.done, answer


async def observed(engines: Any, transfers: bool) -> tuple[EngineReading, list[TurnRecord], Scraper]:
    """First turns, through P or on D alone, seen by the engines and by the router."""
    nodes = [EngineNode("D0", Role.DECODE if transfers else Role.REPLICA, engines["D0"].url, "tiny")]
    pools: dict[str, Any] = {"replica": [engines["D0"]]}
    if transfers:
        nodes.append(EngineNode("P0", Role.PREFILL, engines["P0"].url, "tiny"))
        pools = {"prefill": [engines["P0"]], "decode": [engines["D0"]]}
    scraper = Scraper(nodes, SLOS, interval_s=60.0, timeout_s=20.0)
    try:
        async with installation(**pools, slos=SLOS, **PATIENT) as router:
            await turns(router.url, WARM_UP)  # connections, the first NIXL handshake, compiled kernels
            router.records.clear()
            await asyncio.sleep(COUNTED_S)
            await scraper.scrape()
            await turns(router.url, TURNS)
            await asyncio.sleep(COUNTED_S)
            await scraper.scrape()
            return scraper.readings()["tiny"], list(router.records), scraper
    finally:
        await scraper.close()


def p99(values: list[float | None]) -> float:
    known = sorted(value for value in values if value is not None)
    assert len(known) == TURNS
    return nearest_rank(known, 0.99)


def test_local_turns_read_the_same_on_both_clocks(engines):
    reading, records, scraper = asyncio.run(observed(engines, transfers=False))
    assert reading.alarms == ()
    ttft, tpot = reading.ttft().local, reading.tpot()
    assert ttft is not None and tpot is not None and ttft.n == tpot.n == TURNS
    assert ttft.high is not None and tpot.high is not None
    assert ttft.low < p99([record.ttft_s for record in records]) <= ttft.high + SHARE_S
    assert tpot.low - JITTER_S < p99([record.tpot_s for record in records]) <= tpot.high + JITTER_S
    values = {row.slo.name: row.value_s for row in scraper.slo_readings()["tiny"]}
    assert values == {"ttft": ttft.value, "tpot": tpot.value}, "what control.signal: engine gives the law"


def test_transferred_turns_are_bounded_by_ps_and_ds_readings_together(engines):
    reading, records, _ = asyncio.run(observed(engines, transfers=True))
    found = signals(reading)
    total = found["ttft_transferred"]
    assert found["ttft_local"] is None, "each of D's turns came from P"
    assert total is not None and total.n == TURNS and total.high is not None
    on_d = reading.ttft_d.quantile(0.99) if reading.ttft_d is not None else None
    assert on_d is not None and {record.placement.prefill for record in records} == {"P0"}
    assert on_d.low < p99([record.ttft_s for record in records]) <= total.high + SHARE_S
