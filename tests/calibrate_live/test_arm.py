"""One arm against an emulated fleet over HTTP: what is sent, what is measured, and what happens when an engine dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from router.nodes import endpoints
from slos.objective import Outcome
from tests.emulator_http.harness import MODEL, Client, fleet, in_loop
from trimtab.cells import Window
from trimtab.measure.arm import ArmDriver, Script
from trimtab.measure.fleet import EngineDown, FleetError
from trimtab.measure.rig import Rig
from trimtab.rows import ArmRun, arm, ttft_rows

WINDOW = Window(later_turns=4, limit_s=10.0)
SHORT = "a few words " * 40
LONG = "quite a lot more words " * 60


def scripts(count: int = 4, gap_s: float = 0.1, output_tokens: int = 12) -> list[Script]:
    return [
        Script(f"c{at}", at * gap_s, ((f"{at} {SHORT}", output_tokens), (f"{at} {LONG}", output_tokens)))
        for at in range(count)
    ]


def rig_for(client: Client) -> Rig:
    urls = client.running.urls
    return Rig(endpoints([urls["P0"]], [url for name, url in urls.items() if name.startswith("D")], ()), "nixl", 30.0)


async def driven(
    rig: Rig, said: Sequence[Script], x: int, window: Window = WINDOW, each: Callable[[float, int], None] | None = None
) -> ArmRun:
    return await ArmDriver(rig, MODEL, said, window).run(x, each or (lambda elapsed_s, later: None))


@pytest.mark.parametrize("x", [0, 1])
def test_an_arm_measures_what_a_router_would_with_all_later_turns_on_one_route(x):
    @in_loop
    async def run():
        async with fleet("1P_2D", speed=1.0) as client, rig_for(client) as rig:
            said = await driven(rig, scripts(), x)
            assert rig.core.flights() == [] and not rig.down()
        assert len(said.records) == 8 and said.decode_nodes == 2 and said.by_engine
        for record in said.records:
            assert record.outcome is Outcome.COMPLETED and record.output_tokens == 12
            assert record.went_local is (x == 1 and record.turn == 2)
            assert record.ttft_s is not None and record.tpot_s is not None
        firsts = [record for record in said.records if record.turn == 1]
        assert [record.cached_tokens for record in firsts] == [0] * 4, "nobody's opener is in a cache"
        measured = arm(said)
        assert (measured.n, measured.success) == (4, 1.0)
        rows = ttft_rows(said, 100)
        later = [row for row in rows if row.local] if x else [row for row in rows if row.uncached_p < row.prompt]
        assert later and all(row.prompt > row.uncached_d for row in later)

    run()


@in_loop
async def test_the_cut_comes_with_enough_later_turns_and_what_runs_may_end():
    async with fleet("1P_1D", speed=1.0) as client, rig_for(client) as rig:
        said = await driven(rig, scripts(12, 0.25, 60), 1, Window(later_turns=2, limit_s=10.0))
        assert rig.core.flights() == []
    later = [record for record in said.records if record.turn > 1]
    assert 2 <= len(later) < 8
    assert said.unfinished and len(said.drained) >= len(said.unfinished)
    assert all(record.ended_s <= said.end_s for record in said.records)
    assert all(record.ended_s > said.end_s for record in said.drained)


@in_loop
async def test_the_cut_comes_at_the_limit_if_nothing_comes_back():
    async with fleet("1P_1D", speed=1.0) as client, rig_for(client) as rig:
        said = await driven(rig, scripts(2, 0.0, 200), 0, Window(later_turns=10, limit_s=0.5))
    assert said.records == () and len(said.unfinished) == 2 == len(said.drained)
    assert said.end_s - said.start_s >= 0.5


@in_loop
async def test_progress_is_told_while_the_arm_runs():
    told: list[tuple[float, int]] = []
    async with fleet("1P_1D", speed=1.0) as client, rig_for(client) as rig:
        await driven(rig, scripts(), 1, each=lambda elapsed_s, later: told.append((elapsed_s, later)))
    assert len(told) > 5 and told == sorted(told) and told[-1][1] == 4


@in_loop
async def test_an_engine_that_dies_ends_the_arm_with_its_name_and_may_come_back():
    async with fleet("1P_1D", speed=1.0) as client, rig_for(client) as rig:
        killing = asyncio.ensure_future(_kill(client, "D0", 0.5))
        with pytest.raises(EngineDown, match=rf"D0 \({client.running.urls['D0']}\) stopped answering"):
            await driven(rig, scripts(30, 0.1, 40), 1, Window(100, 15.0))
        await killing
        assert not await rig.back(0.1)
        await client.post("control", "/emulator/revive", {"node": "D0"})
        assert await rig.back(5.0)
        again = await driven(rig, scripts(2), 1, Window(2, 10.0))
    assert arm(again).success == 1.0


@in_loop
async def test_engines_that_refuse_what_is_sent_end_the_calibration_with_what_they_say():
    async with fleet("1P_1D", speed=1.0) as client, rig_for(client) as rig:
        with pytest.raises(FleetError, match=r"no turn is answered: 404 .*does not exist"):
            await ArmDriver(rig, "gpt", scripts(), WINDOW).run(0, lambda elapsed_s, later: None)


async def _kill(client: Client, node: str, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await client.post("control", "/emulator/kill", {"node": node})
