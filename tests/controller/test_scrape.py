"""Rounds over engines that answer, hang, break and come back."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from controller.engines import EngineMetric, EngineNode
from controller.scrape import MAX_PAGE_BYTES, Scraper
from router.turn import Role
from slos.objective import Signal, Slo

MODEL = "m"
SLOS = (Slo("ttft", Signal.TTFT, 0.99, 2.0), Slo("tpot", Signal.TPOT, 0.99, 0.040))
NAMES = {
    EngineMetric.TTFT: "vllm:time_to_first_token_seconds",
    EngineMetric.TPOT: "vllm:request_time_per_output_token_seconds",
}


class Engine:
    """A node whose page tells of `turns` turns with a TTFT of .3 s and a TPOT of 30 ms, and that can misbehave."""

    def __init__(self, name: str, role: Role = Role.DECODE) -> None:
        self.name, self.role = name, role
        self.turns, self.started_s = 0, 1.0
        self.names = dict(NAMES)
        self.fault: Callable[[], Awaitable[web.StreamResponse]] | None = None
        self.gets = 0

    def page(self) -> str:
        text = f"process_start_time_seconds {self.started_s}\n"
        for metric, edges in ((EngineMetric.TTFT, ("0.25", "0.5")), (EngineMetric.TPOT, ("0.025", "0.05"))):
            for edge, count in zip((*edges, "+Inf"), (0, self.turns, self.turns), strict=True):
                text += f'{self.names[metric]}_bucket{{engine="0",le="{edge}",model_name="m"}} {count}\n'
        for metric in (EngineMetric.KV_USAGE, EngineMetric.RUNNING, EngineMetric.WAITING):
            text += f'vllm:{metric.value}{{engine="0",model_name="m"}} 0.25\n'
        return text

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.gets += 1
        return web.Response(text=self.page()) if self.fault is None else await self.fault()

    async def start(self) -> EngineNode:
        app = web.Application()
        app.router.add_get("/metrics", self.answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return EngineNode(self.name, self.role, f"http://127.0.0.1:{self.runner.addresses[0][1]}", MODEL)


def run(story: Callable[[Scraper, list[Engine]], Awaitable[None]], clock: Callable[[], float] = time.monotonic) -> None:
    """`story` on a P, two D and their scraper."""

    async def main() -> None:
        engines = [Engine("P0", Role.PREFILL), Engine("D0"), Engine("D1")]
        scraper = Scraper([await engine.start() for engine in engines], SLOS, timeout_s=1.0, clock=clock)
        try:
            await story(scraper, engines)
        finally:
            await scraper.close()
            for engine in engines:
                await engine.runner.cleanup()

    asyncio.run(asyncio.wait_for(main(), 20.0))


async def round_of(scraper: Scraper, engines: list[Engine], turns: int) -> None:
    for engine in engines:
        engine.turns += turns
    await scraper.scrape()


def tpot_n(scraper: Scraper) -> int:
    histogram = scraper.readings()[MODEL].tpot_d
    return 0 if histogram is None else histogram.n


def test_two_rounds_give_readings_for_the_law():
    async def story(scraper: Scraper, engines: list[Engine]) -> None:
        assert scraper.readings() == {} and scraper.slo_readings() == {}
        await scraper.scrape()
        assert [row.value_s for row in scraper.slo_readings()[MODEL]] == [None, None]
        await round_of(scraper, engines, 50)
        reading = scraper.readings()[MODEL]
        assert reading.alarms == () and tpot_n(scraper) == 100
        ttft, tpot = (row.value_s for row in scraper.slo_readings()[MODEL])
        assert ttft is not None and 0.5 < ttft <= 1.0, "P's and D's, .25 to .5 each"
        assert tpot is not None and 0.025 < tpot <= 0.05
        assert scraper.results["D0", "ok"] == 2 and scraper.results["D0", "failed"] == 0

    run(story)


async def broken() -> web.StreamResponse:
    return web.Response(status=500)


async def hanging() -> web.StreamResponse:
    await asyncio.sleep(4.0)
    return web.Response()


async def nonsense() -> web.StreamResponse:
    return web.Response(text='vllm:time_to_first_token_seconds_bucket{le="0.5} <html>\n')


async def binary() -> web.StreamResponse:
    return web.Response(body=b"\xff\xfe\x00")


async def moved() -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"})


async def endless() -> web.StreamResponse:
    return web.Response(text="x" * (MAX_PAGE_BYTES + 10))


async def halved() -> web.StreamResponse:
    return web.Response(text=Engine("X").page()[:-7])


async def cut() -> web.StreamResponse:
    raise ConnectionResetError


FAULTS = {
    broken: "status 500",
    hanging: "timeout",
    nonsense: "not Prometheus text",
    binary: "not Prometheus text",
    moved: "status 302",
    endless: "page too large",
    halved: "page cut off",
    cut: "status 500",
}


@pytest.mark.parametrize(("fault", "what"), FAULTS.items(), ids=[fault.__name__ for fault in FAULTS])
def test_a_node_that_misbehaves_is_named_and_costs_the_others_nothing(fault, what):
    async def story(scraper: Scraper, engines: list[Engine]) -> None:
        engines[2].fault = fault
        await scraper.scrape()
        began_s = time.monotonic()
        await round_of(scraper, engines, 50)
        assert time.monotonic() - began_s < 2.0
        reading = scraper.readings()[MODEL]
        assert [(alarm.node, alarm.what) for alarm in reading.alarms] == [("D1", what)]
        assert tpot_n(scraper) == 50 and reading.tpot() is not None
        engines[2].fault = None
        await round_of(scraper, engines, 50)
        await round_of(scraper, engines, 50)
        assert scraper.readings()[MODEL].alarms == () and tpot_n(scraper) == 150 + 50

    run(story)


def test_a_node_that_is_down_is_named_without_its_address():
    async def story(scraper: Scraper, engines: list[Engine]) -> None:
        await engines[1].runner.cleanup()
        await scraper.scrape()
        (alarm,) = scraper.readings()[MODEL].alarms
        assert alarm.node == "D0" and alarm.what.startswith("unreachable: ") and "127.0.0.1" not in alarm.what

    run(story)


def test_a_restart_of_an_engine_is_no_leap_of_its_counts():
    async def story(scraper: Scraper, engines: list[Engine]) -> None:
        await round_of(scraper, engines, 1000)
        engines[1].turns, engines[1].started_s = 0, 2.0
        await round_of(scraper, engines, 30)
        assert tpot_n(scraper) == 60
        engines[1].turns, engines[1].started_s = 2000, 3.0  # and more since than ever before
        await round_of(scraper, engines, 0)
        assert tpot_n(scraper) == 60 + 2000

    run(story)


def test_old_engines_beside_new_ones_read_the_same():
    async def story(scraper: Scraper, engines: list[Engine]) -> None:
        engines[2].names[EngineMetric.TPOT] = "vllm:time_per_output_token_seconds"
        await scraper.scrape()
        await round_of(scraper, engines, 50)
        assert tpot_n(scraper) == 100 and scraper.readings()[MODEL].alarms == ()
        assert scraper.last["D1"].older_names == {EngineMetric.TPOT: "vllm:time_per_output_token_seconds"}

    run(story)


def test_engines_that_show_no_tpot_freeze_it_and_say_so():
    async def story(scraper: Scraper, engines: list[Engine]) -> None:
        for engine in engines:
            engine.names[EngineMetric.TPOT] = "vllm:brand_new_name"
        await scraper.scrape()
        await round_of(scraper, engines, 50)
        ttft, tpot = scraper.slo_readings()[MODEL]
        assert tpot.value_s is None and ttft.value_s is not None
        assert {alarm.node for alarm in scraper.readings()[MODEL].alarms} == {"D0", "D1"}

    run(story)


def test_readings_that_nobody_renews_are_gone_after_three_intervals():
    now_s = [0.0]

    async def story(scraper: Scraper, engines: list[Engine]) -> None:
        await scraper.scrape()
        await round_of(scraper, engines, 50)
        now_s[0] = 14.0
        assert scraper.slo_readings() != {}
        now_s[0] = 16.0
        assert scraper.slo_readings() == {} and scraper.readings() == {}

    run(story, clock=lambda: now_s[0])


def test_the_job_fits_the_scheduler():
    scraper = Scraper([], SLOS, interval_s=5.0)
    (job,) = scraper.jobs()
    assert (job.name, job.interval_s) == ("scrape", 5.0) and job.timeout_s is None


def test_the_nodes_that_members_names_are_scraped_and_one_that_is_another_engine_begins_anew():
    async def story(scraper: Scraper, engines: list[Engine]) -> None:
        known = list(scraper.nodes)
        for _ in range(2):
            await round_of(scraper, engines, 10)
        assert tpot_n(scraper) > 0
        late = Engine("D1")
        members = [known[0], known[1], await late.start()]
        scraper._members = lambda: members
        try:
            await scraper.scrape()
            assert scraper.nodes == tuple(members) and late.gets == 1
            assert scraper.last["D1"].error is None
            members = [known[0]]
            await scraper.scrape()
            assert set(scraper.last) == {"P0"}
            members = []
            await scraper.scrape()
            assert scraper.nodes == (known[0],), "no router reports: as before"
        finally:
            await late.runner.cleanup()

    run(story)
