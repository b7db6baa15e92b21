"""What `trimtab serve` says of its engines before it starts."""

from __future__ import annotations

import asyncio
from time import monotonic

from aiohttp import web

from tests.doctor.proxy import Proxy, proxied
from tests.doctor.test_over_http import uncached
from tests.emulator_http.harness import MODEL, fleet, in_loop
from trimtab.discover import Discover
from trimtab.doctor.visit import START_S, at_start
from trimtab.settings import Settings


@in_loop
async def test_engines_that_have_everything_are_not_mentioned():
    async with fleet("1P_1D") as client:
        urls = client.running.urls
        settings = Settings(model=MODEL, prefill=(urls["P0"],), decode=(urls["D0"],))
        assert await asyncio.to_thread(at_start, settings) == []
        assert sum(client.running.fleet.engines[name].running for name in urls) == 0


@in_loop
async def test_what_is_missing_is_one_line_with_the_fix_and_absent_engines_one_more():
    async with fleet("1P_1D") as client, proxied(Proxy(client.running.urls["D0"], reply=uncached)) as proxy:
        client.running.kill("P0")
        settings = Settings(model=MODEL, prefill=(client.running.urls["P0"],), decode=(proxy.url + "/",))
        lines = await asyncio.to_thread(at_start, settings)
        assert lines[0] == "P0 not answering yet"
        assert len(lines) == 2 and lines[1].startswith("D0 prefix caching is off")
        assert "--enable-prefix-caching" in lines[1]
        assert {path for path, _, _ in proxy.seen}.isdisjoint({"/v1/chat/completions", "/v1/completions"})


@in_loop
async def test_engines_that_hang_hold_the_start_up_for_seconds_only():
    async def slow(request: web.Request) -> web.Response:
        if request.path != "/health":
            await asyncio.sleep(30)
        return web.Response()

    app = web.Application()
    app.router.add_get("/{path:.*}", slow)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        began_s = monotonic()
        (line,) = await asyncio.to_thread(at_start, Settings(decode=(url,)))
        assert "not looked at" in line and monotonic() - began_s < 5 * START_S
    finally:
        await runner.cleanup()


def test_a_fleet_that_is_found_later_is_not_missed_at_the_start():
    assert at_start(Settings(discover=Discover(file="nodes.yaml"))) == []
    (line,) = at_start(Settings())
    assert line.startswith("nobody decodes")
